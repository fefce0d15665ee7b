"""The commands of the composer: what there are, and what somebody typed.

The one table of them: the list above the composer, the palette, the page of commands
and keys and the plain form are made from it. :mod:`carry_out` does what they say.
Commands are for this server; the model never gets them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches

from conversations.archive.rights import READ, WRITE
from conversations.domain.errors import Rejected
from conversations.feature import features


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """``argument`` is what may follow the name; empty: nothing may. ``to`` is the right
    that it takes in the workspace. ``choices`` and ``view``: see ``DownloadCommand``."""

    name: str
    says: str
    argument: str = ""
    needs_argument: bool = False
    to: str = READ
    choices: Mapping[str, str] = field(default_factory=dict)
    view: str = ""


COMMANDS = (
    Command(name="help", says="Show the commands and keys"),
    Command(name="new", says="Start a new session", to=WRITE),
    Command(name="resume", says="Switch session", argument="words"),
    Command(
        name="history", says="Load older messages, or find text in this session", argument="words"
    ),
    Command(name="clear", says="Clear the view (nothing is deleted)"),
    Command(name="compact", says="Summarize older turns", to=WRITE),
    Command(
        name="rename",
        says="Rename this session",
        argument="title",
        needs_argument=True,
        to=WRITE,
    ),
    Command(
        name="model",
        says="Choose the model",
        argument="model",
        needs_argument=True,
        to=WRITE,
    ),
    Command(name="undo", says="Undo the file changes of the last answer"),
    *(Command(**asdict(command)) for feature in features() for command in feature.commands()),
)

_FIRST_WORD = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)


class NoCommand(Rejected):
    """It begins like a command. It can be sent as a message all the same."""

    code = "no_command"


@dataclass(frozen=True, slots=True)
class Typed:
    """A command with what follows its name."""

    command: Command
    argument: str


def read_command(text: str, commands: Iterable[Command] = COMMANDS) -> Typed | None:
    """The command that the text is; None for a message, such as one that begins with a
    path. Raises NoCommand for a name that is none, and for one with the wrong rest."""
    found = _FIRST_WORD.fullmatch(text.rstrip())
    if found is None:
        return None
    name, argument = found[1].lower(), (found[2] or "").strip()
    by_name = {command.name: command for command in commands}
    command = by_name.get(name)
    if command is None:
        raise NoCommand(f"Unknown command /{name[:40]}.{_nearest(name, by_name)}")
    if argument and not command.argument:
        raise NoCommand(f"/{name} takes no argument.")
    if command.needs_argument and not argument:
        raise NoCommand(f"/{name} needs a {command.argument}.")
    return Typed(command, argument)


def choice_of(command: Command, argument: str) -> str:
    """What is chosen of its choices. Raises Rejected for what is none of them."""
    wanted = argument.lower() or next(iter(command.choices))
    if wanted not in command.choices:
        named = f"{command.argument}s: {', '.join(command.choices)}"
        raise Rejected(f"Choose one of these {named}.", code=f"bad_{command.argument}")
    return wanted


def commands_for(*, allowed: Iterable[str]) -> Iterator[Command]:
    """Those that somebody with these rights can use."""
    rights = frozenset(allowed)
    return (command for command in COMMANDS if command.to in rights)


def _nearest(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" Did you mean /{near[0]}?" if near else " See /help for the list."
