"""The synchronous SDK with a server in a process of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from anthropic import Anthropic
from django.contrib.auth.models import User

from tests.api.conftest import token_of
from tests.serving import serve_copy
from tests.starting import Starts
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import MODEL
from .test_client import WEATHER, request

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("workspace"),
    pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own"),
]


@pytest.fixture
def client(user: User, wire: WireThread, tmp_path: Path, starts: Starts) -> Iterator[Anthropic]:
    token = token_of(user)
    with serve_copy(tmp_path / "data", wire, popen=starts.popen) as server:
        url = f"http://127.0.0.1:{server.port}/api/v1/anthropic/garden"
        with Anthropic(
            base_url=url, auth_token=token, default_headers={"Loom-Session-Key": "sdk:sync"}
        ) as client:
            yield client


def test_a_program_sends_messages_streams_and_executes_tools(
    client: Anthropic, wire: WireThread
) -> None:
    wire.enqueue(Scenario(text="Beans."))
    message = client.messages.create(**request("What now?"))
    assert (message.content[0].text, message.model) == ("Beans.", MODEL)

    wire.enqueue(Scenario(words=60, rate=100))
    with client.messages.stream(**request("Go on")) as stream:
        texts = list(stream.text_stream)
    assert len(texts) > 3  # pieces, as the model wrote them

    wire.enqueue(
        Scenario(text="I look.", tools=(ToolCall(name="weather", input={"place": "Rome"}),)),
        Scenario(text="Warm."),
    )
    said = ["And the weather?"]
    with client.messages.stream(**request(*said, tools=[WEATHER])) as stream:
        message = stream.get_final_message()
    call = message.content[-1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "25 degrees"}
    answer = {"role": "assistant", "content": message.content}
    message = client.messages.create(
        **request(*said, answer, {"role": "user", "content": [result]}, tools=[WEATHER])
    )
    assert [block.text for block in message.content] == ["Warm."]
