"""Questions that tool servers ask people in the middle of a call."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.archive.run_transcript import read_run_transcript
from conversations.archive.tool_calls import ask_question
from conversations.domain.errors import Conflict, Rejected
from conversations.models import Session, ToolCall, Workspace
from conversations.runtime.database import RetryingWriter
from conversations.runtime.service import Runtime
from tests.mcp_servers.running import HttpServer, config, plain, sdk, until
from tests.runtime.conftest import HttpServers, Page
from tests.runtime.tool_stories import answers, calls_of, notices, require_whole, results
from tests.tools.test_mcp import QUICK
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)

type Start = Callable[..., Any]


@pytest.fixture
def garden_auto(garden: Session) -> Session:
    """Return the session ``garden`` in a workspace whose calls need no approval."""
    Workspace.objects.update(tool_policy="auto")
    return garden


@pytest.fixture(scope="module")
def server(http_servers: HttpServers) -> Iterator[HttpServer]:
    """Yield a tool server that is built with the SDK."""
    with http_servers() as running:
        yield running


async def until_asked(session: Session) -> tuple[ToolCall, dict[str, Any]]:
    """Wait until the run waits for an answer, and return the call and its question."""
    async with asyncio.timeout(60):
        while True:
            run = await session.runs.order_by("-pk").afirst()
            asked = await notices(session, "question_asked")
            answered = await notices(session, "question_answered")
            if len(asked) > len(answered) and run is not None and run.state == "waiting_approval":
                assert asked[-1].data is not None
                return (await calls_of(session))[-1], asked[-1].data
            await asyncio.sleep(0.01)


async def begin(runtime: Runtime, session: Session, wire: WireThread, tool: str) -> None:
    wire.enqueue(*answers((tool, {})))
    await runtime.send(session, client_id="client-1", text="go", user_pk=session.owner_id)


@pytest.mark.parametrize("protocol", ["stdio", "http", "handshake"])
async def test_an_answer_is_sent_to_the_server(
    start_runtime: Start,
    wire: WireThread,
    garden_auto: Session,
    server: HttpServer,
    protocol: str,
) -> None:
    garden = garden_auto
    made = {"stdio": sdk(), "http": {"url": server.url}, "handshake": plain("asks")}
    runtime: Runtime = await start_runtime(mcp=config(sdk=made[protocol]), mcp_timing=QUICK)
    await begin(runtime, garden, wire, "mcp__sdk__ask")
    call, asked = await until_asked(garden)
    assert (asked["server"], asked["message"]) == ("sdk", "What is your name?")
    assert [one["name"] for one in asked["fields"]] == ["name"]
    given: dict[str, Any] = {"call": call.uuid, "user_pk": garden.owner_id}
    one: dict[str, Any] = given | {"question": asked["id"], "action": "accept"}
    with pytest.raises(Rejected, match="is required"):
        await runtime.answer_question(garden, **one)
    with pytest.raises(Rejected, match="action"):
        await runtime.answer_question(garden, **one | {"action": "cancel"})
    with pytest.raises(Conflict, match="no longer needs"):
        await runtime.answer_question(garden, **one | {"question": "another"})
    content = {"name": "Bob", "other": "left out"}
    await runtime.answer_question(garden, **one, content=content)
    await runtime.answer_question(garden, **one, content=content)  # repeated without effect
    with pytest.raises(Conflict, match="ann has already answered"):
        await runtime.answer_question(garden, **one | {"action": "decline"})
    await runtime.wait_idle(garden.pk)
    [result] = await results(garden)
    assert result in ("accept Bob", '{"action": "accept", "content": {"name": "Bob"}}')
    [notice] = await notices(garden, "question_answered")
    assert notice.text == "Answered by ann: What is your name?"
    assert notice.data is not None
    assert notice.data["content"] == {"name": "Bob"}
    told = await sync_to_async(read_run_transcript)(call.run_id)
    codes = [row["payload"].get("code") for row in told.rows]
    assert [code for code in codes if code] == ["question_asked", "question_answered"]
    await require_whole(garden)


async def test_a_person_can_open_or_decline_an_address(
    start_runtime: Start, wire: WireThread, garden_auto: Session
) -> None:
    garden = garden_auto
    made = config(plain=plain("asks"))
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    for number, action in enumerate(("accept", "decline")):
        wire.enqueue(*answers(("mcp__plain__visit", {}), prefix=action))
        await runtime.send(garden, client_id=f"client-{number}", text="go", user_pk=garden.owner_id)
        call, asked = await until_asked(garden)
        assert asked["url"] == "https://example.org/sign-in"
        await runtime.answer_question(
            garden, call=call.uuid, question=asked["id"], action=action, user_pk=garden.owner_id
        )
        await runtime.wait_idle(garden.pk)
    assert await results(garden) == ['{"action": "accept"}', '{"action": "decline"}']


async def test_the_wait_for_an_answer_does_not_count_towards_the_timeout(
    start_runtime: Start, wire: WireThread, garden_auto: Session
) -> None:
    garden = garden_auto
    made = config(sdk=plain("asks", timeout_seconds=1))
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    await begin(runtime, garden, wire, "mcp__sdk__ask")
    call, asked = await until_asked(garden)
    await asyncio.sleep(1.5)
    await runtime.answer_question(
        garden, call=call.uuid, question=asked["id"], action="decline", user_pk=garden.owner_id
    )
    await runtime.wait_idle(garden.pk)
    assert await results(garden) == ['{"action": "decline"}']


@pytest.mark.parametrize("way", ["run", "call", "process"])
async def test_a_stop_ends_the_question_and_the_server_is_told(
    start_runtime: Start, wire: WireThread, garden_auto: Session, server: HttpServer, way: str
) -> None:
    garden = garden_auto
    # The program writes the answer that it got to a file.
    made = {"url": server.url} if way == "process" else plain("asks")
    runtime: Runtime = await start_runtime(mcp=config(sdk=made), mcp_timing=QUICK)
    await begin(runtime, garden, wire, "mcp__sdk__ask")
    call, asked = await until_asked(garden)
    if way == "run":
        await runtime.stop_run(garden)
    elif way == "call":
        await runtime.cancel_call(garden, call=call.uuid, user_pk=garden.owner_id)
    else:
        await runtime.stop()
        runtime = await start_runtime()
    await runtime.wait_idle(garden.pk)
    [notice] = await notices(garden, "question_answered")
    assert notice.text == "Not answered: What is your name?"
    with pytest.raises(Conflict, match="no longer needs"):
        await runtime.answer_question(
            garden, call=call.uuid, question=asked["id"], action="decline", user_pk=garden.owner_id
        )
    if way != "process":
        answered = Path(garden.workspace.root) / "answered"
        await until(lambda: answered.exists() and answered.read_text() == '{"action": "cancel"}')
    await require_whole(garden)


async def test_a_run_does_not_wait_for_the_answer_to_a_call_that_has_ended(
    start_runtime: Start,
    wire: WireThread,
    garden_auto: Session,
    open_page: Callable[[Runtime], Page],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = RetryingWriter.write

    async def write_slowly(self: Any, job: Any, *args: Any, **values: Any) -> Any:
        done = await write(self, job, *args, **values)
        if job is ask_question:
            await asyncio.sleep(0.3)  # the call ends meanwhile
        return done

    monkeypatch.setattr(RetryingWriter, "write", write_slowly)
    made = config(sdk=plain("asks", "hurries"))
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    page = open_page(runtime)
    await begin(runtime, garden_auto, wire, "mcp__sdk__ask")
    await runtime.wait_idle(garden_auto.pk)
    assert await results(garden_auto) == ["{}"]
    assert "waiting_approval" not in [frame["run_state"] for frame in page.of_type("state")]
    await require_whole(garden_auto)


async def test_a_question_can_be_answered_in_another_process(
    start_runtime: Start, wire: WireThread, garden_auto: Session, server: HttpServer, tmp_path: Any
) -> None:
    garden = garden_auto
    made = config(sdk={"url": server.url})
    first: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    second: Runtime = await start_runtime(data_dir=tmp_path / "second")
    await begin(first, garden, wire, "mcp__sdk__ask")
    call, asked = await until_asked(garden)
    await second.answer_question(
        garden, call=call.uuid, question=asked["id"], action="decline", user_pk=garden.owner_id
    )
    await first.wait_idle(garden.pk)
    assert await results(garden) == ["decline"]
