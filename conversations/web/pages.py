"""The pages of workspaces, sessions and the chat. Each works with plain GET and POST."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import Resolver404, resolve, reverse
from django.utils.cache import get_conditional_response, patch_vary_headers
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_GET, require_safe

from conversations.access import (
    Access,
    get_session_for,
    get_workspace_for,
    person,
    post_by_person,
    post_to_session,
    sees_readers,
)
from conversations.archive import sessions as archive_sessions
from conversations.archive import workspaces as archive_workspaces
from conversations.archive.asides import require_aside
from conversations.archive.attachments import list_attachments
from conversations.archive.context import require_compaction
from conversations.archive.messages import queued_messages
from conversations.archive.model_calls import window_mark_of
from conversations.archive.rewinds import is_rewound
from conversations.archive.rights import WRITE
from conversations.archive.runs import active_runs
from conversations.archive.session_records import read_list_choices
from conversations.archive.sessions import (
    has_expired,
    open_first_session,
    read_reading_position,
)
from conversations.archive.storage import translate_storage_error
from conversations.archive.transcript import PageRow
from conversations.archive.turns import source_of_turn
from conversations.domain.errors import LoomError, NotFound, Rejected
from conversations.domain.keyset import parse_cursor
from conversations.domain.runs import IDLE, QUEUED
from conversations.domain.text import storable
from conversations.feature import features
from conversations.models import Session, Workspace
from conversations.rendering.messages import fill_marks, translate
from conversations.rendering.rows import (
    RICH_CONTENT,
    join_rows,
    render_meter,
    render_queue,
    render_window_line,
)
from conversations.review.transcript_pages import show_for_review
from conversations.runtime.current import (
    choose_model,
    compact_at_end,
    current_runtime,
    has_open,
    is_demo,
    list_models,
    model_of,
    open_new_session,
    recover_session,
    rename_session,
    require_model,
)
from conversations.runtime.model_routing import group_models
from conversations.web.errors import refusal_as_message

from . import forms
from .addresses import page_before
from .attachments import FilesRefused, require_files
from .commands import FILE, UnknownCommand, execute, read_command
from .hydration import hydrate
from .session_list import ORDERS, STATES, read_filters, read_session_list
from .tool_rules import failed_tool_servers

EXAMPLES = (
    gettext_lazy("What is in this workspace?"),
    gettext_lazy("Explain the main parts of this project to a newcomer."),
    gettext_lazy("Help me plan a small change, step by step."),
)

# Settings that the chat's scripts read.
SCRIPT_SETTINGS = (
    "render_cap",
    "page_size",
    "max_message_chars",
    "max_attachments",
    "max_attachment_bytes",
)

# Occurs in the HTML of a tool's row. Such rows need a style sheet of their own.
TOOL_ROW = 'class="row row-tool'

# characters of a filter that are used; SQLite refuses a pattern above 50,000
MAX_FILTER_CHARS = 200


def is_fragment(request: HttpRequest) -> bool:
    """Return whether htmx requests a part of the page."""
    return request.headers.get("HX-Request") == "true"


def render_page(
    request: HttpRequest, template: str, partial: str, context: dict[str, Any], *, status: int = 200
) -> HttpResponse:
    """Render the page, or only the part of it that htmx requests."""
    name = f"{template}#{partial}" if is_fragment(request) else template
    response = render(request, name, context, status=status)
    patch_vary_headers(response, ["HX-Request"])
    return response


@login_required
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    return _home(request, forms.WorkspaceForm())


def _home(request: HttpRequest, form: forms.WorkspaceForm) -> HttpResponse:
    context = {
        "workspaces": archive_workspaces.list_workspaces(person(request).pk),
        "form": form,
        "roots": settings.LOOM.workspace_roots,
    }
    return render(request, "home.html", context, status=400 if form.errors else 200)


@post_by_person
def workspace_create(request: HttpRequest) -> HttpResponse:
    form = forms.WorkspaceForm(request.POST)
    if form.is_valid():
        try:
            workspace = forms.make_workspace_at(**form.cleaned_data, owner=person(request))
            return redirect("workspace", slug=workspace.slug)
        except Rejected as error:
            form.add_error("root", translate(error.message))
    return _home(request, form)


@login_required
@require_safe
def workspace(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, access = get_workspace_for(request, slug)
    filters = read_filters(request.GET, max_chars=MAX_FILTER_CHARS)
    before = request.GET.get("before", "")
    sessions = read_session_list(
        request,
        workspace,
        filters=filters,
        before=before,
        access=access,
        current=_session_asking(request, workspace),
        # The first item replaces the button that loaded it and had the focus.
        focuses_first=bool(before) and is_fragment(request),
    )
    etag = f'"{sessions["version"]}"' if sessions["version"] else ""
    unchanged = get_conditional_response(request, etag=etag) if is_fragment(request) else None
    if unchanged is not None:
        return unchanged
    context: dict[str, Any] = {
        "workspace": {
            "name": workspace.name,
            "slug": workspace.slug,
            "root": workspace.root,
            "instructions": workspace.instructions,
            "can_write": access.can_write,
            "can_manage": access.can_manage,
            "members_may_purge": workspace.members_may_purge,
        },
        "sessions": sessions,
    }
    if not is_fragment(request):
        context |= {
            "filters": filters,
            "choices": read_list_choices(workspace, archived=filters.archived),
            "states": STATES.items(),
            "orders": ORDERS.items(),
        }
    response = render_page(request, "workspace.html", "session_items", context)
    if etag:
        response["ETag"] = etag
    return response


def _session_asking(request: HttpRequest, workspace: Workspace) -> Session | None:
    """Return the session whose sidebar requests a part of the list, if any."""
    if not is_fragment(request):
        return None
    page = urlsplit(page_before(request, otherwise="/")).path
    try:
        uuid = resolve(page).kwargs.get("uuid")
    except Resolver404:
        return None
    return Session.objects.filter(workspace=workspace, uuid=uuid).first() if uuid else None


@post_by_person
def session_create(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=WRITE)
    came_from = page_before(request, otherwise="")
    session = open_new_session(workspace, owner=person(request), came_from=came_from)
    return redirect("session", uuid=session.uuid)


@login_required
@require_safe
def session(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Show the chat, or to a reviewer who is not a member, the page for reading the session.

    ``before`` and ``after`` page through the transcript. ``all=1`` includes the rows that left the
    active path.
    """
    session, access = get_session_for(request, uuid)
    if access.role is None:
        return show_for_review(request, session)
    loom = settings.LOOM
    where: dict[str, Any] = {"include_rewound": request.GET.get("all") == "1"}
    for name in ("before", "after"):
        if request.GET.get(name):
            where[name] = parse_cursor(request.GET[name])
    limit = loom.older_page_size if is_fragment(request) else loom.page_size
    return _chat(request, session, access, hydrate(_recover(session), limit=limit, **where))


@login_required
@require_safe
def turn(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """Show the page around a turn, even if the turn has left the active path."""
    session, access = get_session_for(request, uuid)
    return show_turn(request, session, access, number)


def show_turn(request: HttpRequest, session: Session, access: Access, number: int) -> HttpResponse:
    if access.role is None:
        return show_for_review(request, session, turn=number)
    if not 1 <= number <= session.turn_count:
        raise NotFound("This turn does not exist in this session.")
    replaced = is_rewound(session.pk, number)
    page = hydrate(
        _recover(session),
        limit=settings.LOOM.page_size,
        around_turn=number,
        include_rewound=replaced,
    )
    return _chat(request, session, access, page, target_turn=number, shows_replaced=replaced)


def _recover(session: Session) -> Session:
    # Interrupt an orphaned run first, so that the first page after a crash is correct.
    return archive_sessions.get_session(session.uuid) if recover_session(session.pk) else session


def _chat(
    request: HttpRequest,
    session: Session,
    access: Access,
    page: Any,
    *,
    target_turn: int | None = None,
    shows_replaced: bool = False,
    form: dict[str, Any] | None = None,
    status: int = 200,
) -> HttpResponse:
    mark = window_mark_of(session)
    line = fill_marks(render_window_line(session.uuid, left_out=mark.left_out))
    user, has_ended = person(request), has_expired(session.expires_at)
    origin = session.parent
    if origin is not None and origin.workspace_id != session.workspace_id:
        origin = None  # the person may not know that workspace
    read = None if is_fragment(request) else _read_before(session, user)
    first = next((row.turn for row in page.rows if row.turn), 0)
    facts: dict[str, Any] = {}
    for feature in features():
        facts |= feature.session_facts(session, access, user)
    context: dict[str, Any] = {
        "session": {
            "uuid": session.uuid,
            "title": session.title,
            "workspace": {"name": session.workspace.name, "slug": session.workspace.slug},
            "model": model_of(session),
            "can_write": access.can_write,
            "can_manage": access.can_manage,
            "read": read,
            "pinned": session.pinned_at is not None,
            "owner_name": session.owner.get_username(),
            "sees_readers": sees_readers(session, access, user),
            "archived": session.archived_at is not None,
            "expired": has_ended,
            "closed": session.archived_at is not None or has_ended,
            **facts,
            "turn_count": session.turn_count,
            "origin": origin
            and {
                "uuid": origin.uuid,
                "title": origin.title or gettext("Untitled session"),
                "turn": session.fork_turn,
            },
        },
        "page": {
            "rows": join_rows(list(_with_line(page.rows, line, floor=mark.floor))),
            "older": page.older,
            "newer": page.newer,
            "target_turn": target_turn,
            # The first new turn is on an earlier page.
            "first_new": read + 1 if read is not None and first > read + 1 else None,
            "last_seq": session.last_seq,
            "rewinds": session.rewind_count,
            "all": shows_replaced or request.GET.get("all") == "1",
            "has_rich": any(RICH_CONTENT in row.html for row in page.rows),
            "has_tools": any(TOOL_ROW in row.html for row in page.rows),
        },
        "window": {"floor": mark.floor if line else 0, "line": line, "key": mark.key},
    }
    if not is_fragment(request):
        shown = context["session"]
        context |= _chat_surroundings(session, model=shown["model"]) | (form or {})
        if access.can_write and not shown["closed"]:
            context["failed_servers"] = failed_tool_servers(session.workspace.slug)
        meter = render_meter(
            session.uuid, tokens=mark.tokens, limit=mark.limit, cost_microusd=mark.cost_microusd
        )
        context["window"]["meter"] = fill_marks(meter)
    return render_page(request, "session.html", "rows", context, status=status)


def _read_before(session: Session, user: User) -> int | None:
    """Return the last turn that the person has read, if there are later ones.

    Return None if the person has the session open, because they then read the later ones.
    """
    turn = read_reading_position(session.pk, user_pk=user.pk)
    if turn is None or turn >= session.turn_count or has_open(session.pk, user_pk=user.pk):
        return None
    return turn


def _with_line(rows: Sequence[PageRow], line: str, *, floor: int) -> Iterator[str]:
    # Yield the rows' HTML with the line before the first row of the window. If that row is not on
    # the page, there is no line; ``marks.js`` has the same rule.
    is_below = False
    for row in rows:
        if line and row.turn is not None:
            if row.turn >= floor:
                if is_below or row.turn == floor:
                    yield line
                line = ""
            is_below = True
        yield row.html


def _chat_surroundings(session: Session, *, model: str) -> dict[str, Any]:
    loom, queue, models = settings.LOOM, queued_messages(session.pk), list_models()
    runs = active_runs(stale_seconds=loom.stale_seconds, session_pks=[session.pk])
    if runs:
        run = runs[0]
        run_data = {
            "state": run.state,
            "uuid": run.run,
            "text": run.note,
            "elapsed_ms": run.elapsed_ms,
        }
    else:
        state = QUEUED if queue else IDLE
        run_data = {"state": state, "uuid": "", "text": "", "elapsed_ms": 0}
    return {
        "run": run_data,
        "queue": fill_marks(render_queue(queue)),
        "models": models,
        "model_groups": group_models(models, chosen=model),
        "is_demo": is_demo(),
        "config": {
            **{name: getattr(loom, name) for name in SCRIPT_SETTINGS},
            "client_id": uuid4().hex,
        },
        # The demo model has its own examples.
        "examples": () if is_demo() else EXAMPLES,
    }


@login_required
@require_safe
def turn_source(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """Return a turn's verbatim text, for copying and for rows that are too long for the page."""
    session, _ = get_session_for(request, uuid)
    source = source_of_turn(session.uuid, number)
    if source is None:
        raise NotFound("This turn does not exist in this session.")
    response = HttpResponse(source["content"], content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'inline; filename="turn-{number}.txt"'
    return response


@post_to_session
async def session_send(
    request: HttpRequest, session: Session, access: Access, user: User
) -> HttpResponse:
    """Send a message or a command with a plain form, for pages without JavaScript.

    With ``as_message``, the text is a message, whatever it begins with.
    """
    text = request.POST.get("text", "")
    attached: list[str] = []
    try:
        client_id = forms.check_client_id(request.POST.get("client_id") or uuid4().hex)
        attached += forms.check_attachment_ids(request.POST.getlist("attachments"))
        attached += await sync_to_async(require_files)(
            session.pk, request.FILES.getlist("files"), user_pk=user.pk
        )
        typed = None
        if "as_message" not in request.POST:
            typed = read_command(storable(text))
        if typed:
            outcome = await execute(typed, session, user)
            if outcome.said and outcome.opens != FILE:  # a download leaves the page as it is
                messages.success(request, outcome.said)
            return redirect(outcome.url or reverse("session", args=[session.uuid]))
        message = forms.check_message_text(text.replace("\r\n", "\n"), may_be_empty=bool(attached))
        runtime = await current_runtime()
        await runtime.send(
            session, client_id=client_id, text=message, user_pk=user.pk, attachments=attached
        )
    except Exception as exception:
        refusal = translate_storage_error(exception) or exception
        if not isinstance(refusal, LoomError):
            raise
        if isinstance(refusal, FilesRefused):
            attached += refusal.kept
        return await sync_to_async(_show_refused)(request, session, access, text, refusal, attached)
    return redirect("session", uuid=session.uuid)


@post_to_session
async def session_compact(
    request: HttpRequest, session: Session, access: Access, user: User
) -> HttpResponse:
    """Request a summary of older turns for the window."""
    with refusal_as_message(request):
        client_id = forms.check_client_id(request.POST.get("client_id") or uuid4().hex)
        runtime = await current_runtime()
        await runtime.compact(session, client_id=client_id, user_pk=user.pk)
    return redirect("session", uuid=session.uuid)


@post_to_session
async def session_undo_compaction(
    request: HttpRequest, session: Session, access: Access, user: User, *, compaction: UUID
) -> HttpResponse:
    """Give the model the turns again instead of their summary."""
    await sync_to_async(require_compaction)(session, compaction)
    with refusal_as_message(request):
        runtime = await current_runtime()
        await runtime.undo_compaction(session, uuid=compaction, user_pk=user.pk)
    return redirect("session", uuid=session.uuid)


@post_to_session
async def session_include(
    request: HttpRequest, session: Session, access: Access, user: User, *, number: int
) -> HttpResponse:
    """Give the model the turns again that are aside because the provider refused them."""
    with refusal_as_message(request):
        await sync_to_async(require_aside)(session.pk, number)
        runtime = await current_runtime()
        await runtime.include_turn(session, turn=number)
    return redirect("session", uuid=session.uuid)


def _show_refused(
    request: HttpRequest,
    session: Session,
    access: Access,
    text: str,
    error: LoomError,
    attached: Sequence[str],
) -> HttpResponse:
    files, user_pk = list_attachments(session.pk, attached), person(request).pk
    form = {
        "form_error": translate(error.message),
        "form_text": text,
        "form_files": [f for f in files if f.turn_number is None and f.added_by_id == user_pk],
        "can_be_sent": isinstance(error, UnknownCommand),
    }
    page = hydrate(session, limit=settings.LOOM.page_size)
    return _chat(request, session, access, page, form=form, status=error.status)


@post_by_person
def session_rename(request: HttpRequest, uuid: UUID) -> HttpResponse:
    session, _ = get_session_for(request, uuid, to=WRITE)
    with refusal_as_message(request):
        rename_session(session, title=request.POST.get("title", ""))
    return _back(request, session)


@post_by_person
def session_pin(request: HttpRequest, uuid: UUID) -> HttpResponse:
    session, _ = get_session_for(request, uuid, to=WRITE)
    archive_sessions.pin_session(session, pinned=_is_on(request, "pinned"))
    return _back(request, session)


@post_by_person
def session_archive(request: HttpRequest, uuid: UUID) -> HttpResponse:
    session, _ = get_session_for(request, uuid, to=WRITE)
    with refusal_as_message(request):
        if archive_sessions.archive_session(session, archived=_is_on(request, "archived")):
            compact_at_end(session, user_pk=person(request).pk)
    return _back(request, session)


@post_by_person
def session_model(request: HttpRequest, uuid: UUID) -> HttpResponse:
    session, _ = get_session_for(request, uuid, to=WRITE)
    chosen = request.POST.get("model", "")
    require_model(chosen)
    choose_model(session, model=chosen)
    return _back(request, session)


def _is_on(request: HttpRequest, name: str) -> bool:
    # The form says what is wanted. Reversing the current state would be wrong after another click.
    return request.POST.get(name, "1") == "1"


def _back(request: HttpRequest, session: Session) -> HttpResponse:
    return redirect(page_before(request, otherwise=reverse("session", args=[session.uuid])))


# The start page: the chat that the person used last, or a new one.


@login_required
@require_GET
def start(request: HttpRequest) -> HttpResponse:
    """Redirect to the last session of the person's only workspace, or to a new one.

    If the person has several workspaces or none, or may not write in the only one, redirect to the
    list of workspaces.
    """
    session = open_first_session(person(request))
    return redirect("home") if session is None else redirect("session", uuid=session.uuid)
