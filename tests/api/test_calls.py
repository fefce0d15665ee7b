"""Tool calls by the API: waiting calls, decisions and results."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import AsyncClient, Client
from django.utils import timezone

from conversations.archive.tool_calls import list_permissions
from conversations.archive.workspaces import add_member
from conversations.models import Run, Session, ToolCall
from conversations.runtime.current import current_runtime
from tests.runtime.sample_tools import sample_tools
from tests.waiting_calls import leave_question
from tests.web.conftest import runtime_ends  # noqa: F401 (a fixture)

from .conftest import token_of
from .test_sessions import address_of

of_calls = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("transactional_db", "runtime_ends", "tools"),
]


@pytest.fixture
def tools() -> Iterator[None]:
    with sample_tools():
        yield


@pytest.fixture
async def call(runtime_ends: None, tools: None, session: Session) -> ToolCall:  # noqa: F811
    return await sync_to_async(leave_question)(session)


class Program:
    """An asynchronous client with a person's token, for the addresses of one session."""

    def __init__(self, token: str, session: Session) -> None:
        self._headers = {"Authorization": f"Bearer {token}"}
        self._session = session

    async def get(self, part: str) -> Any:
        return await AsyncClient().get(address_of(self._session, part), headers=self._headers)

    async def post(self, part: str, **body: Any) -> Any:
        return await AsyncClient().post(
            address_of(self._session, part),
            body,
            content_type="application/json",
            headers=self._headers,
        )


async def program_of(person: User, session: Session, **token: Any) -> Program:
    return Program(await sync_to_async(token_of)(person, **token), session)


@pytest.fixture
async def program(user: User, session: Session) -> Program:
    return await program_of(user, session)


async def ended(call: ToolCall) -> ToolCall:
    runtime = await current_runtime()
    await runtime.wait_idle(call.session_id)
    await call.arefresh_from_db()
    return call


class TestDeciding:
    pytestmark = of_calls

    async def test_a_waiting_call_is_listed_and_approved(
        self, program: Program, session: Session, call: ToolCall
    ) -> None:
        [waiting] = (await program.get("/calls?open=true")).json()["items"]
        assert (waiting["uuid"], waiting["state"]) == (str(call.uuid), "waiting_approval")
        assert waiting["arguments"] == {"line": "beans"}
        assert waiting["asked"]["summary"] == "Add to done.txt"
        answer = await program.post(f"/calls/{call.uuid}/approve")
        assert (answer.status_code, answer.json()["decision"]) == (200, "once")
        assert (await ended(call)).state == "completed"
        assert (Path(session.workspace.root) / "done.txt").read_text() == "beans\n"
        assert (await program.get("/calls?open=true")).json()["items"] == []
        whole = (await program.get(f"/calls/{call.uuid}")).json()
        assert (whole["state"], whole["decided_by"], whole["ok"]) == ("completed", "ann", True)
        assert whole["output"]

    async def test_the_reason_of_a_denial_is_the_output_of_the_call(
        self, program: Program, call: ToolCall
    ) -> None:
        answer = await program.post(f"/calls/{call.uuid}/deny", reason=" Not in winter ")
        assert answer.json()["reason"] == "Not in winter"
        await ended(call)
        whole = (await program.get(f"/calls/{call.uuid}")).json()
        assert whole["state"] == "denied"
        assert "Not in winter" in whole["output"]

    async def test_the_first_decision_counts(
        self, program: Program, session: Session, call: ToolCall, other_user: User
    ) -> None:
        await sync_to_async(add_member)(session.workspace, user_pk=other_user.pk, role="member")
        other = await program_of(other_user, session)
        path = f"/calls/{call.uuid}"
        answers = [
            await program.post(f"{path}/approve", always=True),
            await program.post(f"{path}/approve", always=True),
            await program.post(f"{path}/deny"),
            await other.post(f"{path}/approve"),
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 409, 409]
        assert answers[-1].json()["detail"] == "ann has already allowed this call."
        assert len(await sync_to_async(list_permissions)(session.workspace)) == 1

    async def test_a_waiting_call_is_cancelled_once(self, program: Program, call: ToolCall) -> None:
        answer = await program.post(f"/calls/{call.uuid}/cancel")
        assert (answer.status_code, answer.json()["stopped_by"]) == (200, "ann")
        assert (await ended(call)).state == "stopped"
        again = await program.post(f"/calls/{call.uuid}/cancel")
        assert (again.status_code, again.json()["code"]) == (409, "call_ended")


@pytest.mark.django_db
def test_calls_are_paged_in_order(session: Session, owner: Client) -> None:
    run = Run.objects.create(
        session=session, client_id="client-0", state="completed", created_at=timezone.now()
    )
    for number in range(5):
        ToolCall.objects.create(
            session=session,
            run=run,
            call_id=f"c{number}",
            name="look",
            state="completed",
            arguments="{broken" if number == 4 else "{}",
            turn_number=2,
            created_at=timezone.now(),
        )
    page = owner.get(address_of(session, "/calls?limit=3")).json()
    last = owner.get(address_of(session, f"/calls?limit=3&cursor={page['next']}")).json()
    shown = [[one["call_id"] for one in part["items"]] for part in (page, last)]
    assert shown == [["c0", "c1", "c2"], ["c3", "c4"]]
    assert last["items"][1]["arguments"] == "{broken"
    assert owner.get(address_of(session, "/calls?open=true")).json()["items"] == []
    assert owner.get(address_of(session, f"/calls/{session.uuid}")).status_code == 404
