"""Turns as the messages of other programs, and their messages as turns.

A format is one module with two functions: ``read_messages`` makes turns of messages, and
``write_messages`` makes messages of turns. What a turn holds is the same for all of them,
so what was read in one format can be written in another.

What is read is never lost in its own format: where the plain reading of a message would
not give exactly the same message again (an unknown key, a text in another spelling), the
difference is kept in the turn's metadata (``kept``). What a format has no word for is
listed in ``docs/formats.md``.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from conversations.domain.turns import AnyTurn, NewTurn

from . import messages_api, openai_chat
from .contents import Message as Message
from .contents import OpenContent as OpenContent
from .contents import leave_closed as leave_closed

ANTHROPIC, OPENAI = messages_api.NAME, openai_chat.NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """``read`` raises Rejected, which names the message, for what is no message of this
    format. ``write`` takes turns in order; a message may stand for several of them, so
    each comes with the number of its first one (its place, for turns without numbers)."""

    name: str
    read: Callable[[Iterable[Any]], Iterator[NewTurn]]
    write: Callable[[Iterable[AnyTurn], OpenContent], Iterator[tuple[int, Message]]]


FORMATS = {
    ANTHROPIC: Format(
        name=ANTHROPIC, read=messages_api.read_messages, write=messages_api.write_messages
    ),
    OPENAI: Format(name=OPENAI, read=openai_chat.read_messages, write=openai_chat.write_messages),
}
