"""Views that list and execute the composer's commands and complete file names."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.templatetags.static import static
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods, require_safe

from conversations.access import (
    access_context_of,
    get_folder_for,
    get_session_for,
    person,
    sign_in_first,
)
from conversations.accounts.languages import preferences_of
from conversations.agent.files.searching import find_files
from conversations.agent.mcp.connection import CONNECTING
from conversations.archive.rights import READ, WRITE
from conversations.archive.session_records import list_recent_sessions
from conversations.archive.workspaces import list_workspaces
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.messages import say
from conversations.domain.text import storable
from conversations.feature import Link
from conversations.models import Membership, Session
from conversations.rendering.messages import translate
from conversations.runtime.current import current_runtime, list_models
from conversations.runtime.model_routing import describe_model

from .commands import (
    COMMANDS,
    TEXT,
    CommandResult,
    UnknownCommand,
    execute,
    read_command,
)
from .frame import list_menu
from .pages import MAX_FILTER_CHARS, render_page

MAX_NAME_CHARS = 200  # characters of a query for paths that are used


@login_required
@require_safe
def workspace_paths(request: HttpRequest, slug: str) -> HttpResponse:
    """Return paths below the workspace's folder that match ``q``, best matches first."""
    workspace, _ = get_folder_for(request, slug)
    query = storable(request.GET.get("q", ""))[:MAX_NAME_CHARS]
    try:
        paths, is_cut = find_files(workspace.root, query)
    except Rejected as error:  # the folder is gone or cannot be read
        return JsonResponse({"files": [], "note": translate(error.message)})
    note = (
        gettext("There are too many files to list. Add a folder to the command.") if is_cut else ""
    )
    return JsonResponse({"files": paths, "note": note})


@require_http_methods(["GET", "HEAD", "POST"])
async def session_commands(request: HttpRequest, uuid: UUID) -> HttpResponseBase:
    """Return the commands that this person can use here, or execute the ``text`` of a POST."""
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first(uuid=uuid)
    if request.method != "POST":
        described = await sync_to_async(_list_commands)(request, uuid)
        offered = await _list_offers(request, user, uuid)
        described["commands"] += offered.pop("prompts")
        return JsonResponse(described | offered)
    try:
        session, _ = await sync_to_async(get_session_for)(access_context_of(request, user), uuid)
        text = storable(request.POST.get("text", ""))
        if (outcome := await _write_prompt(request, user, session, text)) is not None:
            return JsonResponse(asdict(outcome))
        typed = read_command(text)
        if typed is None:
            raise UnknownCommand("This is not a command.")
        if typed.command.to != READ:
            await sync_to_async(get_session_for)(
                access_context_of(request, user), uuid, to=typed.command.to
            )
        outcome = await execute(typed, session, user)
    except LoomError as error:
        is_text = isinstance(error, UnknownCommand)
        answer = {"message": translate(error.message), "code": error.code, "is_text": is_text}
        return JsonResponse(answer, status=error.status)
    return JsonResponse(asdict(outcome))


def _list_commands(request: HttpRequest, uuid: UUID) -> dict[str, Any]:
    session, access = get_session_for(request, uuid)
    allowed = (READ, WRITE) if access.can_write else (READ,)
    prices = settings.LOOM.prices
    models = [
        {
            "value": model.id,
            "says": model.name,
            "about": translate(describe_model(model, prices)),
        }
        for model in list_models()
    ]
    described = []
    for command in COMMANDS:
        if command.to in allowed:
            choices = [
                {"value": value, "says": translate(says)} for value, says in command.choices.items()
            ]
            described.append(
                {
                    "name": command.name,
                    "says": translate(command.says),
                    "argument": translate(command.argument),
                    "needs_argument": command.needs_argument,
                    "choices": models if command.argument == "model" else choices,
                }
            )
    return {
        "commands": described,
        "files": reverse("workspace_paths", args=[session.workspace.slug]),
        "style": static("css/commands.css"),
    }


async def _list_offers(request: HttpRequest, user: User, uuid: UUID) -> dict[str, Any]:
    """Return the prompts and resources of the workspace's tool servers, if the person may write.

    Others get none, because listing them may start the servers. ``is_complete`` says that no server
    is still connecting.
    """
    session, access = await sync_to_async(get_session_for)(access_context_of(request, user), uuid)
    if not access.can_write or settings.LOOM.mcp.is_empty:
        return {"prompts": [], "resources": [], "is_complete": True}
    servers, slug = (await current_runtime()).tool_servers, session.workspace.slug
    await servers.prepare(slug, Path(session.workspace.root))
    prompts = [
        {
            "name": name,
            "says": offer.says,
            "argument": " ".join(offer.arguments),
            "needs_argument": bool(offer.required),
            "choices": [],
        }
        for name, offer in servers.prompts_of(slug).items()
    ]
    resources = [
        {"name": name, "says": offer.says} for name, offer in servers.resources_of(slug).items()
    ]
    is_complete = all(server.state != CONNECTING for server in servers.describe(slug))
    return {"prompts": prompts, "resources": resources, "is_complete": is_complete}


async def _write_prompt(
    request: HttpRequest, user: User, session: Session, text: str
) -> CommandResult | None:
    """Return the text of the named prompt, for the person to read before sending it.

    Return None if the text names no prompt.
    """
    name, _, arguments = text.removeprefix("/").partition(" ")
    if not text.startswith("/") or ":" not in name:
        return None
    workspace, servers = session.workspace, (await current_runtime()).tool_servers
    if name not in servers.prompts_of(workspace.slug):
        return None
    await sync_to_async(get_session_for)(access_context_of(request, user), session.uuid, to=WRITE)
    written = await servers.write_prompt(workspace.slug, Path(workspace.root), name, arguments)
    return CommandResult(value=written, opens=TEXT)


# The keyboard shortcuts, and the page that lists them with the commands.

type Keys = list[tuple[tuple[str, ...], str]]

CTRL, SHIFT, ENTER = say("Ctrl"), say("Shift"), say("Enter")

KEYS: dict[str, Keys] = {
    say("Writing"): [
        ((ENTER,), say("Send the message")),
        ((SHIFT, ENTER), say("Start a new line")),
        (("Alt", ENTER), say("Send the message to the running answer at its next tool call")),
        (
            ("/",),
            say("Show commands at the start of a message; elsewhere, go to the message field"),
        ),
        (("@",), say("Files of the workspace")),
        (("Esc",), say("Stop the answer; close a list, the editor or a menu")),
    ],
    say("Navigation"): [
        ((CTRL, "K"), say("Sessions, commands and pages")),
        ((CTRL, SHIFT, "O"), say("New session")),
        (("Alt", "↑", "↓"), say("Previous or next session")),
        (("j", "k"), say("Next row, previous row")),
        (("f",), say("Find in this session; Enter goes to the next hit")),
        (("?",), say("This list")),
    ],
}

# Replaces the first two of "Writing" for people who prefer this.
ENTER_BREAKS: Keys = [((CTRL, ENTER), say("Send the message")), ((ENTER,), say("New line"))]


@login_required
@require_safe
def help_page(request: HttpRequest) -> HttpResponse:
    """List the commands and keys, as a page or for the dialog in the chat."""
    keys = KEYS
    if preferences_of(request).enter == "break":
        keys = keys | {"Writing": ENTER_BREAKS + keys["Writing"][2:]}
    context = {
        "commands": [
            replace(command, says=translate(command.says), argument=translate(command.argument))
            for command in COMMANDS
        ],
        "keys": [
            (
                translate(heading),
                [(list(map(translate, names)), translate(says)) for names, says in group],
            )
            for heading, group in keys.items()
        ],
    }
    return render_page(request, "help.html", "lists", context)


# The palette: a search for places to go to, on every page.

PALETTE_PAGE_ROWS = 12


@login_required
@require_safe
def palette(request: HttpRequest) -> HttpResponse:
    """Return the sessions that match ``q``, the last used first, paged by ``before``.

    With ``all=1``, return the workspaces and pages as well.
    """
    page = list_recent_sessions(
        person(request),
        query=request.GET.get("q", "")[:MAX_FILTER_CHARS],
        before=request.GET.get("before", ""),
        limit=PALETTE_PAGE_ROWS,
    )
    sessions = [
        {
            "name": item.title or gettext("Untitled session"),
            "says": item.workspace_name,
            "url": reverse("session", args=[item.uuid]),
        }
        for item in page.items
    ]
    answer: dict[str, Any] = {"sessions": sessions, "more": page.next_cursor}
    if request.GET.get("all") == "1":
        answer |= {"places": list(list_places(request)), "style": static("css/commands.css")}
    return JsonResponse(answer)


def list_places(request: HttpRequest) -> Iterator[dict[str, str]]:
    """Yield the places of the palette. ``form`` marks the address of a form without fields."""
    user = person(request)
    for item in list_workspaces(user.pk):
        url = reverse("workspace", args=[item["slug"]])
        yield {"name": item["name"], "says": gettext("Workspace"), "url": url}
        if item["role"] != Membership.Role.VIEWER:
            new = reverse("session_create", args=[item["slug"]])
            name = gettext("New session in %(workspace)s") % {"workspace": item["name"]}
            yield {"name": name, "says": "", "url": new, "form": "yes"}
        if item["role"] == Membership.Role.OWNER:
            rules = reverse("workspace_settings", args=[item["slug"]])
            name = gettext("Settings of %(workspace)s") % {"workspace": item["name"]}
            yield {"name": name, "says": "", "url": rules}
    pages = [
        Link(gettext("All workspaces"), reverse("home")),
        Link(gettext("Search everything"), reverse("search")),
        Link(gettext("Commands and keyboard shortcuts"), reverse("help")),
        *(link for _, links in list_menu(request) for link in links),
        Link(gettext("Devices"), reverse("account_devices")),
        Link(gettext("Change password"), reverse("password_change")),
    ]
    for page in pages:
        yield {"name": page.label, "says": page.says, "url": page.url}
