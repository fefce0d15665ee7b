"""Any history can be sent after any change of the model.

The servers differ in their protocols and in the input that they support.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from conversations.agent.window.messages import (
    CAPABILITY_OF,
    MessageCaps,
    expand_request,
    make_piece,
    withhold,
)
from conversations.agent.window.window import WindowTexts, make_request
from conversations.archive.attachments import attachment_block, save_attachment
from conversations.archive.session_state import StateText
from conversations.domain.runs import NO_CHOICES
from conversations.domain.stream import DOCUMENTS, IMAGES, TOOLS
from conversations.domain.text import dump_json
from conversations.domain.turns import StoredTurn
from conversations.models import Session
from conversations.providers.anthropic_messages import make_body as write_messages
from conversations.providers.openai_chat import make_body as write_chat
from conversations.providers.openai_responses import make_body as write_responses
from tests.archive import files
from tests.context.test_window import turn
from tests.wire.openai_protocols import read_chat, read_responses
from tests.wire.rules.blocks import sign_thinking
from tests.wire.rules.request import check_request
from tests.wire.server import MODELS

pytestmark = pytest.mark.django_db

UPSTREAM = "claude-haiku-4-5"  # the name of the model on every server here
HISTORIES = 300

# The model's id, with functions that write a request for its server and read it there.
KINDS = {
    UPSTREAM: (write_messages, lambda body: body),
    "chat/m": (write_chat, read_chat),
    "responses/m": (write_responses, read_responses),
}
# Kinds of input that servers may not support.
TAKES: tuple[dict[str, bool], ...] = (
    {},
    {IMAGES: False, DOCUMENTS: False},
    {TOOLS: False},
    {IMAGES: False, DOCUMENTS: False, TOOLS: False},
)
TOOL = {"name": "look", "description": "d", "input_schema": {"type": "object"}}


@pytest.fixture
def attached(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path)
    user_pk = session.owner_id
    contents = [(files.image_bytes(), "a.png"), (b"Once upon a time", "story.txt")]
    kept = [
        save_attachment(session.pk, data=data, name=name, user_pk=user_pk, turn=1)
        for data, name in contents
    ]
    return [attachment_block(one) for one in kept]


def make_history(chance: random.Random, attached: list[dict[str, Any]]) -> Iterator[StoredTurn]:
    """Yield the turns of a random history, in which each answer is by one of the models.

    It has messages, answers with thinking and tool calls, results, cut answers and refusals.
    """
    number = 0

    def add(role: str, content: str = "", **fields: Any) -> StoredTurn:
        nonlocal number
        number += 1
        return turn(number, role, content, **fields)

    for exchange in range(chance.randint(1, 5)):
        text = f"Message {exchange}"
        blocks = [*chance.sample(attached, chance.randint(0, 2)), {"type": "text", "text": text}]
        yield add("user", text, blocks=dump_json(blocks))
        for _ in range(chance.randint(0, 3)):
            model, said = chance.choice(list(KINDS)), chance.choice(["", " ", "Well"])
            calls = [
                {
                    "type": "tool_use",
                    "id": chance.choice(["call_1", "toolu_" + "x" * 60, f"c{number}_{place}"]),
                    "name": chance.choice(["look", "server__" + "y" * 100]),
                    "input": chance.choice([{}, {"a": [1]}, {"_unparsed": '{"a'}]),
                }
                for place in range(chance.randint(0, 3))
            ]
            blocks = [*make_thinking(chance, model), {"type": "text", "text": said}, *calls]
            yield add(
                "assistant",
                said,
                blocks=dump_json(blocks),
                stop_reason=chance.choice(["", "end_turn", "max_tokens", "refusal"]),
                metadata=dump_json({"model": model}),
            )
            for call in calls[: chance.randint(0, 3)]:
                given = chance.sample(attached, chance.randint(0, 1))
                yield add(
                    "tool",
                    chance.choice(["", "found it"]),
                    blocks=dump_json(given) if given else None,
                    tool_call_id=call["id"],
                    metadata=dump_json({"ok": chance.random() < 0.8 or bool(given)}),
                )
    yield add("user", "And now?")


def make_thinking(chance: random.Random, model: str) -> list[dict[str, Any]]:
    if chance.random() < 0.5:
        return []
    signature = {
        UPSTREAM: sign_thinking("Hm", UPSTREAM),
        "responses/m": dump_json({"id": "rs_1", "encrypted_content": "sealed:m"}),
    }.get(model)
    thought = {"type": "thinking", "thinking": "Hm"}
    return [thought | ({"signature": signature} if signature else {})]


def test_any_history_is_sendable_to_any_model(
    session: Session, attached: list[dict[str, Any]]
) -> None:
    models = {model.id: model for model in MODELS}
    caps = MessageCaps(message=10**6, result=10**6)
    sent = 0
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        turns = list(make_history(chance, attached))
        takes = TAKES[seed % len(TAKES)]
        has_tools = takes.get(TOOLS, True)
        for model, (write, read) in KINDS.items():
            pieces = [make_piece(one, model=model, caps=caps) for one in turns]
            files = [block for piece in pieces for block in piece.references]
            request, _ = make_request(
                pieces,
                WindowTexts(
                    system="Be brief",
                    tools=dump_json([TOOL] if has_tools else []),
                    state=StateText(yaml="", turn=0, seq=0),
                    hint="",
                    parent=None,
                    skills=[],
                    compaction=None,
                    lines={},
                ),
                model=UPSTREAM,
                max_tokens=100,
                preamble="",
                go_on=False,
                cache="5m" if model == UPSTREAM else "off",
                withheld=withhold(session.pk, files, takes=takes),
                choices=NO_CHOICES,
                has_tools=has_tools,
            )
            body = write(expand_request(request))
            text = dump_json(body)
            assert "And now?" in text
            assert takes.get(CAPABILITY_OF["image"], True) or "base64" not in text
            read_body = read(body)
            check_request(read_body, models)
            if not has_tools:
                assert '"tool_use"' not in dump_json(read_body)
            sent += 1
    assert sent == HISTORIES * len(KINDS)
