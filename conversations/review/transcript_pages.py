"""The page of a session for reviewers.

It shows the same rows as the owner's page and also the rows that are off the active path, with
notes and flags beside them. It has no socket and is complete without scripts.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import pgettext
from django.views.decorators.http import require_safe

from conversations.access import get_session_for_review
from conversations.archive.messages import queued_messages
from conversations.archive.runs import active_runs
from conversations.archive.sessions import has_expired
from conversations.archive.transcript import PageRow, find_rewound
from conversations.domain.errors import NotFound
from conversations.domain.keyset import parse_cursor
from conversations.models import Session
from conversations.rendering.rows import RICH_CONTENT, show_rows
from conversations.web.hydration import hydrate

from .forms import RemarkForm, carried_filters, flag_name
from .reasons import reason_context
from .remarks import Remarks, read_remarks

MAX_PAGE_ROWS = 100

TOOL_ROW, SETTLED = 'class="row row-tool', " settled"


@login_required
@require_safe
def review_session(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Show the newest rows, or the rows ``before`` or ``after`` a cursor."""
    return show_for_review(request, get_session_for_review(request, uuid))


@login_required
@require_safe
def review_turn(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    return show_for_review(request, get_session_for_review(request, uuid), turn=number)


def show_for_review(
    request: HttpRequest,
    session: Session,
    *,
    turn: int | None = None,
    draft: RemarkForm | None = None,
) -> HttpResponse:
    """Return the page of a session. The caller has checked access and recorded the reading.

    ``draft`` is a refused form. It is shown under the turn, or beside the session if ``turn`` is
    None.
    """
    if turn is not None and not 1 <= turn <= session.turn_count:
        raise NotFound("This turn does not exist in this session.")
    page = hydrate(
        session,
        limit=min(MAX_PAGE_ROWS, settings.LOOM.page_size),
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
    active = active_runs(stale_seconds=settings.LOOM.stale_seconds, session_pks=[session.pk])
    cursors = {"older": ("before", page.older), "newer": ("after", page.newer)}
    context: dict[str, Any] = {
        "session": session,
        "page": page,
        "parts": parts,
        "has_rich": any(RICH_CONTENT in row.html for row in page.rows),
        "has_tools": any(TOOL_ROW in row.html for row in page.rows),
        "state": {
            "through": session.reviewed_turn,
            "new": session.turn_count - session.reviewed_turn,
            "first_new": session.reviewed_turn + 1,
            "latest": remarks.marks[0] if remarks.marks else None,
            "earlier": remarks.marks[1:],
        },
        "of_session": _said_of(remarks, None),
        "elsewhere": _open_elsewhere(remarks, {part["turn"] for part in parts}),
        # Runs and messages that are not turns yet
        "now": {
            "is_running": any(not run.is_stale for run in active),
            "queued": [message["text"] for message in queued_messages(session.pk)],
        },
        "is_expired": has_expired(session.expires_at),
        "carried": carried_filters(request.GET),
        "next": reverse("review_next") + carried_filters(request.GET, after=session.uuid),
        "pager": {
            name: carried_filters(request.GET, **{parameter: cursor})
            for name, (parameter, cursor) in cursors.items()
            if cursor
        },
        "remark_form": draft or RemarkForm(),
        "draft_turn": turn,
    }
    if session.owner_id != request.user.pk:
        context |= reason_context(request, session.uuid)
    if draft:
        context["reason_next"] = reverse("review_session", args=[session.uuid])
    return render(request, "review/session.html", context, status=400 if draft else 200)


def _said_of(remarks: Remarks, turn: int | None) -> dict[str, list[Any]]:
    notes = [note for note in remarks.notes if note.turn == turn]
    flags = [flag for flag in remarks.flags if flag.turn == turn]
    return {"notes": notes, "flags": flags} if notes or flags else {}


def read_parts(
    session: Session, rows: Sequence[PageRow], remarks: Remarks, *, target: int | None
) -> list[dict[str, Any]]:
    """Group neighbouring rows of one turn into parts.

    The notes and flags of a turn are shown under its last part on the page.
    """
    rewound, shown = find_rewound(session, rows), show_rows([row.html for row in rows])
    pairs = zip(rows, shown, strict=True)
    groups = groupby(pairs, key=lambda pair: (pair[0].turn, pair[0].cursor in rewound))
    parts = [
        {"turn": turn, "is_replaced": is_replaced, "rows": [html for _, html in group]}
        for (turn, is_replaced), group in groups
    ]
    # Each turn's first and last part.
    first = {part["turn"]: part for part in reversed(parts)}
    last = {part["turn"]: part for part in parts}
    for part in parts:
        turn = part["turn"]
        part["is_first"] = turn is not None and part is first[turn]
        part["is_last"] = turn is not None and part is last[turn]
        part["said"] = _said_of(remarks, turn) if part["is_last"] else {}
        part["is_target"] = part["is_last"] and turn == target
        # As in the chat, a part is folded if later rows stand for all its rows.
        settled = all(SETTLED in html.partition(">")[0] for html in part["rows"])
        part["is_folded"] = settled and not (part["said"] or part["is_target"])
    # Mark the first turn that is not reviewed, if a reviewed turn is on the page too.
    turns = sorted(turn for turn in first if turn is not None)
    new = [turn for turn in turns if turn > session.reviewed_turn]
    if new and len(new) < len(turns):
        first[new[0]]["is_new"] = True
    return parts


def _open_elsewhere(remarks: Remarks, turns_on_page: set[int | None]) -> list[dict[str, Any]]:
    flags = [(flag.turn, flag_name(flag.label)) for flag in remarks.flags if not flag.resolved_at]
    notes = [
        (note.turn, pgettext("of a reviewer", "Note"))
        for note in remarks.notes
        if not note.withdrawn_at
    ]
    kinds_by_turn: dict[int, list[str]] = defaultdict(list)
    for turn, kind in (*flags, *notes):
        if turn is not None and turn not in turns_on_page:
            kinds_by_turn[turn].append(kind)
    return [
        {"turn": turn, "what": ", ".join(kinds)} for turn, kinds in sorted(kinds_by_turn.items())
    ]
