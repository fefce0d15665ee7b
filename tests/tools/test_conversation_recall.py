"""``conversation_recall``: what each action finds, refuses and never says."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User

from conversations.archive.append import append
from conversations.domain.jsontext import dump_json
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.tools.conversation_recall import TOOL
from conversations.tools.tool import ToolContext, ToolResult

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 1, 14, 22, tzinfo=UTC)


def keep(session: Session, *turns: NewTurn) -> list[int]:
    numbers = append(session.pk, session_uuid=session.uuid, turns=list(turns)).turns
    session.refresh_from_db()
    return numbers


def say(session: Session, *texts: str) -> list[int]:
    """Turns of the person and of the assistant by turns, a minute apart."""
    return keep(
        session,
        *(
            NewTurn(
                role="assistant" if place % 2 else "user",
                content=text,
                created_at=START + timedelta(minutes=place),
            )
            for place, text in enumerate(texts)
        ),
    )


def call_tool(
    session: Session, name: str, arguments: dict[str, Any], result: str, *, ok: bool = True
) -> list[int]:
    """An answer that calls a tool, and the tool's result."""
    call_id = f"toolu_{session.next_turn}"
    calls = dump_json([{"id": call_id, "name": name, "input": arguments}])
    return keep(
        session,
        NewTurn(role="assistant", content="", tool_calls=calls, created_at=START),
        NewTurn(
            role="tool",
            content=result,
            tool_call_id=call_id,
            tool_name=name,
            metadata=dump_json({"ok": ok}),
            created_at=START,
        ),
    )


type Look = Callable[..., ToolResult]


def look_for(session: Session, user_pk: int | None) -> Look:
    """Calls the tool in a session for a person; the call follows the last turn."""

    async def read(function: Any, *args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(function)(*args, **kwargs)

    def look(**arguments: Any) -> ToolResult:
        context = ToolContext(
            session_pk=session.pk,
            session=session.uuid,
            user_pk=user_pk,
            call_turn=session.next_turn,
            root=Path(session.workspace.root),
            read=read,
            write=read,
        )
        return async_to_sync(TOOL.run)(context, arguments)

    return look


@pytest.fixture
def look(session: Session, user: User) -> Look:
    return look_for(session, user.pk)


def turns_in(output: str) -> list[int]:
    """The turns that an answer quotes, in its order; calls of a turn count with it."""
    found = [int(number) for number in re.findall(r"^\[Turn (\d+)\]", output, re.M)]
    return list(dict.fromkeys(found))


def hits_in(output: str) -> list[int]:
    return [int(n) for n in re.findall(r"^\[Turn (\d+)\].*\bmatch\)", output, re.M)]


def test_a_search_quotes_each_hit_with_its_neighbours(session: Session, look: Look) -> None:
    say(session, "one", "two", "The key is zinnia.", "four", "five", "thanks", "ok")
    found = look(action="search", query="zinnia")
    assert found.ok
    assert hits_in(found.output) == [3]
    assert turns_in(found.output) == [2, 3, 4]
    assert "[Turn 3] user: (2026-03-01 14:24Z, match)\n  The key is zinnia.\n" in found.output


def test_a_range_gives_turns_in_order(session: Session, look: Look) -> None:
    say(session, "one", "two", "three", "four")
    assert turns_in(look(action="range", start_turn=2, end_turn=3).output) == [2, 3]


def test_past_calls_come_newest_first_with_arguments_and_outcome(
    session: Session, look: Look
) -> None:
    call_tool(session, "read_file", {"path": "a.py"}, "first")
    call_tool(session, "read_file", {"path": "b.py"}, "not there", ok=False)
    found = look(action="tool_calls", tool_name="read_file").output
    assert turns_in(found) == [4, 2]
    assert '[Turn 4] tool:read_file(path="b.py"): (2026-03-01 14:22Z, failed)' in found
