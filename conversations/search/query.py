"""Parsing of search queries, and snippets that show where a text matches.

Texts are split into the same tokens as in the index.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from conversations.domain.search_tokens import (
    ENGLISH,
    STOP_WORDS,
    find_parts,
    find_words,
    read_tokens,
    tokens_of_word,
)
from conversations.domain.text import one_line
from conversations.domain.turns import ROLES

from .dates import find_dates

# The rest of a longer query is ignored. A question has far fewer words.
MAX_CHARS, MAX_TOKENS, MAX_LIGHT_TOKENS, MAX_PHRASES = 20_000, 40, 12, 8

# The values of ``in:``, and the part of an entry that each means.
SCOPES = {"text": "said", "tool": "tools", "path": "paths"}
SCOPES |= {scope: scope for scope in SCOPES.values()}

STOP_TOKENS = frozenset(token for word in STOP_WORDS for token in read_tokens(word))

# Words that tell which kind of question it is (docs/search.md).
SUMMARY, COURSE, PRESENT = (
    frozenset(read_tokens(ENGLISH[kind])) for kind in ("summary", "course", "present")
)

_PART = re.compile(
    r"""(?<!\S)(?P<key>role|tool|model|is|before|after|in):(?:"(?P<quoted>[^"]*)"|(?P<value>[^\s"]+))"""
    r"""|["“”„](?P<phrase>[^"“”„]*)["“”]""",
    re.IGNORECASE,
)
_SLUG = re.compile(r"[A-Za-z0-9][\w-]*")
_DAY = re.compile(r"\d{4}-\d{1,2}(-\d{1,2})?")


@dataclass(frozen=True, slots=True)
class Term:
    text: str
    tokens: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SearchQuery:
    """A parsed query. Any of ``words`` may match, and each of ``phrases`` must match.

    A turn passes the filters if it is of one of the ``roles``, has one of the ``tools``, is by one
    of the ``models``, is an error if ``is_error`` is set, matches in one of the ``scopes``, is in
    one of the ``workspaces`` (slugs), and lies between the bounds. A filter that is empty or None
    lets every turn pass. ``from_turn`` and ``from_moment`` are inclusive, ``before_turn`` and
    ``before_moment`` are exclusive.

    ``dates`` matches the marks of turns from times that the words name. It is not a filter.
    ``question`` is the query as it was written, without the filters."""

    question: str = ""
    words: tuple[Term, ...] = ()
    phrases: tuple[Term, ...] = ()
    roles: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    is_error: bool = False
    scopes: tuple[str, ...] = ()
    workspaces: tuple[str, ...] = ()
    from_turn: int | None = None
    before_turn: int | None = None
    from_moment: datetime | None = None
    before_moment: datetime | None = None
    dates: re.Pattern[str] | None = None

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The distinct tokens of the words, without stop words unless there are only stop words."""
        return _significant_tokens(self.words)

    @cached_property
    def all_tokens(self) -> tuple[str, ...]:
        return _significant_tokens((*self.words, *self.phrases))

    @cached_property
    def light_tokens(self) -> tuple[str, ...]:
        """The distinct tokens of the words that ``tokens`` leaves out because they say little."""
        distinct = dict.fromkeys(token for term in self.words for token in term.tokens)
        return tuple(t for t in distinct if t not in self.all_tokens)[:MAX_LIGHT_TOKENS]

    @property
    def has_words(self) -> bool:
        return bool(self.words or self.phrases)

    def asks_for(self, kind: frozenset[str]) -> bool:
        """Return whether the query has a word of ``kind``, one of the sets of tokens above."""
        return any(not kind.isdisjoint(word.tokens) for word in self.words)

    @property
    def has_filters(self) -> bool:
        bounds = (self.from_turn, self.before_turn, self.from_moment, self.before_moment)
        filters = (self.roles, self.tools, self.models, self.scopes, self.workspaces)
        return self.is_error or any(filters) or any(bound is not None for bound in bounds)


def _significant_tokens(terms: Iterable[Term]) -> tuple[str, ...]:
    distinct = dict.fromkeys(token for term in terms for token in term.tokens)
    significant = [token for token in distinct if token not in STOP_TOKENS]
    return tuple((significant or list(distinct))[:MAX_TOKENS])


def parse_query(text: str) -> SearchQuery:
    """Parse a query. Any text is valid; see ``docs/search.md``."""
    text = text[:MAX_CHARS]
    fields: dict[str, Any] = {}
    phrases, unquoted, end = [], [], 0
    for match in _PART.finditer(text):
        unquoted.append(text[end : match.start()])
        end = match.end()
        if match["phrase"] is not None:
            phrases.append(match["phrase"])
            continue
        value = match["value"] if match["quoted"] is None else match["quoted"]
        name, field_value = _read_filter(match["key"].lower(), value)
        if not name:
            unquoted.append(match.group())
        elif isinstance(field_value, str):
            fields[name] = tuple(dict.fromkeys((*fields.get(name, ()), field_value)))
        else:
            fields[name] = field_value
    unquoted.append(text[end:])
    quoted = [Term(text.strip(), tuple(read_tokens(text))[:MAX_TOKENS]) for text in phrases]
    return SearchQuery(
        question=" ".join([*unquoted, *phrases]).strip(),
        phrases=tuple(term for term in dict.fromkeys(quoted) if term.tokens)[:MAX_PHRASES],
        **_read_words(unquoted),
        **fields,
    )


def make_query(text: str) -> SearchQuery:
    """Return a query for a text that was not written as a query.

    It consists of the words of the text, even if they are quoted or look like a filter."""
    text = text[:MAX_CHARS]
    return SearchQuery(question=text.strip(), **_read_words([text]))


def _read_words(texts: list[str]) -> dict[str, Any]:
    words: dict[tuple[str, ...], Term] = {}
    for text in texts:
        for word in find_words(text):
            tokens = tokens_of_word(word.group())
            if tokens:
                words.setdefault(tokens, Term(word.group(), tokens))
    dates = find_dates(" ".join(texts), today=datetime.now(tz=UTC).date())
    return {"words": tuple(words.values()), "dates": dates}


def _read_filter(key: str, value: str) -> tuple[str, str | bool | int | datetime]:
    """Return the query field that a filter sets, and its value.

    The name is empty if the text is not a filter."""
    lower = value.lower()
    if key == "role" and lower in ROLES:
        return "roles", lower
    if key in ("tool", "model") and value.strip():
        return f"{key}s", value
    if key == "is" and lower == "error":
        return "is_error", True
    if key == "in" and lower in SCOPES:
        return "scopes", SCOPES[lower]
    if key == "in" and _SLUG.fullmatch(value):
        return "workspaces", lower
    if key not in ("after", "before"):
        return "", ""
    side = "from" if key == "after" else "before"
    if value.isascii() and value.isdigit() and len(value) <= 18:
        return f"{side}_turn", int(value) + (key == "after")
    try:
        if _DAY.fullmatch(value):  # A day or a month stands for its beginning.
            year, month, day = [*map(int, value.split("-")), 1][:3]
            return f"{side}_moment", datetime(year, month, day, tzinfo=UTC)
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return f"{side}_moment", moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return "", ""


MAX_READ_CHARS = 8000  # A tool may have returned a megabyte.

type Span = tuple[int, int]

LEAD_SHARE = 0.25  # The share of a snippet before its first match.


def mark_words(text: str, query: SearchQuery) -> list[tuple[str, bool]]:
    """Split the text into pieces, each with True if it matches."""
    pieces: list[tuple[str, bool]] = []
    end = 0
    for low, high in sorted(_find_spans(text, query)):
        if high <= end:
            continue
        if pieces and low <= end:
            pieces[-1] = (pieces[-1][0] + text[end:high], True)
        else:
            pieces += [(text[end:low], False), (text[low:high], True)]
        end = high
    pieces.append((text[end:], False))
    return [piece for piece in pieces if piece[0]]


def snippet(text: str, query: SearchQuery, *, limit: int) -> str:
    """Return the part of the text with the most different matches, on one line.

    It has at most ``limit`` characters. If there is no match, it is the beginning of the text."""
    low, high = 0, len(text)
    if len(text) > MAX_READ_CHARS:
        # In a long text, read the part around the longest token of the query that it contains
        # literally.
        folded = text.lower()
        phrased = [token for phrase in query.phrases for token in phrase.tokens]
        tokens = sorted({*query.tokens, *phrased}, key=lambda token: (-len(token), token))
        index = next((index for index in map(folded.find, tokens) if index >= 0), None)
        if index is not None:
            low = max(0, index - MAX_READ_CHARS // 4)
            high = low + MAX_READ_CHARS
    spans = [(low + begin, low + end) for begin, end in sorted(_find_spans(text[low:high], query))]
    if not spans or len(text) <= limit:
        return one_line(text, limit=limit)
    begin = max(0, _find_densest(text, spans, limit) - int(limit * LEAD_SHARE))
    if begin > 0:  # Start at the next word if it is near.
        near = range(begin, min(begin + 20, len(text)))
        begin = next((index + 1 for index in near if text[index].isspace()), begin)
    lead = "…" if begin > 0 else ""
    return lead + one_line(text[begin:], limit=max(1, limit - len(lead)))


def _find_spans(text: str, query: SearchQuery) -> list[Span]:
    tokens_of_query = set(query.tokens)
    parts = list(find_parts(text))
    spans = [(low, high) for low, high, tokens in parts if not tokens_of_query.isdisjoint(tokens)]
    tokens_at = [(token, (low, high)) for low, high, tokens in parts for token in tokens]
    for phrase in query.phrases:
        recent = deque[tuple[str, Span]](maxlen=len(phrase.tokens))
        for token_at in tokens_at:
            recent.append(token_at)
            if tuple(token for token, _ in recent) == phrase.tokens:
                spans += [span for _, span in recent]
    return spans


def _find_densest(text: str, spans: list[Span], limit: int) -> int:
    width = int(limit * (1 - LEAD_SHARE))
    recent: deque[tuple[int, str]] = deque()
    counts: Counter[str] = Counter()
    best, start = 0, spans[0][0]
    for low, high in spans:
        word = text[low:high].casefold()
        recent.append((low, word))
        counts[word] += 1
        while high - recent[0][0] > width and len(recent) > 1:
            _, left_word = recent.popleft()
            counts[left_word] -= 1
            if not counts[left_word]:
                del counts[left_word]
        if len(counts) > best:
            best, start = len(counts), recent[0][0]
    return start
