"""The arguments of ``conversation_recall``."""

from typing import Annotated, Literal

from pydantic import Field

from conversations.tools.arguments import Arguments, OneOf, Text, Whole

DEFAULT_LIMIT, MAX_LIMIT = 10, 20
"""Results of one call: seed 000's default, and as many as keep a passage each."""

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
