"""The commands of the composer: their table, parsing a typed command, and executing it.

The list above the composer, the palette, the page of commands and keys, and the plain form are all
made from this table. Some commands are executed by the page itself (help, resume, history, clear).
Here they do what works without JavaScript, which is mostly to open an address. Commands are for
this server; the model never gets them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import NamedTuple
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils.translation import gettext

from conversations.agent.undo.records import has_changes, last_changing_run
from conversations.archive.rights import READ, WRITE
from conversations.domain.errors import Rejected
from conversations.domain.messages import say
from conversations.feature import features
from conversations.models import Session
from conversations.runtime.current import (
    choose_model,
    current_runtime,
    find_model,
    list_models,
    open_new_session,
    rename_session,
)

from .hydration import hydrate


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposerCommand:
    """A command of the composer.

    ``argument`` describes the text that may follow the name; if it is empty, no text may. ``to`` is
    the right that the command needs in the workspace. See ``DownloadCommand`` for ``choices`` and
    ``view``. ``says`` and ``argument`` are translated when they are shown.
    """

    name: str
    says: str
    argument: str = ""
    needs_argument: bool = False
    to: str = READ
    choices: Mapping[str, str] = field(default_factory=dict)
    view: str = ""


COMMANDS = (
    ComposerCommand(name="help", says=say("Show commands and keyboard shortcuts")),
    ComposerCommand(name="new", says=say("Start a new session"), to=WRITE),
    ComposerCommand(name="resume", says=say("Switch session"), argument=say("words")),
    ComposerCommand(
        name="history",
        says=say("Load older messages, or find text in this session"),
        argument=say("words"),
    ),
    ComposerCommand(name="clear", says=say("Clear the view (nothing is deleted)")),
    ComposerCommand(name="compact", says=say("Summarize older turns"), to=WRITE),
    ComposerCommand(
        name="rename",
        says=say("Rename this session"),
        argument=say("title"),
        needs_argument=True,
        to=WRITE,
    ),
    ComposerCommand(
        name="model",
        says=say("Choose the model"),
        argument=say("model"),
        needs_argument=True,
        to=WRITE,
    ),
    ComposerCommand(name="undo", says=say("Undo the file changes of the last answer")),
    *(
        ComposerCommand(**asdict(command))
        for feature in features()
        for command in feature.commands()
    ),
)

_FIRST_WORD = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)


class UnknownCommand(Rejected):
    """The text looks like a command that is not valid. It can still be sent as a message."""

    code = "no_command"


class TypedCommand(NamedTuple):
    """A command together with its argument."""

    command: ComposerCommand
    argument: str


def read_command(text: str, commands: Iterable[ComposerCommand] = COMMANDS) -> TypedCommand | None:
    """Return the command that was typed, or None for a message, even one that begins with a path.

    Raise UnknownCommand for an unknown name, or for an argument that is missing or not allowed.
    """
    match = _FIRST_WORD.fullmatch(text.rstrip())
    if match is None:
        return None
    name, argument = match[1].lower(), (match[2] or "").strip()
    by_name = {command.name: command for command in commands}
    command = by_name.get(name)
    if command is None:
        suggestions = get_close_matches(name, list(by_name), n=1, cutoff=0.5)
        if suggestions:
            raise UnknownCommand(
                "Unknown command /%(name)s. Did you mean /%(near)s?",
                name=name[:40],
                near=suggestions[0],
            )
        raise UnknownCommand("Unknown command /%(name)s. See /help for the list.", name=name[:40])
    if argument and not command.argument:
        raise UnknownCommand("/%(name)s takes no argument.", name=name)
    if command.needs_argument and not argument:
        raise UnknownCommand(
            "/%(name)s needs a %(argument)s.", name=name, argument=command.argument
        )
    return TypedCommand(command, argument)


def choice_of(command: ComposerCommand, argument: str) -> str:
    """Return the choice that the argument names, or the first one. Raise Rejected for any other."""
    choice = argument.lower() or next(iter(command.choices))
    if choice not in command.choices:
        raise Rejected(
            "Choose one of these %(kind)s: %(choices)s.",
            code=f"bad_{command.argument}",
            kind=say("formats") if command.argument == "format" else f"{command.argument}s",
            choices=", ".join(command.choices),
        )
    return choice


# The actions of the commands.

PAGE, PANEL, FILE, TEXT = "page", "panel", "file", "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What to tell the person, and what to open: a page, a part of the panel or a file.

    ``value`` is the value that was chosen, or the text to edit (if ``opens`` is ``TEXT``).
    """

    said: str = ""
    url: str = ""
    opens: str = PAGE
    value: str = ""


async def execute(typed: TypedCommand, session: Session, user: User) -> CommandResult:
    """Execute a command, for which the caller has checked the right. May raise Rejected."""
    if typed.command.view:
        choice = {typed.command.argument: choice_of(typed.command, typed.argument)}
        url = reverse(typed.command.view, args=[session.uuid], query=choice)
        return CommandResult(said=gettext("Downloading the session."), url=url, opens=FILE)
    handlers = CommandHandlers(session, user)
    result: CommandResult = await getattr(handlers, typed.command.name)(typed.argument)
    return result


class CommandHandlers:
    """A method for each command, which gets the command's argument."""

    def __init__(self, session: Session, user: User) -> None:
        self.session, self.user = session, user

    async def help(self, argument: str) -> CommandResult:
        return CommandResult(url=reverse("help"))

    async def new(self, argument: str) -> CommandResult:
        here = reverse("session", args=[self.session.uuid])
        session = await sync_to_async(open_new_session)(
            self.session.workspace, owner=self.user, came_from=here
        )
        return CommandResult(url=reverse("session", args=[session.uuid]))

    async def resume(self, argument: str) -> CommandResult:
        query = {"q": argument} if argument else None
        return CommandResult(
            url=reverse("workspace", args=[self.session.workspace.slug], query=query)
        )

    async def history(self, argument: str) -> CommandResult:
        uuid = self.session.uuid
        if argument and argument.lower() != "older":
            url = reverse("session_find", args=[uuid], query={"q": argument})
            return CommandResult(url=url, opens=PANEL)
        page = await sync_to_async(hydrate)(self.session, limit=settings.LOOM.page_size)
        if not page.older:
            return CommandResult(said=gettext("No older messages."))
        query = {"before": str(page.older)}
        return CommandResult(url=reverse("session", args=[uuid], query=query))

    async def clear(self, argument: str) -> CommandResult:
        raise Rejected("Clearing the view needs JavaScript.", code="needs_script")

    async def compact(self, argument: str) -> CommandResult:
        runtime = await current_runtime()
        await runtime.compact(self.session, client_id=uuid4().hex, user_pk=self.user.pk)
        return CommandResult(
            said=gettext("Summarizing older turns for the model. Nothing is removed.")
        )

    async def rename(self, argument: str) -> CommandResult:
        title = await sync_to_async(rename_session)(self.session, title=argument)
        message = gettext("Session renamed to %(title)s.") % {"title": title}
        return CommandResult(said=message, value=title)

    async def model(self, argument: str) -> CommandResult:
        model = find_model(argument, list_models())
        await sync_to_async(choose_model)(self.session, model=model.id)
        message = gettext("Model: %(name)s.") % {"name": model.name}
        return CommandResult(said=message, value=model.id)

    async def undo(self, argument: str) -> CommandResult:
        """Open the changes of the last answer, or all changes if those were put back."""
        if not await sync_to_async(has_changes)(self.session.pk):
            return CommandResult(said=gettext("No files were changed in this session."))
        run = await sync_to_async(last_changing_run)(self.session.pk)
        query = {"run": str(run)} if run else None
        url = reverse("session_changes", args=[self.session.uuid], query=query)
        return CommandResult(url=url, opens=PANEL)
