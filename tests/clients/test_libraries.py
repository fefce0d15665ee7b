"""Client libraries, each in a conversation of four messages."""

import os

import pytest

from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import Installation

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own"),
]

ROME = ToolCall(name="weather", input={"place": "Rome"})
ANSWERS = ["Plant beans.", "Then water them, every day but not at noon.", "Warm.", "Welcome."]

CLIENTS = [
    ("anthropic_sdk.py", "sync"),
    ("anthropic_sdk.py", "async"),
    ("anthropic_sdk.py", "runner"),
    ("anthropic_sdk.mjs", "sdk"),
    ("openai_sdk.py", "chat"),
    ("openai_sdk.py", "responses"),
    ("openai_sdk.mjs", "chat"),
    ("openai_sdk.mjs", "responses"),
    ("langchain_models.py", "anthropic"),
    ("langchain_models.py", "chat"),
    ("langchain_models.py", "responses"),
    ("pydantic_agents.py", "anthropic"),
    ("pydantic_agents.py", "chat"),
    ("pydantic_agents.py", "responses"),
    ("litellm_completions.py", "anthropic"),
    ("litellm_completions.py", "openai"),
    ("aisuite_completions.py", "anthropic"),
    ("aisuite_completions.py", "openai"),
    ("ai_sdk.mjs", "anthropic"),
    ("ai_sdk.mjs", "chat"),
    ("ai_sdk.mjs", "responses"),
]


@pytest.mark.parametrize(("program", "kind"), CLIENTS)
def test_a_conversation_is_one_session(
    program: str, kind: str, installation: Installation, wire: WireThread
) -> None:
    beans, water, warm, welcome = ANSWERS
    wire.enqueue(
        Scenario(text=beans),
        Scenario(text=water, rate=50),
        Scenario(text="I look.", tools=(ROME,)),
        Scenario(text=warm),
        Scenario(text=welcome),
    )
    said = installation.run_program(program, kind)
    assert said["texts"] == ANSWERS
    assert said["pieces"] > 1 or program.startswith("aisuite")  # aisuite does not stream
    assert installation.read("SELECT count(*) FROM conversations_session") == [(1,)]
    # aisuite sends the results of its tools as JSON.
    assert [(role, text.strip('"')) for role, text in installation.turns()] == [
        ("user", "What now?"),
        ("assistant", beans),
        ("user", "Go on."),
        ("assistant", water),
        ("user", "And the weather in Rome?"),
        ("assistant", "I look."),
        ("tool", "25 degrees in Rome"),
        ("assistant", warm),
        ("user", "Thank you."),
        ("assistant", welcome),
    ]
