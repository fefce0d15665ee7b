"""The tour: its steps with the demo model, and the long session in which it looks back."""

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from conversations.archive.sessions import has_expired
from conversations.archive.verify import verify_sessions
from conversations.domain.stream import MessageCompleted, ModelRequest
from conversations.features.tour.views import HISTORY_TURNS, SAID
from conversations.models import Session, Workspace
from conversations.providers.config import OPENAI, ProviderConfig
from conversations.providers.demo import LOOK_AROUND, LOOK_BACK, RUN_COMMAND, TOUR, DemoProvider
from tests.web.conftest import browser_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner(user: User) -> Client:
    return browser_of(user)


def test_the_long_session_is_valid_and_made_only_once(owner: Client, workspace: Workspace) -> None:
    Workspace.objects.update(expire_after_hours=1)  # counted from now, although the turns are older
    address = reverse("tour_history", args=[workspace.slug])
    first, second = (owner.post(address)["Location"] for _ in range(2))
    assert first == second
    session = Session.objects.get()
    assert session.turn_count == HISTORY_TURNS
    assert not has_expired(session.expires_at)
    assert [found.problem for found in verify_sessions() if found.problem] == []
    page = owner.get(first).text
    assert LOOK_BACK.text in page
    assert LOOK_AROUND.text not in page
    # An expired session cannot be used for the tour, so another one is made.
    Session.objects.update(expires_at=timezone.now())
    assert owner.post(address)["Location"] != first
    assert Session.objects.count() == 2


def test_steps_are_offered_only_with_the_demo_model(
    owner: Client, session: Session, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = reverse("session", args=[session.uuid])
    assert f'value="{LOOK_AROUND.text}"' in owner.get(page).text
    model = ProviderConfig(name="local", kind=OPENAI, url="http://127.0.0.1:9/v1")
    monkeypatch.setattr(settings.LOOM, "providers", (model,))
    assert "data-tour" not in owner.get(page).text
    assert owner.post(reverse("tour_history", args=[workspace.slug])).status_code == 404


async def answer(*content: Any, tools: tuple[str, ...]) -> MessageCompleted:
    messages = [
        {"role": "assistant" if n % 2 else "user", "content": part}
        for n, part in enumerate(content)
    ]
    request = ModelRequest(
        model="demo", messages=messages, tools=[{"name": name} for name in tools]
    )
    *_, done = [item async for item in DemoProvider(delay=0).stream(request)]
    assert isinstance(done, MessageCompleted)
    return done


@pytest.mark.parametrize("step", TOUR.values(), ids=lambda step: step.text)
async def test_a_step_calls_its_tools_and_reports_their_results(step: Any) -> None:
    names = tuple(name for name, _ in step.calls)
    asked = await answer(step.text, tools=names)
    calls = [block for block in asked.blocks if block["type"] == "tool_use"]
    assert tuple(call["name"] for call in calls) == names
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": f"1: {SAID}"}
        for call in calls
    ]
    done = await answer(step.text, asked.blocks, results, tools=names)
    assert step.after in done.blocks[0]["text"]
    assert (SAID in done.blocks[0]["text"]) == (step is LOOK_BACK)
    denied = [result | {"is_error": True} for result in results]
    done = await answer(step.text, asked.blocks, denied, tools=names)
    assert step.failed in done.blocks[0]["text"]


async def test_a_step_reports_that_its_tool_is_missing() -> None:
    [said] = (await answer(RUN_COMMAND.text, tools=("read_file",))).blocks
    assert "does not offer it" in said["text"]
