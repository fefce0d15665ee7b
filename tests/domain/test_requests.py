"""The JSON of requests, which is the same for known blocks and for other blocks."""

from typing import Any

import pytest

from conversations.domain.stream import KnownBlock, ModelRequest
from conversations.domain.text import dump_json

TEXT = {"type": "text", "text": 'a "quoted" line\nand ä 日本 🎈'}
CALL = {"type": "tool_use", "id": "t", "name": "n", "input": {"deep": [1, None, {"é": True}]}}
LONE = {"type": "tool_use", "id": "t", "name": "n", "input": {"half": "\ud83c"}}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": [TEXT]}],
        [{"role": "user", "content": [TEXT, TEXT | {"cache_control": {"type": "ephemeral"}}]}],
        [{"role": "user", "content": [TEXT]}, {"role": "assistant", "content": [TEXT, CALL]}],
        [{"role": "user", "content": [TEXT]}, {"role": "assistant", "content": [LONE, TEXT]}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": "a text alone"}],
        [{"content": [TEXT], "role": "system", "more": 1}],
    ],
)
def test_known_blocks_do_not_change_the_json_of_messages(messages: list[dict[str, Any]]) -> None:
    known = [
        message | {"content": list(map(KnownBlock, message["content"]))}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]
    for given in (messages, known, known):
        assert ModelRequest(model="m", messages=given).messages_json == dump_json(messages)
