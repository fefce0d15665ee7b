"""What a search found, as its pages show it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import groupby

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from conversations.archive.search import SearchQuery, Surroundings, TurnHit, mark_words, snippet
from conversations.models import Session

from .access import record_reading

SNIPPET = 320
"""Characters of a hit that are shown."""

BEST = 200
"""From so many matches on, not all may be among the best that are put in order."""

_SPEAKERS = {"user": "Person", "assistant": "Assistant", "system": "System"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HitPages:
    """Names of the URLs of a session and of a turn, and how reading there is entered."""

    session: str
    turn: str
    note: Callable[[HttpRequest, Iterable[Session]], None]


CHAT_PAGES = HitPages(session="session", turn="turn", note=record_reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResultRow:
    """A hit as the page shows it. ``text`` is HTML: its snippet, marked where it matches,
    between the turns next to it. What a page has hundreds of is put together here; a
    template takes many times as long."""

    turn: int
    url: str
    speaker: str
    moment: str
    written: str
    text: SafeString
    replaced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGroup:
    """Hits of one session that follow each other. ``owner`` is empty for one's own."""

    title: str
    url: str
    workspace: str
    owner: str
    archived: bool
    expired: bool
    hits: list[SearchResultRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A page of hits. ``more`` is the query string of the next one, if there is one;
    ``missing`` are words that match nothing. ``newest`` is the query string of the
    same in the order of time, if this is not."""

    groups: list[FoundGroup]
    total: int
    total_is_bound: bool
    missing: tuple[str, ...]
    more: str
    is_first: bool
    newest: str

    @property
    def is_cut(self) -> bool:
        """It ends here, but there may be more: only the best are put in order."""
        return not self.more and bool(self.newest) and self.total >= BEST

    @property
    def counted(self) -> str:
        """How many turns matched, and no more than is known."""
        words = f"{self.total:,} turn{'' if self.total == 1 else 's'}"
        words = f"at least {words}" if self.total_is_bound else words
        words = words if self.is_first else f"more of {words}"
        return words[0].upper() + words[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """What one person is shown of hits."""

    user_pk: int
    query: SearchQuery
    around: Surroundings
    pages: HitPages
    now: datetime = field(default_factory=timezone.now)

    def groups(self, hits: Sequence[TurnHit]) -> list[FoundGroup]:
        """In their order; those of one session that follow each other together."""
        return [
            self.group(self.around.sessions[pk], list(group))
            for pk, group in groupby(hits, key=lambda hit: hit.session_pk)
        ]

    def group(self, session: Session, hits: list[TurnHit]) -> FoundGroup:
        return FoundGroup(
            title=session.title,
            url=reverse(self.pages.session, args=[session.uuid]),
            workspace=session.workspace.name,
            owner="" if session.owner_id == self.user_pk else session.owner.get_username(),
            archived=session.archived_at is not None,
            expired=session.expires_at is not None and session.expires_at <= self.now,
            hits=[self.hit(hit) for hit in hits],
        )

    def hit(self, hit: TurnHit) -> SearchResultRow:
        at = hit.created_at.astimezone(UTC)
        lines = (
            self.line(hit.session_pk, hit.turn - 1),
            _snippet(hit.text, self.query),
            self.line(hit.session_pk, hit.turn + 1),
        )
        return SearchResultRow(
            turn=hit.turn,
            url=reverse(self.pages.turn, args=[hit.session, hit.turn]),
            speaker=_speaker(hit.role, hit.tool_name),
            moment=f"{at:%Y-%m-%dT%H:%M:%SZ}",
            written=f"{at:%Y-%m-%d %H:%M} UTC",
            text=SafeString("\n".join(filter(None, lines))),
            replaced=(hit.session_pk, hit.turn) in self.around.replaced,
        )

    def line(self, session_pk: int, turn: int) -> str:
        """The HTML of a turn next to a hit; empty where there is nothing to show."""
        found = self.around.lines.get((session_pk, turn))
        if found is None:
            return ""
        speaker = escape(_speaker(found.role, found.tool_name))
        return f'<p class="near"><b>{speaker}:</b> {escape(found.text)}</p>'


def _snippet(text: str, query: SearchQuery) -> str:
    pieces = mark_words(snippet(text, query, limit=SNIPPET), query)
    marked = (
        f"<mark>{escape(piece)}</mark>" if is_match else escape(piece) for piece, is_match in pieces
    )
    return f'<p class="snippet">{"".join(marked)}</p>'


def _speaker(role: str, tool_name: str | None) -> str:
    if role == "tool":
        return tool_name or "Tool"
    return _SPEAKERS.get(role, role)
