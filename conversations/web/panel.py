"""The chat's panel, each part a page of its own too: the session state, and which
sessions came from this one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from conversations.access import Access, get_session_for, sign_in_first, visit_of
from conversations.archive.rights import WRITE
from conversations.archive.session_records import list_forks
from conversations.archive.session_state import StateView, read_state_view
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.session_state import (
    BY_MODEL,
    COMMIT,
    DECISION,
    ERROR,
    FILE,
    FOCUS,
    FOCUS_CHARS,
    ITEM_CHARS,
    NOTED,
    PIN,
    REWORD,
    SAID,
    STRIKE,
    UNPIN,
    UNSTRIKE,
    StateItem,
)
from conversations.domain.text import one_line, storable
from conversations.models import Session
from conversations.runtime.current import current_runtime

from .forms import check_state_action
from .pages import is_fragment, render_page

# The session state's items as the panel shows them.


GROUPS = {FOCUS: "Focus", DECISION: "Decisions", FILE: "Files", ERROR: "Resolved errors"}
BUTTONS = {PIN: "Pin", UNPIN: "Unpin", STRIKE: "Remove", UNSTRIKE: "Restore"}
SOURCES = {SAID: "said", COMMIT: "from a commit", NOTED: "noted by the model"}
DONE = {PIN: "Pinned", UNPIN: "Unpinned", STRIKE: "Struck", UNSTRIKE: "Restored", REWORD: "Saved"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownItem:
    """``short`` names the item in a button; ``draft`` is a wording that was refused."""

    id: str
    kind: str
    text: str
    turn: int
    is_pinned: bool
    original: str
    short: str
    facts: list[str]
    buttons: list[dict[str, str]]
    can_reword: bool
    longest: int
    draft: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGroup:
    kind: str
    name: str
    items: list[ShownItem]


def group_items(view: StateView, *, drafts: dict[str, str]) -> list[ShownGroup]:
    """The items in force by kind, pinned ones first, then the newest first."""
    groups = []
    for kind, name in GROUPS.items():
        found = [item for item in view.items if item.kind == kind]
        found.sort(key=lambda item: (not item.is_pinned, -item.turn))
        if found:
            groups.append(ShownGroup(kind=kind, name=name, items=show_items(found, drafts=drafts)))
    return groups


def show_items(items: Iterable[StateItem], *, drafts: dict[str, str]) -> list[ShownItem]:
    return [
        ShownItem(
            id=item.id,
            kind=item.kind,
            text=item.text,
            turn=item.turn,
            is_pinned=item.is_pinned,
            original=item.original,
            short=one_line(item.text, limit=40),
            facts=_facts(item),
            buttons=[
                {"name": name, "label": BUTTONS[name]} for name in item.actions if name in BUTTONS
            ],
            can_reword=REWORD in item.actions,
            longest=FOCUS_CHARS if item.kind == FOCUS else ITEM_CHARS,
            draft=drafts.get(item.id),
        )
        for item in items
    ]


def _facts(item: StateItem) -> list[str]:
    struck = {"": "", BY_MODEL: "removed by the model"}.get(item.struck_by, "removed by a person")
    source = "" if item.kind == FOCUS else SOURCES.get(item.source, "")
    reworded = "reworded" if item.original else ""
    return [fact for fact in (item.action, source, reworded, struck) if fact]


MAX_FORKS_SHOWN = 50
"""How many sessions that came from one are listed with it."""


@login_required
@require_safe
def session_state(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """The session state, with what a member may do to it."""
    found, access = get_session_for(request, uuid)
    return _state(request, found, access)


@require_POST
async def session_state_edit(request: HttpRequest, uuid: UUID) -> HttpResponseBase:
    """Pin, unpin, reword, strike or restore one item."""
    user = await request.auser()
    if not user.is_authenticated:
        return sign_in_first(uuid=uuid)
    found, access = await sync_to_async(get_session_for)(visit_of(request, user), uuid, to=WRITE)
    names = ("item", "action", "text")
    item, action, text = (storable(request.POST.get(name, "")) for name in names)
    try:
        check_state_action(action)
        runtime = await current_runtime()
        await runtime.edit_state(found, actor_pk=user.pk, action=action, item=item, text=text)
    except Rejected as error:
        drafts = {item: text} if text else {}
        return await sync_to_async(_state)(request, found, access, error=error, drafts=drafts)
    if is_fragment(request):
        said = DONE.get(action, "")
        return await sync_to_async(_state)(request, found, access, said=said)
    return redirect("session_state", uuid=uuid)


def _state(
    request: HttpRequest,
    found: Session,
    access: Access,
    *,
    said: str = "",
    error: LoomError | None = None,
    drafts: dict[str, str] | None = None,
) -> HttpResponse:
    view, forks = read_state_view(found.pk), list_forks(found, limit=MAX_FORKS_SHOWN + 1)
    context = {
        "heading": "Session state",
        "groups": group_items(view, drafts=drafts or {}),
        "struck": show_items(reversed(view.struck), drafts={}),
        "said": said,
        "error": error.message if error else "",
        "forks": forks[:MAX_FORKS_SHOWN],
        "most_forks": MAX_FORKS_SHOWN if len(forks) > MAX_FORKS_SHOWN else 0,
    }
    status = error.status if error else 200
    return render_panel(request, found, access, "state", context, status=status)


def render_panel(
    request: HttpRequest,
    found: Session,
    access: Access,
    tab: str,
    context: dict[str, Any],
    *,
    status: int = 200,
) -> HttpResponse:
    """A part of the panel: alone for the panel, with a frame as a page."""
    session = {
        "uuid": found.uuid,
        "title": found.title,
        "can_write": access.can_write and found.archived_at is None,
    }
    context |= {"session": session, "tab": tab}
    return render_page(request, f"panel/{tab}.html", "panel", context, status=status)
