"""A session as reviewers read it: the very rows that its owner sees, with those that left
the active path, and beside them what reviewers have said.

It is a page to read: without a socket, complete without scripts.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from conversations.access import get_session_for_review
from conversations.archive.messages import queued_messages
from conversations.archive.runs import active_runs
from conversations.archive.transcript import PageRow, TranscriptPage, find_rewound
from conversations.domain.errors import NotFound
from conversations.domain.keyset import parse_cursor
from conversations.models import ReviewFlag, ReviewNote, Session
from conversations.models.review import LABELS
from conversations.rendering.rows import mark_settled
from conversations.web.hydration import hydrate

from . import Remarks, read_remarks
from .forms import RemarkForm, carried_filters
from .reasons import reason_context

ROWS = 100  # Rows of a page at most

TOOL_ROW, SETTLED = 'class="row row-tool', " settled"


@login_required
@require_safe
def review_session(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """The newest rows, or those ``before`` or ``after`` a cursor."""
    return show_for_review(request, get_session_for_review(request, uuid))


@login_required
@require_safe
def review_turn(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """The rows around a turn."""
    return show_for_review(request, get_session_for_review(request, uuid), turn=number)


def show_for_review(
    request: HttpRequest, session: Session, *, turn: int | None = None
) -> HttpResponse:
    """The page of a session that this person may read, and that is on record as read."""
    if turn is not None and not 1 <= turn <= session.turn_count:
        raise NotFound("This session has no such turn.")
    page = hydrate(
        session,
        limit=min(ROWS, settings.LOOM.page_size),
        include_rewound=True,
        around_turn=turn,
        **{
            name: parse_cursor(request.GET[name])
            for name in ("before", "after")
            if request.GET.get(name)
        },
    )
    remarks = read_remarks(session)
    parts = read_parts(session, page.rows, remarks, target=turn)
    context: dict[str, Any] = {
        "session": session,
        "page": page,
        "parts": parts,
        "has_tools": any(TOOL_ROW in row.html for row in page.rows),
        "state": _review_state(session, remarks),
        "of_session": ReviewRemarks.of(remarks, turn=None),
        "elsewhere": _open_elsewhere(remarks, parts),
        "now": _going_on(session),
        "is_expired": session.expires_at is not None and session.expires_at <= timezone.now(),
        "carried": carried_filters(request.GET),
        "next": _next_address(request, session),
        "pager": _pager(request, page),
        "remark_form": RemarkForm(),
    }
    if session.owner_id != request.user.pk:
        context |= reason_context(request, session.uuid)
    return render(request, "review/session.html", context)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRemarks:
    """What reviewers said of one turn, or of the session."""

    notes: list[ReviewNote] = field(default_factory=list)
    flags: list[ReviewFlag] = field(default_factory=list)

    @classmethod
    def of(cls, remarks: Remarks, *, turn: int | None) -> "ReviewRemarks":
        return cls(
            notes=[note for note in remarks.notes if note.turn == turn],
            flags=[flag for flag in remarks.flags if flag.turn == turn],
        )

    def __bool__(self) -> bool:
        return bool(self.notes or self.flags)


@dataclass(slots=True, kw_only=True)
class TurnRows:
    """Neighbouring rows of one turn. ``is_first`` and ``is_last``: of the turn's parts on
    this page; what was said of the turn stands under the last. ``is_folded``: later
    rows stand for all of it, as in the chat."""

    turn: int | None
    rows: list[str]
    is_replaced: bool
    is_first: bool = False
    is_last: bool = False
    is_target: bool = False
    is_new: bool = False
    said: ReviewRemarks = field(default_factory=ReviewRemarks)

    @property
    def is_folded(self) -> bool:
        settled = all(SETTLED in html.partition(">")[0] for html in self.rows)
        return settled and not (self.said or self.is_target)


def read_parts(
    session: Session, rows: Sequence[PageRow], remarks: Remarks, *, target: int | None
) -> list[TurnRows]:
    """The rows of a page, by turns. The first part that follows what is reviewed is
    marked, if what is reviewed is on the page."""
    parts = list(_split(rows, find_rewound(session, rows)))
    places: dict[int, list[TurnRows]] = defaultdict(list)
    for part in parts:
        if part.turn is not None:
            places[part.turn].append(part)
    for turn, of_turn in places.items():
        of_turn[0].is_first = of_turn[-1].is_last = True
        of_turn[-1].said = ReviewRemarks.of(remarks, turn=turn)
        of_turn[-1].is_target = turn == target
    _mark_new(places, session.reviewed_turn)
    return parts


def _split(rows: Sequence[PageRow], rewound: frozenset[str]) -> Iterator[TurnRows]:
    shown = zip(rows, mark_settled([row.html for row in rows]), strict=True)
    for (turn, is_replaced), group in groupby(
        shown, key=lambda pair: (pair[0].turn, pair[0].cursor in rewound)
    ):
        yield TurnRows(turn=turn, rows=[html for _, html in group], is_replaced=is_replaced)


def _mark_new(places: dict[int, list[TurnRows]], reviewed_turn: int) -> None:
    new = [turn for turn in places if turn > reviewed_turn]
    if new and any(turn <= reviewed_turn for turn in places):
        places[min(new)][0].is_new = True


def _review_state(session: Session, remarks: Remarks) -> dict[str, Any]:
    marks = remarks.marks
    return {
        "through": session.reviewed_turn,
        "new": session.turn_count - session.reviewed_turn,
        "first_new": session.reviewed_turn + 1,
        "latest": marks[0] if marks else None,
        "earlier": marks[1:],
    }


def _open_elsewhere(remarks: Remarks, parts: Iterable[TurnRows]) -> list[dict[str, Any]]:
    """Turns that are not on this page and of which something is said."""
    here = {part.turn for part in parts}
    found: dict[int, list[str]] = defaultdict(list)
    for flag in remarks.flags:
        if flag.turn is not None and flag.turn not in here and flag.resolved_at is None:
            found[flag.turn].append(LABELS[flag.label])
    for note in remarks.notes:
        if note.turn is not None and note.turn not in here and note.withdrawn_at is None:
            found[note.turn].append("Note")
    return [{"turn": turn, "what": ", ".join(what)} for turn, what in sorted(found.items())]


def _going_on(session: Session) -> dict[str, Any]:
    """What is not a turn yet."""
    active = active_runs(stale_seconds=settings.LOOM.stale_seconds, session_pks=[session.pk])
    return {
        "is_running": any(not run.is_stale for run in active),
        "queued": [message.text for message in queued_messages(session.pk)],
    }


def _next_address(request: HttpRequest, session: Session) -> str:
    return reverse("review_next") + carried_filters(request.GET, after=session.uuid)


def _pager(request: HttpRequest, page: TranscriptPage) -> dict[str, str]:
    return {
        name: carried_filters(request.GET, **{parameter: cursor})
        for name, parameter, cursor in (
            ("older", "before", page.older),
            ("newer", "after", page.newer),
        )
        if cursor
    }
