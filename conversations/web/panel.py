"""Parts of the chat's panel, each also a page of its own: the session state and the forks."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext, gettext_lazy, pgettext_lazy
from django.views.decorators.http import require_safe

from conversations.access import (
    Access,
    access_context_of,
    get_session_for,
    has_personal_memory,
    list_kept_for,
    permission_for_memory,
    person,
    post_by_person,
    post_to_session,
)
from conversations.archive.memory import decline_item, list_declined
from conversations.archive.session_records import list_forks
from conversations.archive.session_state import StateView, find_statement, read_state_view
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.session_state import (
    ACTIONS,
    BY_LATER,
    BY_MODEL,
    BY_PERSON,
    COMMIT,
    DECISION,
    ERROR,
    FILE,
    FOCUS,
    FOR_PERSON,
    FOR_WORKSPACE,
    MAX_FOCUS_CHARS,
    MAX_ITEM_CHARS,
    NOTED,
    PIN,
    PREFERENCE,
    READ,
    REWORD,
    RULE,
    SAID,
    STRIKE,
    UNPIN,
    UNSTRIKE,
    VALUE,
    StateItem,
)
from conversations.domain.session_state.facts import DELETE, EDIT, MOVE, PUT_BACK, WRITE
from conversations.domain.text import one_line, storable
from conversations.models import Session
from conversations.rendering.messages import translate
from conversations.runtime.current import current_runtime

from .memory import save_item
from .pages import is_fragment, render_page

# The items of the session state, as the panel shows them.

GROUPS = {
    FOCUS: gettext_lazy("Focus"),
    RULE: gettext_lazy("Rules"),
    PREFERENCE: pgettext_lazy("of the session state", "Preferences"),
    DECISION: gettext_lazy("Decisions"),
    VALUE: gettext_lazy("Changed values"),
    FILE: gettext_lazy("Files"),
    ERROR: gettext_lazy("Resolved errors"),
}
STRUCK_BY = {
    BY_MODEL: gettext_lazy("removed by the model"),
    BY_PERSON: gettext_lazy("removed by a person"),
}
BUTTONS = {
    PIN: gettext_lazy("Pin"),
    UNPIN: gettext_lazy("Unpin"),
    STRIKE: gettext_lazy("Remove"),
    UNSTRIKE: gettext_lazy("Restore"),
}
SOURCES = {
    SAID: gettext_lazy("said"),
    COMMIT: gettext_lazy("from a commit"),
    NOTED: gettext_lazy("noted by the model"),
}
DONE = {
    PIN: gettext_lazy("Pinned"),
    UNPIN: gettext_lazy("Unpinned"),
    STRIKE: gettext_lazy("Removed"),
    UNSTRIKE: gettext_lazy("Restored"),
    REWORD: gettext_lazy("Saved"),
}


# The last action on a file.
FILE_ACTIONS = {
    READ: gettext_lazy("read"),
    WRITE: gettext_lazy("created"),
    EDIT: gettext_lazy("edited"),
    DELETE: gettext_lazy("deleted"),
    MOVE: gettext_lazy("moved"),
    PUT_BACK: gettext_lazy("restored"),
}


def show_items(items: Iterable[StateItem], drafts: dict[str, str]) -> list[dict[str, Any]]:
    """Return the template data of items.

    ``short`` names an item in a button. ``draft`` is a new wording that was refused.
    """
    rows = []
    for item in items:
        is_focus = item.kind == FOCUS
        source = SOURCES.get(item.source, "") if item.kind == DECISION else ""
        facts = (
            FILE_ACTIONS.get(item.action, item.action),
            source,
            gettext("reworded") if item.original else "",
            STRUCK_BY.get(item.struck_by, ""),
        )
        buttons = [name for name in item.actions if name in BUTTONS]
        rows.append(
            item._asdict()
            | {
                "short": one_line(item.text, limit=40),
                "facts": [fact for fact in facts if fact],
                "buttons": [{"name": name, "label": BUTTONS[name]} for name in buttons],
                "can_reword": REWORD in item.actions,
                "longest": MAX_FOCUS_CHARS if is_focus else MAX_ITEM_CHARS,
                "draft": drafts.get(item.id),
            }
        )
    return rows


MAX_FORKS_SHOWN = 50  # limit of the list of forks


@login_required
@require_safe
def session_state(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Show the session state, with the actions of a member."""
    session, access = get_session_for(request, uuid)
    return _state(request, session, access)


@post_to_session
async def session_state_edit(
    request: HttpRequest, session: Session, access: Access, user: User
) -> HttpResponse:
    """Pin, unpin, reword, strike or restore one item."""
    names = ("item", "action", "text")
    item, action, text = (storable(request.POST.get(name, "")) for name in names)
    try:
        if action not in ACTIONS:
            raise Rejected("Choose an action.", code="state_action_unknown")
        runtime = await current_runtime()
        await runtime.edit_state(session, actor_pk=user.pk, action=action, item=item, text=text)
    except Rejected as error:
        drafts = {item: text} if text else {}
        return await sync_to_async(_state)(request, session, access, error=error, drafts=drafts)
    if is_fragment(request):
        message = str(DONE.get(action, ""))
        return await sync_to_async(_state)(request, session, access, message=message)
    return redirect("session_state", uuid=session.uuid)


# Keeping items of a session's state in the workspace's memory.

SCOPE_NAMES = {
    FOR_PERSON: gettext_lazy("for you"),
    FOR_WORKSPACE: gettext_lazy("for everyone"),
}
KEPT = {
    FOR_PERSON: gettext_lazy("Kept for you"),
    FOR_WORKSPACE: gettext_lazy("Kept for everyone"),
    "none": gettext_lazy("Not kept"),
}


def offer_keeping(
    request: HttpRequest, session: Session, access: Access, view: StateView
) -> dict[str, dict[str, Any]]:
    """Return for each item the scopes in which it can be kept.

    The newest item that this person has neither kept nor declined is offered. The others can be
    kept as well.
    """
    scopes = [FOR_PERSON] if has_personal_memory(session, request.user) else []
    scopes += [FOR_WORKSPACE] if access.can_manage else []
    if not access.can_write or not scopes:
        return {}
    kept_texts = {entry.text.casefold() for entry in (*view.kept, *view.replaced)}
    possible = [
        item
        for item in view.items
        if item.kind in (RULE, PREFERENCE) and item.text.casefold() not in kept_texts
    ]
    buttons = [{"name": scope, "label": KEEP_LABELS[scope]} for scope in scopes]
    offers = {item.id: {"keep": buttons, "is_offered": False} for item in possible}
    declined = list_declined(session, person(request).pk)
    if undecided := [item for item in possible if item.id not in declined]:
        newest = max(undecided, key=lambda item: item.turn)
        offers[newest.id]["is_offered"] = True
    return offers


KEEP_LABELS = {FOR_PERSON: gettext_lazy("For me"), FOR_WORKSPACE: gettext_lazy("For everyone")}


def show_kept(request: HttpRequest, session: Session, view: StateView) -> list[dict[str, Any]]:
    """Return what the workspace's memory adds to the session, with the turn where it was said."""
    user_pk = person(request).pk
    return [
        {
            "text": entry.text,
            "scope": SCOPE_NAMES[entry.scope]
            if entry.owner_id in (None, user_pk)
            else gettext("for %(name)s") % {"name": session.owner.get_username()},
            "session": entry.session,
            "turn": entry.turn,
        }
        for entry in list_kept_for(request, session, view.kept)
    ]


@post_by_person
def session_state_keep(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Keep a rule or a preference of the session in the workspace's memory, or decline that."""
    scope = request.POST.get("scope", "")
    session, access = get_session_for(request, uuid, to=permission_for_memory(scope))
    user, item = person(request), storable(request.POST.get("item", ""))
    error: LoomError | None = None
    message = str(KEPT.get(scope, ""))
    try:
        if scope == "none":
            decline_item(session, find_statement(session.pk, item), by=user)
        else:
            save_item(session, item, scope=scope, context=access_context_of(request), by=user)
    except Rejected as refused:
        error = refused
    if error is not None or is_fragment(request):
        return _state(request, session, access, message=message, error=error)
    return redirect("session_state", uuid=session.uuid)


def _state(
    request: HttpRequest,
    session: Session,
    access: Access,
    *,
    message: str = "",
    error: LoomError | None = None,
    drafts: dict[str, str] | None = None,
) -> HttpResponse:
    view, forks = read_state_view(session.pk), list_forks(session, limit=MAX_FORKS_SHOWN + 1)
    keeping = offer_keeping(request, session, access, view)
    # In each group the pinned items come first, then the newest.
    items = sorted(view.items, key=lambda item: (not item.is_pinned, -item.turn))
    rows = [item | keeping.get(item["id"], {}) for item in show_items(items, drafts or {})]
    replaced = [item for item in view.struck if item.struck_by == BY_LATER]
    removed = [item for item in view.struck if item.struck_by != BY_LATER]
    groups = [
        {"kind": kind, "name": name, "entries": [item for item in rows if item["kind"] == kind]}
        for kind, name in GROUPS.items()
    ]
    context = {
        "heading": gettext("Session state"),
        "groups": [group for group in groups if group["entries"]],
        "histories": [
            {
                "id": "replaced",
                "name": gettext("Replaced"),
                "entries": show_items(reversed(replaced), {}),
            },
            {
                "id": "struck",
                "name": gettext("Removed"),
                "entries": show_items(reversed(removed), {}),
            },
        ],
        "has_items": bool(items or view.struck),
        "kept": show_kept(request, session, view),
        "workspace": {"slug": session.workspace.slug, "name": session.workspace.name},
        "said": message,
        "error": translate(error.message) if error else "",
        "forks": forks[:MAX_FORKS_SHOWN],
        "most_forks": MAX_FORKS_SHOWN if len(forks) > MAX_FORKS_SHOWN else 0,
    }
    status = error.status if error else 200
    return render_panel(request, session, access, "state", context, status=status)


def render_panel(
    request: HttpRequest,
    session: Session,
    access: Access,
    tab: str,
    context: dict[str, Any],
    *,
    status: int = 200,
) -> HttpResponse:
    """Render a part of the panel: alone for the panel, or as a page with a frame."""
    data = {
        "uuid": session.uuid,
        "title": session.title,
        "can_write": access.can_write and session.archived_at is None,
    }
    context |= {"session": data, "tab": tab}
    return render_page(request, f"panel/{tab}.html", "panel", context, status=status)
