"""What a tool is, and what a call of one is given and gives."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID


class Crossing(Protocol):
    """Runs a function of the archive on a thread that may use the database."""

    async def __call__[**P, T](
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """For whom a call is carried out, and its ways to the archive. ``user_pk`` is
    the person whose message is being answered; None: a program of the server.
    ``call_turn`` is the turn that holds the call, ``root`` the workspace's folder.
    ``write`` is one transaction."""

    session_pk: int
    session: UUID
    user_pk: int | None
    call_turn: int
    root: Path
    read: Crossing
    write: Crossing


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call gave: text for the model and the row; ``ok`` False: it failed."""

    ok: bool
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """``run`` gets the arguments as the model sent them: it checks them itself and
    answers with ``ok=False`` and a sentence that says what to do instead."""

    name: str
    description: str
    input_schema: dict[str, Any]
    run: Callable[[ToolContext, dict[str, Any]], Awaitable[ToolResult]]
