"""Showing where a text matches a query, by the very words of the index."""

import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from conversations.domain.text import one_line
from conversations.domain.turns import ROLES
from conversations.domain.words import (
    STOP_WORDS,
    find_parts,
    find_words,
    read_tokens,
    tokens_of_word,
)

# What somebody looks for, read from any text.


# Beyond these a query goes on unread; a question has a handful of words.
MAX_CHARS, MAX_TOKENS, MAX_LIGHT_TOKENS, MAX_PHRASES = 20_000, 40, 12, 8

# What ``in:`` may name, and the part of an entry that it means.
SCOPES = {
    "text": "said",
    "said": "said",
    "tool": "tools",
    "tools": "tools",
    "path": "paths",
    "paths": "paths",
}

STOP_TOKENS = frozenset(token for word in STOP_WORDS for token in read_tokens(word))

_PART = re.compile(
    r"""(?<!\S)(?P<key>role|tool|model|is|before|after|in):(?:"(?P<quoted>[^"]*)"|(?P<value>[^\s"]+))"""
    r"""|["“”„](?P<phrase>[^"“”„]*)["“”]""",
    re.IGNORECASE,
)
_SLUG = re.compile(r"[A-Za-z0-9][\w-]*")
_DAY = re.compile(r"\d{4}-\d{1,2}(-\d{1,2})?")


@dataclass(frozen=True, slots=True)
class Term:
    """A word or phrase as written, and its tokens."""

    text: str
    tokens: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SearchQuery:
    """Any of ``words`` may match, each of ``phrases`` has to. A turn passes the
    filters when it is of one of the ``roles``, has one of the ``tools``, is by one of
    the ``models``, is an error where ``is_error`` is set, matches in one of the
    ``scopes``, is in one of the ``workspaces`` (slugs), and lies between the bounds; a
    filter that is empty or None lets everything pass. ``from_turn`` and ``from_moment``
    are included, ``before_turn`` and ``before_moment`` are not."""

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

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The distinct tokens of the words: those that say something, if any do."""
        return _telling(self.words)

    @cached_property
    def all_tokens(self) -> tuple[str, ...]:
        """The same of words and phrases."""
        return _telling((*self.words, *self.phrases))

    @cached_property
    def light_tokens(self) -> tuple[str, ...]:
        """The tokens that are left out of these because they say little."""
        distinct = dict.fromkeys(token for term in self.words for token in term.tokens)
        return tuple(t for t in distinct if t not in self.all_tokens)[:MAX_LIGHT_TOKENS]

    @property
    def has_words(self) -> bool:
        return bool(self.words or self.phrases)

    @property
    def has_filters(self) -> bool:
        bounds = (self.from_turn, self.before_turn, self.from_moment, self.before_moment)
        filters = (self.roles, self.tools, self.models, self.scopes, self.workspaces)
        return self.is_error or any(filters) or any(bound is not None for bound in bounds)


def _telling(terms: Iterable[Term]) -> tuple[str, ...]:
    distinct = dict.fromkeys(token for term in terms for token in term.tokens)
    telling = [token for token in distinct if token not in STOP_TOKENS]
    return tuple((telling or list(distinct))[:MAX_TOKENS])


@dataclass(slots=True)
class _Filters:
    roles: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    is_error: bool = False
    scopes: list[str] = field(default_factory=list)
    workspaces: list[str] = field(default_factory=list)
    bounds: dict[str, int | datetime] = field(default_factory=dict)

    def take(self, key: str, value: str) -> bool:
        """False: this is no filter."""
        if key == "role":
            return _add(self.roles, value.lower(), value.lower() in ROLES)
        if key == "tool":
            return _add(self.tools, value, bool(value.strip()))
        if key == "model":
            return _add(self.models, value, bool(value.strip()))
        if key == "is":
            self.is_error |= value.lower() == "error"
            return value.lower() == "error"
        if key == "in":
            scope = SCOPES.get(value.lower())
            if scope:
                return _add(self.scopes, scope, True)
            return _add(self.workspaces, value.lower(), bool(_SLUG.fullmatch(value)))
        side = "from" if key == "after" else "before"
        if value.isascii() and value.isdigit() and len(value) <= 18:
            self.bounds[f"{side}_turn"] = int(value) + (key == "after")
            return True
        moment = _read_moment(value)
        if moment is not None:
            self.bounds[f"{side}_moment"] = moment
        return moment is not None


def _add(values: list[str], value: str, is_one: bool) -> bool:
    if is_one and value not in values:
        values.append(value)
    return is_one


def parse_query(text: str) -> SearchQuery:
    """Any text is a query; see ``docs/search.md``."""
    text = text[:MAX_CHARS]
    filters, phrases, plain, end = _Filters(), [], [], 0
    for match in _PART.finditer(text):
        plain.append(text[end : match.start()])
        end = match.end()
        if match["key"]:
            value = match["quoted"] if match["quoted"] is not None else match["value"]
            if not filters.take(match["key"].lower(), value):
                plain.append(match.group())
        else:
            phrases.append(match["phrase"])
    plain.append(text[end:])
    words: dict[tuple[str, ...], Term] = {}
    for found in (found for part in plain for found in find_words(part)):
        if tokens := tokens_of_word(found.group()):
            words.setdefault(tokens, Term(found.group(), tokens))
    quoted = [Term(text.strip(), tuple(read_tokens(text))[:MAX_TOKENS]) for text in phrases]
    return SearchQuery(
        words=tuple(words.values()),
        phrases=tuple(term for term in dict.fromkeys(quoted) if term.tokens)[:MAX_PHRASES],
        roles=tuple(filters.roles),
        tools=tuple(filters.tools),
        models=tuple(filters.models),
        is_error=filters.is_error,
        scopes=tuple(filters.scopes),
        workspaces=tuple(filters.workspaces),
        **filters.bounds,  # type: ignore[arg-type]
    )


def _read_moment(value: str) -> datetime | None:
    """A day (its beginning), a month (its beginning) or a moment; UTC where the
    text does not say."""
    if _DAY.fullmatch(value):
        parts = [int(part) for part in value.split("-")]
        try:
            return datetime(*[*parts, 1][:3], tzinfo=UTC)  # type: ignore[misc,arg-type]
        except ValueError:
            return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        return None


READ = 8000  # Characters of a long text that are looked at; a tool may have returned a megabyte.

type Span = tuple[int, int]

LEAD = 0.25  # The share of a snippet that comes before its first match.


def mark_words(text: str, query: SearchQuery | str) -> list[tuple[str, bool]]:
    """The text in pieces, True for those that match. Joined they are the text."""
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


def snippet(text: str, query: SearchQuery | str, *, limit: int) -> str:
    """The part of the text with the most different matches, on one line, at most
    ``limit`` characters; its beginning if nothing matches."""
    asked = parse_query(query) if isinstance(query, str) else query
    low, high = _telling_part(text, asked)
    spans = [(low + begin, low + end) for begin, end in sorted(_find_spans(text[low:high], asked))]
    if not spans or len(text) <= limit:
        return one_line(text, limit=limit)
    begin = max(0, _densest(text, spans, limit) - int(limit * LEAD))
    if begin > 0:  # the beginning of the next word, if it is near
        near = range(begin, min(begin + 20, len(text)))
        begin = next((at + 1 for at in near if text[at].isspace()), begin)
    lead = "…" if begin > 0 else ""
    return lead + one_line(text[begin:], limit=max(1, limit - len(lead)))


def _telling_part(text: str, query: SearchQuery) -> Span:
    """Where to look for the best part of a text: all of it, but in a long one around
    the longest word of the query that stands there as the index writes it."""
    if len(text) > READ:
        folded = text.lower()
        phrased = [token for phrase in query.phrases for token in phrase.tokens]
        for token in sorted({*query.tokens, *phrased}, key=lambda token: (-len(token), token)):
            at = folded.find(token)
            if at >= 0:
                low = max(0, at - READ // 4)
                return low, low + READ
    return 0, len(text)


def _find_spans(text: str, query: SearchQuery | str) -> list[Span]:
    asked = parse_query(query) if isinstance(query, str) else query
    wanted = set(asked.tokens)
    parts = list(find_parts(text))
    spans = [(low, high) for low, high, tokens in parts if not wanted.isdisjoint(tokens)]
    tokens_at = [(token, (low, high)) for low, high, tokens in parts for token in tokens]
    for phrase in asked.phrases:
        last = deque[tuple[str, Span]](maxlen=len(phrase.tokens))
        for token_at in tokens_at:
            last.append(token_at)
            if tuple(token for token, _ in last) == phrase.tokens:
                spans += [span for _, span in last]
    return spans


def _densest(text: str, spans: list[Span], limit: int) -> int:
    """Where the window begins that has the most different words of the query."""
    room = int(limit * (1 - LEAD))
    within: deque[tuple[int, str]] = deque()
    counts: Counter[str] = Counter()
    best, at = 0, spans[0][0]
    for low, high in spans:
        word = text[low:high].casefold()
        within.append((low, word))
        counts[word] += 1
        while high - within[0][0] > room and len(within) > 1:
            _, gone = within.popleft()
            counts[gone] -= 1
            if not counts[gone]:
                del counts[gone]
        if len(counts) > best:
            best, at = len(counts), within[0][0]
    return at
