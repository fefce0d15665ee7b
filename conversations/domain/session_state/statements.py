"""Decisions that a person states in a message: few, but right.

Only sentences that begin as a rule or a decision count ("never …", "always …", "we
use …", "we decided …", "let's go with …", "from now on …", "… must not …"). Not
questions, doubts and stories, and nothing quoted or pasted. The rules are made for
English.
"""

import re
import shlex
from collections.abc import Iterator, Sequence

from conversations.domain.text import one_line
from conversations.domain.words import ENGLISH

from . import ITEM_CHARS

MAX_DECISIONS_IN_MESSAGE, MAX_SENTENCE_CHARS, MIN_SENTENCE_WORDS = 5, 400, 3

# A message of more lines is mostly pasted: only its first and last paragraph count, and only
# if they are short.
SCANNED_CHARS, LONG_LINES, SHORT_PARAGRAPH = 10_000, 40, 6
_LONGEST_FIRST = sorted(ENGLISH["verbs"].split(), key=lambda verb: (-len(verb), verb))
_VERB = (
    r"(?!give up\b|let (?:me|us)\b)"
    rf"(?:{'|'.join(_LONGEST_FIRST)})\b(?![-'’])"
)

_FILLER = (
    r"(?:(?:ok(?:ay)?|yes|no|right|so|and|but|also|then|well|alright|great|good|important|note"
    r"|remember|reminder|nb|ps|fyi|btw|by the way|one more thing)\b[\s,:;.!–—-]*)*"
)
_PLEASE = (
    r"(?:please,?\s+|(?:make|be) sure (?:to|that you|you)\s+|remember(?: to)?:?\s+"
    r"|(?:you|we|everyone|all of us)\s+(?:must|should|shall|need to|have to)\s+"
    r"|i(?:'d like| want| need) you to\s+)*"
)
_THING = (
    r"(?!(?:it|this|that|them|these|those|him|her|some|to|up|a lot|lots|too|so"
    r"|more|less)\b)\S+"
)
# After "must not": a guess about how things are, or an error message.
_INFERRED = (
    r"(?:have|know|care|mind|happen|occur|matter|be (?:\w+ing|a|an|the|that|so|very"
    r"|true|right|easy|empty|null|blank|zero|negative|none|nil|undefined))\b"
)
_REPORTED = (
    r"(?:that|why|how|if|because|says?|said|means?|explain|tell|know|think|check|show|find"
    r"|whether|when|error|warning)\b"
)
_FORBIDS = r"(?:must(?: not|n['’]t| never)|should never)"

_RULES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_PLEASE}(?:do not |don['’]t |not )?(?:never|always)(?:,? ever)?,? {_VERB}",
        rf"(?:please )?(?:do not|don['’]t) ever {_VERB}",
        rf"we (?:never|always|only(?: ever)?) {_VERB}",
        rf"we(?:['’]ll| will| do| shall)? (?:use|be using) {_THING}",
        rf"we(?:['’]re| are) (?:using|going with|sticking with|sticking to) {_THING}",
        rf"we (?:do not|don['’]t|won['’]t|will not) use {_THING}",
        r"(?:we|i|the team|it was|it is|it['’]s)(?:['’]ve| have| has| had| just| been| already)*"
        r" (?:decided|agreed)"
        r" (?:to|on|that|against|not to|in favou?r of|we|never|always|the)\b",
        r"decided (?:to|on|that|against|not to|in favou?r of)\b",
        r"(?:decision|decided|rule|constraint|convention)(?: made)?: *\S",
        rf"(?:let['’]?s|let us|we['’]ll|we will|we shall) (?:go with|stick with|stick to) {_THING}",
        rf"let['’]?s use {_THING}",
        r"(?:from now on|from here on|going forward|from today on)\b",
        rf"(?!(?:it|this|that|there|he|she|they|i|which|who|what)\b)"
        rf"(?:(?!{_REPORTED})[\w`'’./-]+ ){{0,6}}?{_FORBIDS}(?! {_INFERRED}) \w",
    )
]
_HINTED = """
never|always|ever |we use|we'|we’|we are|we will|we shall|we do|we only|must|decided|agreed
|decision|rule|constraint|convention|let's|let’s|lets|let us|now on|here on|today on|going forward
"""
# Some of these is in every sentence that a rule fits: most texts need no closer look.
_HINTS = tuple(hint.strip("\n") for hint in _HINTED.split("|"))
_AT_END = re.compile(r"\bfrom (?:now|here) on[.!]*$", re.IGNORECASE)

_DOUBT = re.compile(
    r"\b(?:maybe|perhaps|probably|i (?:think|guess|suppose|believe|assume|wonder|doubt)|not sure"
    r"|unsure|no idea|or not|or should|(?:isn|aren|don|didn|wouldn|shouldn)['’]t (?:it|we|you|they)"
    r"|right\?|hypothetically|for example|e\.g\.|imagine|suppose|pretend|lol|haha|/s)",
    re.IGNORECASE,
)
_STORY = re.compile(
    r"^(?:if|when|whenever|while|once|unless|until|before|after|although|though|because|since"
    r"|as|what|why|how|who|where|which|whether|is|are|was|were|do|does|did|can|could|should"
    r"|would|will|have|has|had|am|may|might)\b(?!,? never\b)",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|„[^“\n]*“|(?<!\w)'[^'\n]*\s[^'\n]*'(?!\w)")
_FENCE = re.compile(
    r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_PASTED = re.compile(
    r"^(?:[>|<#{}\[\]/\\@+=$%;]|\s{4}|\t|[-=*_]{3,}|\d{4}-\d\d|\d+:\d\d|\[?\d{1,2}[/:]"
    r"|(?:ERROR|WARN(?:ING)?|INFO|DEBUG|FATAL|TRACE|Traceback|File \"|at \S+\()"
    r"|\w+(?:Error|Exception|Warning)\b|[\w.-]+@[\w.-]+[:$#]|--?\w+\s*$|\w+:\s*\{)"
)
_TAG = re.compile(r"\s*<([A-Za-z][\w-]*)>")
_BULLET = re.compile(r"^\s{0,3}(?:[-*+•]|\d{1,2}[.)])\s+(?:\[[ xX]\]\s+)?")
_ENDS = re.compile(r"(?<=[.!?…])[\"')\]]*\s+(?=[\w`\"'“(])|;\s+")
_LEADING = re.compile(_FILLER, re.IGNORECASE)


def find_decisions(text: str) -> tuple[str, ...]:
    """The decisions that this message states, at most five, each on one line."""
    text = text[:SCANNED_CHARS]
    if not _is_hinted(text):
        return ()
    found: dict[str, str] = {}
    for line in _own_lines(_FENCE.sub("\n\n", text)):
        for sentence in _ENDS.split(_BULLET.sub("", line).strip()):
            decision = _decision(sentence) if _is_hinted(sentence) else ""
            if decision:
                found.setdefault(decision.casefold(), decision)
            if len(found) == MAX_DECISIONS_IN_MESSAGE:
                return tuple(found.values())
    return tuple(found.values())


def _is_hinted(text: str) -> bool:
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)


def _own_lines(text: str) -> Iterator[str]:
    paragraphs: list[list[str]] = [[]]
    end = ""
    for line in text.splitlines():
        # What programs put between tags that stand on lines of their own is left out.
        if end:
            end = "" if end in line else end
        elif (tag := _TAG.match(line)) and f"</{tag[1]}>" not in line:
            end = f"</{tag[1]}>"
        elif line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    paragraphs = [lines for lines in paragraphs if lines]
    if sum(map(len, paragraphs)) > LONG_LINES:
        ends = paragraphs[:1] + paragraphs[1:][-1:]
        paragraphs = [lines for lines in ends if len(lines) <= SHORT_PARAGRAPH]
    return (line for lines in paragraphs for line in lines if not _PASTED.match(line))


def _decision(sentence: str) -> str:
    if sentence.rstrip("\"')] ").endswith("?") or len(sentence) > MAX_SENTENCE_CHARS:
        return ""
    said = sentence[_LEADING.match(sentence).end() :].strip()  # type: ignore[union-attr]
    bare = _QUOTED.sub("…", said)
    if not (any(rule.match(bare) for rule in _RULES) or _AT_END.search(bare)):
        return ""
    if len(bare.split()) < MIN_SENTENCE_WORDS or _STORY.match(bare) or _DOUBT.search(bare):
        return ""
    return one_line(said.strip(" *_").rstrip(".!;,: *_"), limit=ITEM_CHARS)


# What a shell command means to the register: when two try the same thing, what a commit says,
# and which line of an output tells the error.
COMMAND_CHARS, LINE_CHARS = 60, 80
SCANNED_OUTPUT_CHARS = 8_000  # Of an output: so much of its beginning, and of its end.


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Programs whose failure says that nothing was found, not that something is wrong.
_LOOKING = _set(
    "awk cat cd command curl diff dir du echo egrep env fd file find grep head jq ls printf ps"
    " pwd rg sed stat tail test tree true type wc which whoami ["
)

_LOOKING_GIT = _set("blame branch diff grep log ls-files rev-parse show status")
_WRAPPERS = _set("command env exec hatch nice nohup pdm pipenv poetry sudo time uv")
# Programs for which a run over more proves a run over less.
_CHECKERS = _set(
    "cargo dotnet eslint flake8 go gradle jest make mocha mvn mypy nox npm phpunit pnpm pylint"
    " pyright pytest rspec ruff tox tsc vitest yarn"
)

_SEGMENT = re.compile(r"\s*(?:&&|\|\||;|\n)\s*")
_REDIRECT = re.compile(r"\d?>>?&?\s*\S*|<\s*\S+")
_ASSIGNMENT = re.compile(r"\w+=")
_COMMIT_TEXT = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n\s*(.+?)\s*(?:\n|$)")
_ERROR_NAME = re.compile(
    r"^(?:E\s+)?((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)\b:?.*)$"
)
_ERROR_WORD = re.compile(
    r"\b(?:error|fatal|failed|failure|panic|cannot|not found|no such)\b", re.IGNORECASE
)
_EXIT = re.compile(
    r"^\W*(?:the |process |command |failed |with )*(?:exit(?:ed|_code)?|return(?:ed)?[ _]?code)"
    r"(?: with| by)?(?: non-zero)?(?: (?:code|status))?\W*[:= ]\s*(-?\d+)\W*$",
    re.IGNORECASE,
)


def command_key(command: str) -> str:
    """Equal for two commands that try the same thing; empty where a failure would
    not be an error. Of a sequence the last command counts, which does the work, without
    options, redirections, and what changes the folder or wraps it."""
    words: list[str] = []
    for segment in reversed(_SEGMENT.split(command.strip()[:2000])):
        segment = _REDIRECT.sub(" ", segment.split("|")[0])
        words = _split_words(segment) or segment.split()
        while words and (_ASSIGNMENT.match(words[0]) or words[0] in _WRAPPERS):
            words = words[2:] if words[:2] == ["uv", "run"] or words[1:2] == ["run"] else words[1:]
        if len(words) > 2 and re.fullmatch(r"python[\d.]*|py", words[0]) and words[1] == "-m":
            words = words[2:]
        if words and words[0] not in ("cd", "true", "echo"):
            break
        words = []
    words = words[:1] + [word for word in words[1:] if not word.startswith("-")]
    if not words or words[0] in _LOOKING:
        return ""
    if words[0] == "git" and not _LOOKING_GIT.isdisjoint(words[1:2]):
        return ""
    return one_line(" ".join(words), limit=ITEM_CHARS)


def _split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


def covers(done: str, failed: str) -> bool:
    """Whether success of the command ``done`` settles failure of ``failed`` (keys)."""
    if done == failed:
        return bool(done)
    program, *asked = done.split(" ")
    return (
        program in _CHECKERS
        and failed.split(" ")[0] == program
        and set(asked) <= set(failed.split(" ")[1:])
    )


def short_command(command: str) -> str:
    """A command as it is named in a sentence."""
    words = [part for part in _SEGMENT.split(command.strip()) if not part.startswith("cd ")]
    return one_line(" && ".join(words).replace("`", "'"), limit=COMMAND_CHARS)


def commit_message(command: str) -> str:
    """The first line of the message of a ``git commit`` in this command, else empty."""
    if "commit" not in command:
        return ""
    here = _COMMIT_TEXT.search(command)
    if here and "git commit" in command:
        return one_line(here[2], limit=ITEM_CHARS)
    words = _split_words(command[:20_000])
    for place in (place for place, word in enumerate(words) if word == "commit"):
        before = words[:place]
        # What stands between: git [-C folder] [-c x=y] commit
        while before and (before[-1].startswith("-") or before[-2:-1] in (["-C"], ["-c"])):
            before.pop()
        if before and before[-1] in ("git", "/usr/bin/git"):
            return one_line(_message_of(words[place + 1 :]).split("\n")[0], limit=ITEM_CHARS)
    return ""


def _message_of(words: Sequence[str]) -> str:
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word in ("&&", ";", "||"):
            break
        if word == "--message" or re.fullmatch(r"-[a-z]*m", word):
            return following.strip()
        if given := re.match(r"--message=|-m(?=\S)", word):
            return word[given.end() :].strip()
    return ""


def exit_code(output: str) -> int | None:
    """The exit code that the first or the last line of an output reports."""
    lines = output[:200].lstrip().split("\n", 1)[:1] + output[-200:].rstrip().rsplit("\n", 1)[-1:]
    found = [match for line in lines if (match := _EXIT.match(line.strip()))]
    return int(found[-1][1]) if found else None


def error_line(output: str) -> str:
    """The line that says what went wrong."""
    text = output
    if len(output) > 2 * SCANNED_OUTPUT_CHARS:
        text = f"{output[:SCANNED_OUTPUT_CHARS]}\n{output[-SCANNED_OUTPUT_CHARS:]}"
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _EXIT.match(line)]
    named = [match[1] for line in lines if (match := _ERROR_NAME.match(line))]
    worded = [line for line in lines if _ERROR_WORD.search(line)]
    best = named[-1:] or worded[:1] or lines[-1:]
    return one_line(best[0], limit=LINE_CHARS) if best else ""
