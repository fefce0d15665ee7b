"""Recognition of rules, decisions and preferences in a person's message.

Precision matters more than completeness. Only sentences that begin as a rule or a decision count,
and clauses that say what the person prefers. Doubts, stories, and quoted or pasted text do not
count. Questions count only for the preferences that they mention. The patterns are data, one table
for each language (``languages``).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise

from conversations.domain.text import one_line

from . import DECISION, MAX_ITEM_CHARS, PREFERENCE, RULE
from .languages import Language, read_languages

MAX_STATEMENTS_IN_MESSAGE, MAX_SENTENCE_CHARS, MIN_SENTENCE_WORDS = 5, 400, 3
MAX_PREFERENCE_SENTENCE_CHARS = 1_500  # Such a sentence often continues with a task.
MAX_LEAD_CHARS = 40  # Of a preference with its lead. The lead of a longer one is left out.

# A message with more lines is mostly pasted. Only its first and last paragraphs count, and only if
# they are short.
SCANNED_CHARS, MAX_TYPED_LINES, MAX_PARAGRAPH_LINES = 10_000, 40, 6

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
_ENDS = re.compile(r"(?<=[.!?…])[\"')\]]*\s+(?=[\w`\"'“(])|;\s+|(?<=[。！？])")
_QUESTION = re.compile(r"[?？][\"')\]\s]*$")
_DENSE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")


def find_statements(text: str) -> tuple[tuple[str, str], ...]:
    """Return kind and text of the message's statements, at most five, each text on one line."""
    languages = _languages_of(text)
    if not languages:
        return ()
    found: dict[str, tuple[str, str]] = {}
    is_task: dict[int, bool] = {}
    for sentence in read_sentences(text):
        for language in languages:
            if id(language) not in is_task:
                is_task[id(language)] = bool(language.task.search(text[:SCANNED_CHARS]))
            for kind, statement in _read_sentence(
                sentence, language, is_task=is_task[id(language)]
            ):
                found.setdefault(statement.casefold(), (kind, statement))
            if len(found) >= MAX_STATEMENTS_IN_MESSAGE:
                return tuple(found.values())[:MAX_STATEMENTS_IN_MESSAGE]
    return tuple(found.values())


def _languages_of(text: str) -> list[Language]:
    # Every message is searched for hundreds of hints. A generator expression takes three times as
    # long as ``map``.
    has = text[:SCANNED_CHARS].lower().__contains__
    return [language for language in read_languages() if any(map(has, language.hints))]


def read_sentences(text: str) -> Iterator[str]:
    """Yield the sentences at the beginning of a message that are the person's own."""
    lines = [*_untagged(_FENCE.sub("\n\n", text[:SCANNED_CHARS]))]
    for line in _own_lines(lines[: _mail_start(lines)]):
        yield from _ENDS.split(_BULLET.sub("", line).strip())


def _untagged(text: str) -> Iterator[str]:
    """Yield the lines that are not between tags on lines of their own, which programs insert."""
    end = ""
    for line in text.splitlines():
        if end:
            end = "" if end in line else end
        elif (tag := _TAG.match(line)) and f"</{tag[1]}>" not in line:
            end = f"</{tag[1]}>"
        else:
            yield line


def _mail_start(lines: Sequence[str]) -> int | None:
    """Return the index of the first of two lines that are the top of a mail, or None.

    A single such line may be the person's own.
    """
    for index, pair in enumerate(pairwise(lines)):
        heads = [_mail_line().match(line) for line in pair]
        if all(heads) and any(head and (head[1] or "@" in head.string) for head in heads):
            return index
    return None


@cache
def _mail_line() -> re.Pattern[str]:
    """Return a pattern for a line at the top of a mail.

    Its group matches the name of a line that does not name people.
    """
    languages = read_languages()
    people = "|".join(name for language in languages for name in language.mail_people)
    names = "|".join(name for language in languages for name in language.mail_headers)
    return re.compile(rf"[ \t]*\**(?:{people}|({names}))\**[ \t\xa0]*[:：]", re.IGNORECASE)


def _own_lines(lines: Iterable[str]) -> Iterator[str]:
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    paragraphs = [lines for lines in paragraphs if lines]
    if sum(map(len, paragraphs)) > MAX_TYPED_LINES:
        ends = paragraphs[:1] + paragraphs[1:][-1:]
        paragraphs = [lines for lines in ends if len(lines) <= MAX_PARAGRAPH_LINES]
    return (line for lines in paragraphs for line in lines if not _PASTED.match(line))


def _read_sentence(
    sentence: str, language: Language, *, is_task: bool
) -> Iterator[tuple[str, str]]:
    if not sentence or len(sentence) > MAX_PREFERENCE_SENTENCE_CHARS:
        return
    if len(sentence) <= MAX_SENTENCE_CHARS and not _QUESTION.search(sentence):
        inner = language.inner.search(sentence)
        parts = [sentence]
        if inner and inner.end() < len(sentence):
            parts.append(sentence[inner.end() :])
        for part in parts:
            kind = _kind_of_statement(part, language, is_task=is_task)
            if kind:
                statement = part[language.filler.match(part).end() :]  # type: ignore[union-attr]
                yield kind, one_line(_bare_end(statement), limit=MAX_ITEM_CHARS)
                return
    preference = _find_preference(sentence, language)
    if preference:
        yield PREFERENCE, preference


def _bare_end(text: str) -> str:
    return text.strip(" *_").rstrip(".!;,:。！… *_")


def _kind_of_statement(sentence: str, language: Language, *, is_task: bool) -> str:
    """Return whether the sentence is a rule or a decision, or an empty text for neither."""
    said = sentence[language.filler.match(sentence).end() :].strip()  # type: ignore[union-attr]
    bare = _bare_end(_QUOTED.sub("…", said))
    is_long_enough = len(bare.split()) >= MIN_SENTENCE_WORDS or len(_DENSE.findall(bare)) > 3
    if not is_long_enough or language.doubt.search(bare):
        return ""
    if language.conditional.match(bare):
        return RULE
    if language.story.match(bare):
        return ""
    if language.strong.match(bare):
        return RULE
    if language.decisions.match(bare):
        return DECISION
    is_weak = language.weak.match(bare) or (not is_task and language.alone.match(bare))
    return RULE if is_weak and not language.once.search(bare) else ""


def _find_preference(sentence: str, language: Language) -> str:
    """Return the clause that says what the person prefers, with its reason if there is room."""
    lowered = sentence.lower()
    if not any(hint in lowered for hint in language.preference_hints):
        return ""
    bare = _QUOTED.sub(lambda quoted: "…" * len(quoted[0]), sentence)
    match = language.preferences.search(bare)
    if match is None:
        return ""
    is_named = language.named.match(bare, match.start()) is not None
    if not is_named and language.asked.search(bare[: match.start()]):
        return ""
    end = language.ends.search(bare, match.end() + 3)
    clause = sentence[: end.start()] if end else sentence
    lead = min(language.filler.match(clause).end(), match.start())  # type: ignore[union-attr]
    is_before = language.refers.search(match[0]) or language.refers.match(bare, match.end())
    if len(clause) - lead > MAX_LEAD_CHARS:
        # Leave out the lead, unless it names the thing that the person prefers.
        first = len(clause) - MAX_ITEM_CHARS + 1
        if not is_before:
            lead = match.start()
        elif first > lead:
            lead = clause.find(" ", first, match.start()) + 1
    if lead == match.start() and is_before:
        return ""
    if is_named:
        lead, clause = 0, language.named.sub(language.says, clause[match.start() :], count=1)
        clause = language.named_ends.split(clause, maxsplit=1)[0]
    text = _bare_end(clause[lead:].lstrip(" ,;")).rstrip("?？ ")
    is_enough = len(text.split()) >= language.preference_words or len(_DENSE.findall(text)) > 3
    return one_line(text, limit=MAX_ITEM_CHARS) if is_enough else ""
