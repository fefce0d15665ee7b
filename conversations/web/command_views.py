"""Where the page asks for the commands, has them carried out, and completes names of
files.
"""

from dataclasses import asdict
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.templatetags.static import static
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from conversations.access import HIDDEN, get_session_for, get_workspace_for, sign_in_first, visit_of
from conversations.accounts.people import read_preferences
from conversations.agent.files.searching import find_files
from conversations.archive.rights import READ, WRITE
from conversations.domain.errors import LoomError, NotFound, Rejected
from conversations.domain.text import storable
from conversations.runtime.current import list_models

from .carry_out import ON_THE_PAGE, execute
from .commands import COMMANDS, Command, NoCommand, commands_for, read_command
from .pages import person, render_page

MAX_NAME_CHARS = 200
"""Characters of a part of a path that count."""


@login_required
@require_safe
def workspace_files(request: HttpRequest, slug: str) -> HttpResponse:
    """Paths below the workspace's folder that fit to ``q``, best first."""
    workspace, access = get_workspace_for(request, slug)
    if access.role is None:  # reviewers read transcripts, not folders
        raise NotFound(HIDDEN)
    query = storable(request.GET.get("q", ""))[:MAX_NAME_CHARS]
    try:
        paths, is_cut = find_files(workspace.root, query)
    except Rejected as error:  # the folder is gone, or cannot be read
        return JsonResponse({"files": [], "note": error.message})
    note = "There are more files than are listed: name a folder." if is_cut else ""
    return JsonResponse({"files": paths, "note": note})


@require_http_methods(["GET", "HEAD", "POST"])
async def session_commands(request: HttpRequest, uuid: UUID) -> HttpResponseBase:
    """The commands that this person can use here; a POST of ``text`` carries one out."""
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first(uuid=uuid)
    if request.method != "POST":
        return JsonResponse(await sync_to_async(_list_commands)(request, uuid))
    try:
        session, _ = await sync_to_async(get_session_for)(visit_of(request, user), uuid)
        typed = read_command(storable(request.POST.get("text", "")))
        if typed is None:
            raise NoCommand("This is not a command.")
        if typed.command.to != READ:
            await sync_to_async(get_session_for)(visit_of(request, user), uuid, to=typed.command.to)
        outcome = await execute(typed, session, user)
    except LoomError as error:
        is_text = isinstance(error, NoCommand)
        answer = {"message": error.message, "code": error.code, "is_text": is_text}
        return JsonResponse(answer, status=error.status)
    return JsonResponse(asdict(outcome))


def _list_commands(request: HttpRequest, uuid: UUID) -> dict[str, Any]:
    session, access = get_session_for(request, uuid)
    allowed = (READ, WRITE) if access.can_write else (READ,)
    return {
        "commands": [_describe(command) for command in commands_for(allowed=allowed)],
        "files": reverse("workspace_files", args=[session.workspace.slug]),
        "style": static("css/commands.css"),
    }


def _describe(command: Command) -> dict[str, Any]:
    return {
        "name": command.name,
        "says": command.says,
        "argument": command.argument,
        "needs_argument": command.needs_argument,
        "choices": _choices(command),
        "on_the_page": command.name in ON_THE_PAGE,
    }


def _choices(command: Command) -> list[dict[str, str]]:
    if command.argument == "model":
        return [{"value": model.id, "says": model.name} for model in list_models()]
    return [{"value": name, "says": says} for name, says in command.choices.items()]


# The keys, and the page that lists them with the commands.


type Keys = tuple[tuple[tuple[str, ...], str], ...]

KEYS: tuple[tuple[str, Keys], ...] = (
    (
        "Writing",
        (
            (("Enter",), "Send the message"),
            (("Shift", "Enter"), "New line"),
            (("/",), "Commands, where the message begins; the message, from elsewhere"),
            (("@",), "Files of the workspace"),
            (("Esc",), "Stop the answer; leave a list, the editor or a menu"),
        ),
    ),
    (
        "Going places",
        (
            (("Ctrl", "K"), "Sessions, commands and pages"),
            (("Ctrl", "Shift", "O"), "New session"),
            (("Alt", "↑", "↓"), "Session above, session below"),
            (("j", "k"), "Next row, previous row"),
            (("f",), "Find in this session; Enter goes to the next hit"),
            (("?",), "This list"),
        ),
    ),
)
"""Groups of keys with what they do."""

ENTER_BREAKS: Keys = ((("Ctrl", "Enter"), "Send the message"), (("Enter",), "New line"))
"""The first two, for whoever prefers that."""


@login_required
@require_safe
def help_page(request: HttpRequest) -> HttpResponse:
    """Commands and keys: a page, and what the chat shows in a dialog."""
    keys = KEYS
    if read_preferences(person(request).pk).enter == "break":
        (writing, usual), *others = KEYS
        keys = ((writing, ENTER_BREAKS + usual[2:]), *others)
    return render_page(request, "help.html", "lists", {"commands": COMMANDS, "keys": keys})
