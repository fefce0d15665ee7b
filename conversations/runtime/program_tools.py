"""Tools that a program provides with its message and executes itself.

In the run that answers the message they are tools like others. A call of such a tool waits until
the program submits its result, and then the run goes on. A result that does not come in time is a
failure that the model reads. The tools are held by the process that executes the run and are
dropped when the run ends.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from conversations.agent.tools.registry import NO_MORE
from conversations.agent.tools.tool import Tool, ToolContext, ToolResult
from conversations.archive.runs import ClaimedRun
from conversations.domain.errors import Rejected
from conversations.domain.messages import Message, say
from conversations.models import ToolCall

WAIT_SECONDS = 600.0  # How long a call waits for its program

TOO_LATE = "The program that provided this tool did not respond in time."

GIVEN_UP = "The program that provided this tool continued without a result."

MAX_CLIENT_TOOLS = 128

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


@dataclass(slots=True)
class _RequestTools:
    """The tools of one message.

    ``results`` holds the results of their calls by primary key, both those that are waited for and
    those that the program has submitted. ``changed`` is set whenever another call waits.
    ``is_over`` means that the program has sent another message since.
    """

    tools: Mapping[str, Tool]
    results: dict[int, asyncio.Future[ToolResult]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False

    def open_calls(self) -> frozenset[int]:
        return frozenset(pk for pk, result in self.results.items() if not result.done())

    def result_of(self, call_pk: int) -> asyncio.Future[ToolResult]:
        if call_pk not in self.results:
            self.results[call_pk] = asyncio.get_running_loop().create_future()
        return self.results[call_pk]


class ProgramTools:
    def __init__(self) -> None:
        self.requests: dict[tuple[int, str], _RequestTools] = {}

    def register(self, session_pk: int, client_id: str, declarations: Sequence[Any]) -> None:
        """Save the tools for the message with this ``client_id``, before the message is sent.

        The tools are declared as in the Messages API. Raise Rejected for an invalid declaration.
        """
        if not declarations or (session_pk, client_id) in self.requests:
            return
        if len(declarations) > MAX_CLIENT_TOOLS:
            raise _refused(
                say("A request can provide at most %(limit)s tools.", limit=MAX_CLIENT_TOOLS)
            )
        request_tools = _RequestTools(tools={})
        tools = [
            _read_tool(index, declaration, request_tools, self)
            for index, declaration in enumerate(declarations)
        ]
        request_tools.tools = MappingProxyType({tool.name: tool for tool in tools})
        self.requests[session_pk, client_id] = request_tools

    def tools_of(self, session_pk: int, client_id: str) -> Mapping[str, Tool]:
        request_tools = self.requests.get((session_pk, client_id))
        return NO_MORE if request_tools is None else request_tools.tools

    def with_own_tools(
        self, claimed: ClaimedRun, server_tools: Mapping[str, Tool]
    ) -> Mapping[str, Tool]:
        """Return the tools of servers together with those that the program provided for the run."""
        own_tools = self.tools_of(claimed.session_pk, claimed.client_id)
        return MappingProxyType({**server_tools, **own_tools}) if own_tools else server_tools

    def forget(self, session_pk: int, client_id: str) -> None:
        """Drop the tools of a run that has ended or was never begun."""
        self.requests.pop((session_pk, client_id), None)

    def list_unanswered(
        self, session_pk: int, client_id: str, calls: Sequence[ToolCall]
    ) -> list[ToolCall]:
        """Return the run's open calls whose result the program has not submitted.

        This includes calls whose turn comes after other calls.
        """
        request_tools = self.requests.get((session_pk, client_id))
        if request_tools is None:
            return []
        results = request_tools.results
        return [
            call
            for call in calls
            if call.name in request_tools.tools
            and (call.pk not in results or not results[call.pk].done())
        ]

    async def wait_for_others(
        self, session_pk: int, client_id: str, *, than: frozenset[int]
    ) -> frozenset[int]:
        """Return the waiting calls as soon as they differ from ``than``.

        If there are no tools, wait for ever.
        """
        request_tools = self.requests.get((session_pk, client_id))
        while request_tools is None or request_tools.open_calls() == than:
            changed = request_tools.changed if request_tools is not None else asyncio.Event()
            changed.clear()
            await changed.wait()
        return request_tools.open_calls()

    def end_waiting_runs(self, session_pk: int) -> None:
        """Let the runs of the session that wait for the program end with the results that they get.

        The program has sent another message, whose run answers with those results.
        """
        for (pk, _), request_tools in self.requests.items():
            if pk == session_pk and request_tools.open_calls():
                request_tools.is_over = True

    def is_over(self, claimed: ClaimedRun) -> bool:
        """Return whether the run should end with the results of its calls."""
        request_tools = self.requests.get((claimed.session_pk, claimed.client_id))
        return request_tools is not None and request_tools.is_over

    def abandon_calls(self, session_pk: int) -> None:
        """Fail the waiting calls of the session, because the program continues without them."""
        for (pk, _), request_tools in self.requests.items():
            if pk == session_pk:
                for call_pk in request_tools.open_calls():
                    request_tools.results[call_pk].set_result(ToolResult(ok=False, output=GIVEN_UP))

    def submit_result(
        self, session_pk: int, client_id: str, call_pk: int, result: ToolResult
    ) -> None:
        """Save the result of a call, even before its turn has come. The first result counts."""
        request_tools = self.requests.get((session_pk, client_id))
        if request_tools is not None and not request_tools.result_of(call_pk).done():
            request_tools.result_of(call_pk).set_result(result)

    async def wait_for_result(self, request_tools: _RequestTools, call_pk: int) -> ToolResult:
        """Return the result of a call that the program submits, or a failure."""
        result = request_tools.result_of(call_pk)
        if request_tools.is_over and not result.done():
            return ToolResult(ok=False, output=GIVEN_UP)
        request_tools.changed.set()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await result
        except TimeoutError:
            return ToolResult(ok=False, output=TOO_LATE)


def _read_tool(
    place: int, declaration: Any, request_tools: _RequestTools, tools: ProgramTools
) -> Tool:
    if not isinstance(declaration, dict) or not isinstance(declaration.get("input_schema"), dict):
        raise _refused(
            say(
                "tools[%(place)s]: A tool must be an object with a name and an input_schema.",
                place=place,
            )
        )
    name, description = declaration.get("name"), declaration.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _refused(
            say(
                "tools[%(place)s]: Its name must have 1 to 128 letters, digits, - and _.",
                place=place,
            )
        )

    async def run(context: ToolContext, arguments: dict[str, Any]) -> ToolResult:
        return await tools.wait_for_result(request_tools, context.call_pk)

    return Tool(
        name=name,
        description=description if isinstance(description, str) else "",
        arguments=declaration["input_schema"],
        run=run,
    )


def _refused(message: Message) -> Rejected:
    return Rejected(message, code="bad_tool")
