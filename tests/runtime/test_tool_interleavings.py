"""Random actions of people in random order: every call ends once and runs at most once."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.archive.sessions import create_session
from conversations.domain.errors import Conflict
from conversations.models import Session
from conversations.runtime.service import Runtime
from tests.runtime.conftest import run_state
from tests.runtime.sample_tools import sample_tools, witness
from tests.runtime.tool_stories import calls_of, require_whole

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("tools")]

ROUNDS = 8


@pytest.fixture
def tools() -> Iterator[None]:
    with sample_tools():
        yield


def some_calls(random: Random, prefix: str) -> list[tuple[str, dict[str, Any]]]:
    kinds: list[Callable[[int], tuple[str, dict[str, Any]]]] = [
        lambda n: ("add", {"line": f"{prefix}{n}", "file": f"{prefix}.txt"}),
        lambda n: ("peek", {"fail": random.random() < 0.3}),
        lambda n: ("work", {"lines": 3, "effect": random.choice(["reads", "changes"])}),
        lambda n: ("dig", {}),
    ]
    return [random.choice(kinds)(number) for number in range(random.randint(1, 5))]


async def meddle(runtime: Runtime, session: Session, random: Random) -> None:
    """Do at random what several people might do to the calls, until the run has ended."""
    idle = asyncio.create_task(runtime.wait_idle(session.pk))
    while not idle.done():
        calls = [call for call in await calls_of(session) if call.result_turn is None]
        action = random.choice(["once", "once", "deny", "always", "cancel", "look", "stop"])
        with suppress(Conflict):
            if action == "stop":
                if random.random() < 0.2:
                    await runtime.stop_run(session)
            elif calls and action == "cancel":
                await runtime.cancel_call(session, call=random.choice(calls).uuid, user_pk=None)
            elif calls and action != "look":
                call = random.choice(calls)
                decision = action if "kind_key" in call.asked or action != "always" else "once"
                await asyncio.gather(
                    *(
                        runtime.decide_call(
                            session, call=call.uuid, decision=each, user_pk=session.owner_id
                        )
                        for each in {decision, random.choice(["once", "deny"])}
                    ),
                    return_exceptions=True,
                )
        await asyncio.sleep(random.uniform(0, 0.02))


async def test_every_call_ends_once_under_random_actions_of_people(
    runtime: Runtime, garden: Session
) -> None:
    folder = Path(garden.workspace.root)
    for seed in range(ROUNDS):
        random, prefix = Random(seed), f"r{seed}"
        session = await sync_to_async(create_session)(garden.workspace, owner=garden.owner)
        tools = [{"name": n, "input": arguments} for n, arguments in some_calls(random, prefix)]
        text = f"[[wire: tools={json.dumps(tools)}]]"
        await runtime.send(session, client_id="client-1", text=text, user_pk=session.owner_id)
        async with asyncio.timeout(30):
            await meddle(runtime, session, random)
        assert await run_state(session) in ("completed", "stopped"), seed
        await require_whole(session)
        calls = [call for call in await calls_of(session) if call.name == "add"]
        path = folder / f"{prefix}.txt"
        done = path.read_text().splitlines() if path.exists() else []
        assert len(done) == len(set(done)), seed
        allowed = [call for call in calls if call.ok]
        assert sorted(done) == sorted(json.loads(call.arguments)["line"] for call in allowed), seed
        assert not [call for call in allowed if call.decision == "deny"], seed
    assert len(witness(folder)) < 100
