"""The arguments of a recall call: its target session, filters and cursor."""

import re
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from conversations.agent.tools.tool import (
    BadArgument,
    OneOf,
    Text,
    ToolArguments,
    ToolContext,
    Whole,
)
from conversations.domain.turns import ASSISTANT, TOOL, USER
from conversations.search.query import SearchQuery, parse_query

from .queries import RecallTarget, find_exchange_start, find_session
from .quotation import (
    MAX_OUTPUT_TOKENS,
    MIN_QUOTED_TOKENS,
    MIN_RESERVED_TOKENS,
    RESERVED_TOKENS,
)

# Results per call: seed 000's default, and as many short messages as an answer has room for.
DEFAULT_LIMIT, MAX_LIMIT = 10, 50
Action = Literal["search", "range", "tool_calls", "summary", "sessions"]


class RecallArguments(ToolArguments):
    """The arguments of a call. Turn numbers start at 1, and 0 means that none was sent."""

    action: Annotated[
        Action,
        OneOf,
        Field(
            description=(
                "search: turns that hold the words of 'query', best first, each with its "
                "neighbours. range: turns from 'start_turn' to 'end_turn', those 'around' one, "
                "or some 'turns'; a single turn comes whole. tool_calls: past calls of "
                "'tool_name', newest first. summary: state and figures of the session. sessions: "
                "the other sessions that can be quoted here; with 'query', turns in them."
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
    only: Annotated[
        Text,
        Field(
            description=(
                "user: only what the person said; assistant: only your answers; tool: only results "
                "of tools. For 'search' and 'sessions'; leaves out the neighbours."
            )
        ),
    ] = ""
    before: Annotated[
        Text,
        Field(
            description=(
                "A date such as 2025-03-01, or the number of a turn: only what came before it. For "
                "'search' and 'sessions'."
            )
        ),
    ] = ""
    after: Annotated[
        Text, Field(description="The same for what came after; a date is included itself.")
    ] = ""
    tool_name: Annotated[Text, Field(description="The tool, for 'tool_calls'.")] = ""
    start_turn: Annotated[Whole, Field(description="First turn, for 'range'.")] = 0
    end_turn: Annotated[Whole, Field(description="Last turn, included, for 'range'.")] = 0
    turns: Annotated[
        Text, Field(description="Turns by number, for 'range', such as 12, 41, 87-90.")
    ] = ""
    around: Annotated[Whole, Field(description="A turn, for 'range': it and those next to it.")] = 0
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


ROLES = (USER, ASSISTANT, TOOL)  # Values of ``only``
# Fields of a query that the arguments can set
NARROWED = ("roles", "before_turn", "before_moment", "from_turn", "from_moment")
MAX_QUERY_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class RecallRequest:
    """One call: its context and its arguments."""

    context: ToolContext
    arguments: RecallArguments

    @property
    def query(self) -> str:
        return self.arguments.query[:MAX_QUERY_CHARS]

    @property
    def search_text(self) -> str:
        """Return the query with the filters of the arguments, as a cursor is bound to it."""
        return f"{' '.join(self._filters)} {self.query}".strip()

    @property
    def search_query(self) -> SearchQuery:
        """Return the query with the filters of the arguments.

        These replace the query's own filters of the same kind. Raise BadArgument if a filter is
        unknown.
        """
        search_query, narrowed = parse_query(self.query), parse_query(" ".join(self._filters))
        filters = {n: value for n in NARROWED if (value := getattr(narrowed, n)) not in (None, ())}
        return replace(search_query, **filters)

    @property
    def _filters(self) -> list[str]:
        sent, filters = self.arguments, []
        if sent.only and sent.only not in ROLES:
            raise BadArgument(f"'only' must be one of {', '.join(map(repr, ROLES))}.")
        for name, value in (("role", sent.only), ("before", sent.before), ("after", sent.after)):
            if not value:
                continue
            narrowed = f'{name}:"{value}"'
            if not parse_query(narrowed).has_filters:
                raise BadArgument(
                    f"'{name}' must be a date such as 2025-03-01 or the number of a turn."
                )
            filters.append(narrowed)
        return filters

    @property
    def max_tokens(self) -> int:
        """Return the limit of the answer. The model would not see all of a longer one."""
        return min(MAX_OUTPUT_TOKENS, self.context.result_cap)

    @property
    def budget(self) -> int:
        """Return the part of the limit that is for the quotation."""
        reserved = min(RESERVED_TOKENS, MIN_RESERVED_TOKENS + self.max_tokens // 8)
        return max(MIN_QUOTED_TOKENS, self.max_tokens - reserved)

    @property
    def limit(self) -> int:
        return min(self.arguments.limit, MAX_LIMIT)

    def target(self) -> RecallTarget:
        """Return the session to read.

        Raise BadArgument unless it is this session or another one that can be quoted in it.
        """
        context, text = self.context, self.arguments.session
        try:
            uuid = UUID(text) if text else None
        except ValueError as error:
            raise BadArgument(
                "'session' must be the id of a session as action 'sessions' lists it. Leave it"
                " out to look into this session."
            ) from error
        uuid = None if uuid == context.session else uuid
        session = find_session(context.session_pk, context.user_pk, uuid)
        if session is None:
            # The message is the same for a session that does not exist and one that may not be
            # quoted.
            raise BadArgument(
                "There is no such session in this workspace, or it cannot be quoted here. Action"
                " 'sessions' lists those that can."
            )
        before = session.next_turn
        if uuid is None:
            # Turns of the running exchange are searched too if they have left the window.
            start = find_exchange_start(session.pk, context.call_turn)
            before = max(start, session.floor_turn)
        return RecallTarget(session, uuid, before)

    def sealed_cursor(self, *about: object) -> str:
        """Return the inner part of a cursor that is only valid with the same arguments.

        Return an empty string if no cursor was sent. Raise BadArgument if the cursor is of another
        call.
        """
        text = self.arguments.cursor
        if not text:
            return ""
        inner = text.partition(".")[2]
        if not inner or text != seal_cursor(inner, *about):
            raise BadArgument(
                "This cursor goes with another action, query or session. Send the same"
                " arguments as in the call that gave it, or leave 'cursor' out."
            )
        return inner

    def matched_cursor(self, form: re.Pattern[str]) -> re.Match[str] | None:
        """Match the cursor against the format of the action. Return None if none was sent."""
        text = self.arguments.cursor
        match = form.fullmatch(text)
        if text and match is None:
            raise BadArgument(
                f"This is not a cursor of '{self.arguments.action}'. Send one exactly as it was"
                " given, or leave 'cursor' out to begin at the beginning."
            )
        return match


def seal_cursor(inner: str, *about: object) -> str:
    """Return a cursor that :meth:`RecallRequest.sealed_cursor` accepts with the same ``about``."""
    seal = sha256(repr(tuple(map(str, about))).encode("utf-8", "replace")).hexdigest()[:6]
    return f"{seal}.{inner}"
