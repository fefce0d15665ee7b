"""What the demo model says: a table of keywords and the texts that they call up."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from conversations.domain.summaries import HEADINGS

CONNECT = "To connect a real model, set `ANTHROPIC_API_KEY` and restart the server."
LONG_ANSWER_WORDS = 2_000
MAX_ECHO = 200
MAX_QUOTE = 600
MAX_KEYWORD_WORDS = 4

LABEL = "*I am the built-in demo model: my answers are scripted.*"

HELP = f"""## What the demo model can do

{LABEL} Send one of these words:

- **help**: this overview
- **long**: an answer of about 2,000 words
- **table**: a table
- **code**: a block of code
- **think**: an answer with its thinking
- **files**, **read README.md**, **search roses**: what lies in the workspace
- **write notes.md**, **edit notes.md**: a change of a file, for which you may be asked, and
  which you can take back
- **run**: a command that takes three seconds
- **tool**: a call of the first tool on offer; name a tool to call that one
- **recall**: a look into this session's archive, or **recall beans** for a word in it
- **fail**: an overloaded provider

{CONNECT}"""

TABLE = f"""## A table

{LABEL}

| part | holds | grows |
| :--- | :--- | ---: |
| archive | every word | always |
| window | what the model is given | never beyond its limit |
| draft | an answer that is still streaming | until it completes |

{CONNECT}"""

CODE = f"""## Some Python

{LABEL} The numbers of Fibonacci below a limit:

```python
def fibonacci(limit: int) -> list[int]:
    numbers, following = [0], 1
    while following < limit:
        numbers.append(following)
        following = numbers[-2] + numbers[-1]
    return numbers


print(fibonacci(100))
```

1. It starts with `0` and `1`.
2. It adds the last two until the limit is reached.

{CONNECT}"""

THINK = f"""## An answer after thinking

{LABEL} What stands above this answer is a thinking block; a real model puts there
what it considered before it answered.

{CONNECT}"""

NO_TOOL = f"""{LABEL} I would call a tool now, but this workspace does not offer it.

{CONNECT}"""

THOUGHT = (
    "The person would like to see what thinking looks like. A few steps will do:\n"
    "1. Read the message.\n2. See which of the scripted answers fits.\n"
    "3. Say plainly that this is a demo.\n"
)

PARAGRAPHS = (
    "A session lasts for months, while the window of a model holds a day or two of it. What"
    " falls out of the window is not gone: it stays in the archive, word for word, and can be"
    " looked up by the model and by the people who take part.",
    "Nothing in the archive is rewritten. An edited message, an answer that was made again and"
    " a summary are all additions, so that the way to a result can be followed later, with its"
    " detours.",
    "An answer arrives in small pieces. They are shown as they come, and kept beside the"
    " archive until the answer is complete; then one row takes their place.",
    "When the model calls a tool, the call and its result stay together, since neither means"
    " anything without the other.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One scripted answer."""

    text: str
    thinking: str = ""


def make_long_text() -> str:
    """About LONG_ANSWER_WORDS words under numbered headings."""
    parts = ["## A long answer", LABEL]
    words = 0
    while words < LONG_ANSWER_WORDS:
        number = len(parts) - 1
        paragraph = PARAGRAPHS[number % len(PARAGRAPHS)]
        parts.append(f"### Part {number}\n\n{paragraph}")
        words += len(paragraph.split())
    return "\n\n".join([*parts, CONNECT])


SCRIPTS: dict[str, Callable[[], Script]] = {
    "help": lambda: Script(text=HELP),
    "long": lambda: Script(text=make_long_text()),
    "table": lambda: Script(text=TABLE),
    "code": lambda: Script(text=CODE, thinking=THOUGHT),
    "think": lambda: Script(text=THINK, thinking=THOUGHT),
}


def find_keyword(text: str, keywords: set[str]) -> str | None:
    """The first of ``keywords`` in a short message; long ones are not commands."""
    words = [bare_word(word) for word in text.split()]
    if len(words) > MAX_KEYWORD_WORDS:
        return None
    return next((word for word in words if word in keywords), None)


def is_keyword(word: str, keywords: set[str]) -> bool:
    return bare_word(word) in keywords


def bare_word(word: str) -> str:
    """A word in lower case, without the punctuation around it."""
    return word.strip(".,:;!?\"'`*()").lower()


def choose_script(text: str) -> Script:
    keyword = find_keyword(text, set(SCRIPTS))
    return SCRIPTS[keyword]() if keyword else Script(text=make_echo(text))


def make_echo(text: str) -> str:
    """The default answer: the person's words, and what this is."""
    words = shorten(" ".join(text.split()), MAX_ECHO)
    said = f"You wrote:\n\n> {words}\n\n" if words else ""
    return (
        f"## Hello from the demo model\n\n{LABEL} {said}A real model would answer this;"
        " I can only show how an answer looks here:\n\n"
        "- it **streams** in small pieces,\n- it may hold lists, tables and `code`,\n"
        f"- it is kept in the archive, word for word.\n\nSend `help` for more. {CONNECT}"
    )


def make_tool_answer(results: list[tuple[str, bool]]) -> str:
    """The answer to tool results, given as texts with whether each is an error."""
    parts = [f"{LABEL} The tool has answered:"]
    for text, is_error in results:
        head = "It failed with:" if is_error else "It said:"
        parts.append(f"{head}\n\n{quote(shorten(text, MAX_QUOTE))}")
    return "\n\n".join([*parts, f"A real model would go on from here. {CONNECT}"])


def quote(text: str) -> str:
    """``text`` as a block of code that its own backticks cannot end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


SUMMED_UP = 5
"""Messages that a summary of the demo model names."""


def make_summary(text: str) -> str:
    """A summary of quoted turns: their first and last messages, under the headings."""
    quoted = re.findall(r"^\[turn (\d+), person[^\]]*\]\n(.*)", text, re.M)
    named = [f"- turn {number}: {words[:MAX_ECHO]}" for number, words in quoted]
    if len(named) > SUMMED_UP:
        named = [*named[:2], f"- … {len(named) - SUMMED_UP + 1} more", *named[3 - SUMMED_UP :]]
    said = {"What was done": "\n".join(named) or "None.", "Goal": f"{LABEL} I cannot tell."}
    return "\n\n".join(f"## {heading}\n{said.get(heading, 'None.')}" for heading in HEADINGS)
