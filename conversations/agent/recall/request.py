"""What was asked of recall: for whom, about which session, from which place on."""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from conversations.agent.tools.tool import Arguments, BadArgument, OneOf, Text, Whole

from .reading import SessionFacts, find_exchange_start, read_own_facts, read_quotable_facts

# The arguments of ``conversation_recall``.


# Results of one call: seed 000's default, and as many as keep a passage each.
DEFAULT_LIMIT, MAX_LIMIT = 10, 20

Action = Literal["search", "range", "tool_calls", "summary", "sessions"]


class Recall(Arguments):
    """Turns are numbered from 1; 0: none was sent."""

    action: Annotated[
        Action,
        OneOf,
        Field(
            description=(
                "search: turns that hold the words of 'query', best first, each with its "
                "neighbours. range: turns from 'start_turn' to 'end_turn'; a single turn comes "
                "whole. tool_calls: past calls of 'tool_name', newest first. summary: state and "
                "figures of the session. sessions: the other sessions that can be "
                "quoted here; with 'query', turns in them."
            )
        ),
    ]
    query: Annotated[
        Text,
        Field(
            description=(
                "Words to look for ('search', 'sessions', and as a filter 'tool_calls'). The "
                'more of them a turn holds, and the rarer, the better it ranks. "…" keeps a '
                "phrase together; role:user, tool:NAME, before:2025-03-01 and "
                "after:2025-03-01 narrow the search."
            )
        ),
    ] = ""
    tool_name: Annotated[Text, Field(description="The tool, for 'tool_calls'.")] = ""
    start_turn: Annotated[Whole, Field(description="First turn, for 'range'.")] = 0
    end_turn: Annotated[Whole, Field(description="Last turn, included, for 'range'.")] = 0
    limit: Annotated[
        Whole, Field(description=f"Results, at most {MAX_LIMIT}. Default {DEFAULT_LIMIT}.")
    ] = DEFAULT_LIMIT
    cursor: Annotated[
        Text, Field(description="Goes on where an earlier result ended, as that result gave it.")
    ] = ""
    session: Annotated[
        Text,
        Field(
            description=(
                "Id of another session as 'sessions' lists it, for 'search', 'range', "
                "'tool_calls' and 'summary'. Default: this session."
            )
        ),
    ] = ""


MAX_QUERY = 1_000  # Characters of a query that are used


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call. ``session_pk`` and ``session`` are where it was made."""

    session_pk: int
    session: UUID
    user_pk: int | None
    call_turn: int
    arguments: Recall

    def query(self) -> str:
        return self.arguments.query[:MAX_QUERY]

    def limit(self) -> int:
        return min(self.arguments.limit, MAX_LIMIT)

    def target(self) -> "Target":
        """The session to look into. Raises BadArgument unless it is this one or another that can be
        quoted in it."""
        text = self.arguments.session
        uuid = _read_uuid(text) if text else self.session
        if uuid == self.session:
            facts = read_own_facts(self.session_pk)
            before = find_exchange_start(self.session_pk, self.call_turn)
            return Target(facts=_existing(facts), is_own=True, before=before)
        facts = _existing(read_quotable_facts(self.session_pk, self.user_pk, uuid))
        return Target(facts=facts, is_own=False, before=facts.turn_count + 1)

    def sealed_cursor(self, *about: object) -> str:
        """The inner part of a cursor that goes with these arguments only; empty if none was sent.
        Raises BadArgument for one of another call."""
        text = self.arguments.cursor
        if not text:
            return ""
        seal, _, inner = text.partition(".")
        if seal != _seal(about) or not inner:
            raise BadArgument(
                "This cursor goes with another action, query or session. Send the same"
                " arguments as in the call that gave it, or leave 'cursor' out."
            )
        return inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The session that is looked into. ``before``: only turns below it are searched, since the
    exchange that is running answers itself."""

    facts: SessionFacts
    is_own: bool
    before: int

    @property
    def pk(self) -> int:
        return self.facts.pk

    @property
    def uuid(self) -> UUID | None:
        """None for the session that the call was made in."""
        return None if self.is_own else self.facts.uuid

    @property
    def title(self) -> str:
        return self.facts.title


def seal_cursor(inner: str, *about: object) -> str:
    """A cursor that :meth:`Request.sealed_cursor` takes with the same ``about``."""
    return f"{_seal(about)}.{inner}"


def _seal(about: tuple[object, ...]) -> str:
    return sha256(repr(tuple(map(str, about))).encode("utf-8", "replace")).hexdigest()[:6]


def _existing(facts: SessionFacts | None) -> SessionFacts:
    if facts is None:
        raise BadArgument(
            "There is no such session in this workspace, or it cannot be quoted here. Action"
            " 'sessions' lists those that can."
        )
    return facts


def matched_cursor(request: Request, form: re.Pattern[str], *, action: str) -> re.Match[str] | None:
    """The cursor in the form that the action gives out; None if none was sent."""
    text = request.arguments.cursor
    if not text:
        return None
    match = form.fullmatch(text)
    if match is None:
        raise BadArgument(
            f"This is not a cursor of '{action}'. Send one exactly as it was given, or"
            " leave 'cursor' out to begin at the beginning."
        )
    return match


def _read_uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise BadArgument(
            "'session' must be the id of a session as action 'sessions' lists it. Leave it"
            " out to look into this session."
        ) from error


def more_line(cursor: str) -> str:
    """How the model is told that there is more."""
    return f'More: call again with the same arguments and cursor="{cursor}".' if cursor else ""
