"""Choosing: a workspace, and which of its sessions to go on with."""

from collections.abc import Sequence
from uuid import UUID

from conversations.domain.columns import fit
from conversations.domain.errors import Rejected
from conversations.domain.text import one_line

from .bridge import Bridge
from .connection import ChatConnection, SessionChoice, WorkspaceChoice
from .keyboard import Keyboard
from .screen import BOLD, PLAIN, Screen, visible

LISTED = 9

MAX_TITLE_COLUMNS = 50


class Nothing(Rejected):
    """What was asked for is not there, or not one alone."""

    code = "no_choice"


def choose_workspace(
    connection: ChatConnection, bridge: Bridge, screen: Screen, keyboard: Keyboard | None
) -> str:
    """The slug of the only workspace, or of the one that a person chooses. Raises
    Nothing, KeyboardInterrupt and EOFError."""
    found = bridge.call(connection.list_workspaces())
    if len(found) == 1:
        return found[0].slug
    if not found:
        raise Nothing("There is no workspace yet: see create_workspace.")
    if keyboard is None:
        names = ", ".join(one.slug for one in found)
        raise Nothing(f"Choose one of these workspaces by --workspace: {names}.")
    screen.notice("Workspaces:", BOLD)
    for number, one in enumerate(found, 1):
        screen.notice(f"  [{number}] {one.name} ({one.slug})", PLAIN)
    return _choose_one(found, screen, keyboard).slug


def choose_session(
    connection: ChatConnection,
    bridge: Bridge,
    screen: Screen,
    workspace: str,
    words: str,
    keyboard: Keyboard | None,
) -> UUID | None:
    """The session that has these words in its title, or the one that a person chooses;
    None for a new one. Raises Nothing, KeyboardInterrupt and EOFError."""
    found = bridge.call(connection.list_sessions(workspace, query=words, limit=LISTED))
    if words and len(found) == 1:
        return found[0].uuid
    if not found:
        raise Nothing("There is no such session.")
    if keyboard is None:
        raise Nothing("Several sessions fit: " + "; ".join(one.title for one in found))
    screen.notice(f"Sessions in {workspace}:", BOLD)
    for number, one in enumerate(found, 1):
        line = f"  [{number}] {describe_session(one)}"
        screen.notice(fit(visible(line), screen.width), PLAIN)
    screen.notice(f"  [{len(found) + 1}] Start a new session", PLAIN)
    chosen = _choose_one([*found, None], screen, keyboard)
    return chosen.uuid if chosen else None


def describe_session(session: SessionChoice) -> str:
    turns = f"{session.turn_count} turn{'' if session.turn_count == 1 else 's'}"
    when = f"{session.last_active_at:%Y-%m-%d %H:%M} UTC"
    title = one_line(session.title, limit=MAX_TITLE_COLUMNS) or "Untitled session"
    return " · ".join(fact for fact in (when, title, turns, session.model) if fact)


def _choose_one[T: WorkspaceChoice | SessionChoice | None](
    choices: Sequence[T], screen: Screen, keyboard: Keyboard
) -> T:
    """By its number; Enter alone takes the first."""
    while True:
        typed = keyboard.read(screen.prompt("Number, or Enter for [1]: "), "").strip() or "1"
        if typed.isascii() and typed.isdigit() and 1 <= int(typed[:9]) <= len(choices):
            return choices[int(typed) - 1]
        screen.notice(f"Type a number from 1 to {len(choices)}.")
