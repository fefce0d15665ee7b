"""What somebody looks for, read from any text.

``docs/search.md`` has the language. There are no mistakes in it: what is no filter
is a word, a quotation mark without its other half is left out.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from .turns import ROLES
from .word_lists import STOP_WORDS
from .words import find_words, read_tokens, tokens_of_word

MAX_CHARS, MAX_TOKENS, MAX_LIGHT_TOKENS, MAX_PHRASES = 20_000, 40, 12, 8
"""Beyond these a query goes on unread; a question has a handful of words."""

SCOPES = {
    "text": "said",
    "said": "said",
    "tool": "tools",
    "tools": "tools",
    "path": "paths",
    "paths": "paths",
}
"""What ``in:`` may name, and the part of an entry that it means."""

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
        return self._take_bound(key, value)

    def _take_bound(self, key: str, value: str) -> bool:
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
    return SearchQuery(
        words=tuple(_read_words(plain)),
        phrases=tuple(_read_phrases(phrases)),
        roles=tuple(filters.roles),
        tools=tuple(filters.tools),
        models=tuple(filters.models),
        is_error=filters.is_error,
        scopes=tuple(filters.scopes),
        workspaces=tuple(filters.workspaces),
        **filters.bounds,  # type: ignore[arg-type]
    )


def _read_words(texts: Iterable[str]) -> Iterator[Term]:
    seen: set[tuple[str, ...]] = set()
    for text in texts:
        for match in find_words(text):
            tokens = tokens_of_word(match.group())
            if tokens and tokens not in seen:
                seen.add(tokens)
                yield Term(match.group(), tokens)


def _read_phrases(texts: Iterable[str]) -> list[Term]:
    terms = [Term(text.strip(), tuple(read_tokens(text))[:MAX_TOKENS]) for text in texts]
    return [term for term in dict.fromkeys(terms) if term.tokens][:MAX_PHRASES]


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
