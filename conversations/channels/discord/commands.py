"""What people can ask of the bot itself, typed or chosen from Discord's list.

The names and meanings are those of the composer (``web.commands``), as far as they make
sense in a place that has one session."""

from itertools import islice

from conversations.archive.sessions import begin_anew
from conversations.archive.turns import walk_active_turns_back
from conversations.domain.discord_rules import CHANNEL
from conversations.domain.jsontext import load_json
from conversations.domain.message_parts import MESSAGE_LIMIT, size_of
from conversations.domain.text import one_line, strip_marks
from conversations.domain.turns import StoredTurn
from conversations.models import Session

from .items import escape

COMMANDS = {
    "new": "Start a new session here; the earlier one stays in the archive",
    "history": "Show what was said last in this session",
    "stop": "Stop the answer that is being written",
    "help": "Show these commands",
}

SHOWN_TURNS = 10
SHOWN_CHARS = 300

BEGUN_BY = "begun_by"
"""In a session's metadata: the message with which it was begun."""


def read_command(text: str) -> str | None:
    """The command that a message is, without anything else in it."""
    word = text.strip().lower()
    return word[1:] if word[:1] == "/" and word[1:] in COMMANDS else None


def describe_commands() -> str:
    return "\n".join(f"`/{name}` {says}" for name, says in COMMANDS.items())


def begin_in_place(session: Session, *, message: int) -> None:
    """Begin anew in the session's place, once for each message that asks for it; an empty
    session is as good as a new one."""
    is_begun = load_json(session.metadata, default={}).get(BEGUN_BY) == str(message)
    if session.turn_count and session.key and not is_begun:
        begin_anew(
            session.workspace,
            key=session.key,
            owner=session.owner,
            channel=CHANNEL,
            metadata={BEGUN_BY: str(message)},
        )


def describe_history(session: Session) -> str:
    """The last things that were said, the oldest first."""
    walk = walk_active_turns_back(session.pk, has_rewinds=session.rewind_count > 0, page=50)
    said = (turn for turn in walk if turn.role in _MARKS and turn.content.strip())
    lines: list[str] = []
    for turn in islice(said, SHOWN_TURNS):
        line = _line(turn)
        if size_of("\n".join([line, *lines])) > MESSAGE_LIMIT:
            break
        lines.insert(0, line)
    return "\n".join(lines) or "Nothing was said in this session yet."


_MARKS = {"user": "▸", "assistant": "◂"}


def _line(turn: StoredTurn) -> str:
    said = escape(one_line(strip_marks(turn.content), limit=SHOWN_CHARS), limit=SHOWN_CHARS)
    return f"{_MARKS[turn.role]} {said}"
