"""One answer and its events, in the order in which the API sends them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.wire.frames import Frame, make_block_frames, make_frame
from tests.wire.prompt_cache import CacheFigures
from tests.wire.rules.prompt import CHARACTERS_PER_TOKEN
from tests.wire.scenario import Scenario

PING = {"type": "ping"}
FUTURE_EVENT = {"type": "future_event", "payload": {"index": 0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer to be sent: the scenario, its blocks and the cache figures."""

    message_id: str
    model: str
    scenario: Scenario
    blocks: list[dict[str, Any]]
    cache: CacheFigures
    stop_sequence: str | None = None

    @property
    def stop_reason(self) -> str:
        if self.scenario.stop_reason:
            return self.scenario.stop_reason
        if self.stop_sequence is not None:
            return "stop_sequence"
        if self.scenario.cut_tool:
            return "max_tokens"
        return "tool_use" if self.scenario.tools else "end_turn"

    @property
    def output_tokens(self) -> int:
        size = sum(len(json.dumps(block, ensure_ascii=False)) for block in self.blocks)
        return max(1, size // CHARACTERS_PER_TOKEN)

    def make_usage(self, output_tokens: int) -> dict[str, Any]:
        if not self.scenario.usage:
            return {}
        usage: dict[str, Any] = {"input_tokens": self.cache.input_tokens}
        if self.scenario.cache_fields:
            usage |= {
                "cache_creation_input_tokens": self.cache.written_tokens,
                "cache_read_input_tokens": self.cache.read_tokens,
                "cache_creation": {
                    "ephemeral_5m_input_tokens": self.cache.written_tokens,
                    "ephemeral_1h_input_tokens": 0,
                },
                "service_tier": "standard",
            }
        return {**usage, "output_tokens": output_tokens}

    def make_message(self) -> dict[str, Any]:
        """Return the whole answer, as it is sent without streaming."""
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.blocks,
            "stop_reason": self.stop_reason,
            "stop_sequence": self.stop_sequence,
            "stop_details": self.scenario.stop_details,
            "usage": self.make_usage(self.output_tokens),
        }

    def make_frames(self) -> Iterator[Frame]:
        """Yield the answer's events in order, with the events and blocks of ``extras``."""
        start = self.make_message() | {"content": [], "stop_reason": None, "stop_details": None}
        start["stop_sequence"] = None
        start["usage"] = self.make_usage(1)
        if not self.scenario.usage:
            del start["usage"]
        yield make_frame({"type": "message_start", "message": start})
        yield make_frame(PING)
        if self.scenario.extras:
            yield make_frame(FUTURE_EVENT)
        for index, block in enumerate(self.blocks):
            yield from make_block_frames(index, block, self.scenario)
        yield make_frame(self._make_end())
        yield make_frame({"type": "message_stop"})

    def _make_end(self) -> dict[str, Any]:
        end: dict[str, Any] = {
            "type": "message_delta",
            "delta": {
                "stop_reason": self.stop_reason,
                "stop_sequence": self.stop_sequence,
                "stop_details": self.scenario.stop_details,
            },
        }
        if self.scenario.usage:
            end["usage"] = self.make_usage(self.output_tokens)
        return end
