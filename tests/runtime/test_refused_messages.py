"""A message that the provider refused is left out of later requests."""

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.agent.window.manifest import read_manifest, rebuild_request
from conversations.archive.asides import read_aside
from conversations.archive.journal import walk_events
from conversations.archive.sessions import get_session
from conversations.archive.verify import verify_session
from conversations.domain.errors import Rejected
from conversations.domain.events import INCLUDED, SET_ASIDE, Info
from conversations.models import ModelCall, Session
from conversations.runtime.service import Runtime
from tests.wire.scenario import Scenario
from tests.wire.scenario import ToolCall as WireCall
from tests.wire.server import WireThread

from .conftest import ask

REFUSED = Scenario(status=400, error_message="messages: not allowed")


def given(request: dict[str, Any]) -> list[str]:
    """Return which of the tests' words occur in a request's messages."""
    texts = [str(block) for message in request["messages"] for block in message["content"]]
    return [word for word in ("apples", "bombs", "cherries", "dates") if word in "".join(texts)]


async def asides_of(session: Session) -> list[tuple[int, int]]:
    return await sync_to_async(read_aside)(session.pk)


async def notices_of(session: Session) -> list[Info]:
    events = await sync_to_async(walk_events)(session.pk, start=None, limit=500)
    wanted = (SET_ASIDE, INCLUDED)
    found = [event.payload for event in events]
    return [one for one in found if isinstance(one, Info) and one.code in wanted]


async def require_faithful(session: Session) -> None:
    """Assert that the archive is sound and that every request can be rebuilt."""
    stored = await sync_to_async(get_session)(session.uuid)
    assert (await sync_to_async(verify_session)(stored)).problem == ""
    async for call in ModelCall.objects.filter(session=session.pk):
        assert (await sync_to_async(rebuild_request)(call.pk)).matches


async def test_a_refused_message_is_left_out_until_it_is_included_again(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    await ask(runtime, garden, "apples")
    wire.enqueue(REFUSED)
    run = await ask(runtime, garden, "bombs")
    assert (run.state, run.user_turn) == ("failed", 3)
    assert await asides_of(garden) == [(3, 3)]
    [notice] = await notices_of(garden)
    assert notice.data == {"from": 3, "to": 3}
    await ask(runtime, garden, "cherries")
    assert given(wire.requests[-1]) == ["apples", "cherries"]
    call = await ModelCall.objects.filter(session=garden.pk).alatest("pk")
    assert read_manifest(call.manifest).aside == ((3, 3),)
    await runtime.include_turn(garden, turn=3)
    with pytest.raises(Rejected):
        await runtime.include_turn(garden, turn=3)
    await ask(runtime, garden, "dates")
    assert given(wire.requests[-1]) == ["apples", "bombs", "cherries", "dates"]
    assert [one.code for one in await notices_of(garden)] == [SET_ASIDE, INCLUDED]
    await require_faithful(garden)


async def test_retrying_a_refused_message_includes_it_again(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(REFUSED)
    await ask(runtime, garden, "bombs")
    with pytest.raises(Rejected):
        await runtime.continue_run(garden, client_id="continue-0001", user_pk=None)
    await runtime.regenerate(garden, client_id="retry-0001", turn=1, user_pk=None)
    await runtime.wait_idle(garden.pk)
    assert (given(wire.requests[-1]), await asides_of(garden)) == (["bombs"], [])
    await ask(runtime, garden, "cherries")
    assert given(wire.requests[-1]) == ["bombs", "cherries"]
    await require_faithful(garden)


async def test_the_first_message_can_be_set_aside(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(stop_reason="refusal"), REFUSED)
    await ask(runtime, garden, "bombs")
    await ask(runtime, garden, "apples")
    await ask(runtime, garden, "cherries")
    assert given(wire.requests[-1]) == ["cherries"]
    await require_faithful(garden)


async def test_the_answer_stays_when_the_tool_results_after_it_are_refused(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(text="dates", tools=(WireCall(name="look"),)), REFUSED)
    await ask(runtime, garden, "apples")
    assert await asides_of(garden) == [(3, 3)]
    await ask(runtime, garden, "cherries")
    assert given(wire.requests[-1]) == ["apples", "cherries", "dates"]
    assert "it has no result" in str(wire.requests[-1]["messages"])
    await require_faithful(garden)


@pytest.mark.parametrize(
    "failure", [Scenario(status=401), Scenario(error_after=3, error_type="invalid_request_error")]
)
async def test_other_failures_do_not_set_the_message_aside(
    start_runtime: Any, wire: WireThread, garden: Session, failure: Scenario
) -> None:
    runtime = await start_runtime(provider_retries=0)
    wire.enqueue(failure)
    await ask(runtime, garden, "bombs")
    await ask(runtime, garden, "cherries")
    assert given(wire.requests[-1]) == ["bombs", "cherries"]


async def test_an_earlier_failed_message_is_set_aside_at_the_next_refusal(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(status=401), REFUSED)
    await ask(runtime, garden, "bombs")
    await ask(runtime, garden, "apples")
    await ask(runtime, garden, "cherries")
    assert given(wire.requests[-1]) == ["cherries"]
