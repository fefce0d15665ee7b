"""What each command of the composer does.

The page carries some of them out by itself (:data:`ON_THE_PAGE`); here they have the
meaning that works without JavaScript: an address, as a rule.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlencode
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse

from conversations.agent.undo.records import has_changes, last_changing_run
from conversations.archive import sessions as archive_sessions
from conversations.domain.errors import Rejected
from conversations.models import Session
from conversations.runtime.current import current_runtime, find_model, list_models, started_runtime

from .commands import Command, Typed, choice_of
from .hydration import hydrate

ON_THE_PAGE = frozenset({"help", "resume", "history", "clear"})
"""Commands that scripts carry out without asking the server."""

PAGE, PANEL, FILE = "page", "panel", "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What to say, and where to go: to a page, a part of the panel or a file. ``value``
    is what was chosen."""

    said: str = ""
    url: str = ""
    opens: str = PAGE
    value: str = ""


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """One command, given by a person who has the right to."""

    session: Session
    user: User
    argument: str

    def address(self, name: str, **query: str) -> str:
        url = reverse(name, args=[self.session.uuid])
        return f"{url}?{urlencode(query)}" if query else url


async def execute(typed: Typed, session: Session, user: User) -> CommandResult:
    """Do it. The caller has checked the right that the command takes. Raises Rejected."""
    order = CommandRequest(session, user, typed.argument)
    if typed.command.view:
        return _download(order, typed.command)
    return await _ACTIONS[typed.command.name](order)


async def _help(order: CommandRequest) -> CommandResult:
    return CommandResult(url=reverse("help"))


async def _new(order: CommandRequest) -> CommandResult:
    session = await sync_to_async(archive_sessions.open_empty_session)(
        order.session.workspace, owner=order.user
    )
    return CommandResult(url=reverse("session", args=[session.uuid]))


async def _resume(order: CommandRequest) -> CommandResult:
    url = reverse("workspace", args=[order.session.workspace.slug])
    return CommandResult(url=f"{url}?{urlencode({'q': order.argument})}" if order.argument else url)


async def _history(order: CommandRequest) -> CommandResult:
    if order.argument and order.argument.lower() != "older":
        return CommandResult(url=order.address("session_find", q=order.argument), opens=PANEL)
    page = await sync_to_async(hydrate)(order.session, limit=settings.LOOM.page_size)
    if not page.older:
        return CommandResult(said="No older messages.")
    return CommandResult(url=order.address("session", before=str(page.older)))


async def _clear(order: CommandRequest) -> CommandResult:
    raise Rejected("Clearing the view needs JavaScript.", code="needs_script")


async def _compact(order: CommandRequest) -> CommandResult:
    runtime = await current_runtime()
    await runtime.compact(order.session, client_id=uuid4().hex, user_pk=order.user.pk)
    return CommandResult(said="Older turns are being summarised for the model. Nothing is removed.")


async def _rename(order: CommandRequest) -> CommandResult:
    title = await sync_to_async(archive_sessions.rename_session)(
        order.session, title=order.argument
    )
    if runtime := started_runtime():
        runtime.publisher.publish(order.session.pk, {"type": "title", "title": title})
    return CommandResult(said=f"The session is called {title} now.", value=title)


async def _model(order: CommandRequest) -> CommandResult:
    model = find_model(order.argument, list_models())
    await sync_to_async(archive_sessions.choose_model)(order.session, model=model.id)
    return CommandResult(said=f"From now on {model.name} answers.", value=model.id)


async def _undo(order: CommandRequest) -> CommandResult:
    """What the last answer has changed; everything, if that was put back."""
    if not await sync_to_async(has_changes)(order.session.pk):
        return CommandResult(said="No file was changed in this session.")
    run = await sync_to_async(last_changing_run)(order.session.pk)
    query = {"run": str(run)} if run else {}
    return CommandResult(url=order.address("session_changes", **query), opens=PANEL)


def _download(order: CommandRequest, command: Command) -> CommandResult:
    url = order.address(command.view, **{command.argument: choice_of(command, order.argument)})
    return CommandResult(said="Downloading the session.", url=url, opens=FILE)


_ACTIONS: dict[str, Callable[[CommandRequest], Awaitable[CommandResult]]] = {
    "help": _help,
    "new": _new,
    "resume": _resume,
    "history": _history,
    "clear": _clear,
    "compact": _compact,
    "rename": _rename,
    "model": _model,
    "undo": _undo,
}
