"""Probing a model with small requests: whether it answers, how fast, and what input it accepts."""

from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from conversations.domain.errors import ProviderError
from conversations.domain.formats.contents import text_block
from conversations.domain.stream import (
    IMAGES,
    TOOLS,
    BlockDelta,
    MessageCompleted,
    ModelRequest,
)
from conversations.domain.turns import text_of_answer

from .model_routing import ModelRouter

MAX_TOKENS = 64
MAX_SHOWN_CHARS = 200  # Length of the answer in a report

TOOL = {
    "name": "current_time",
    "description": "The current time.",
    "input_schema": {"type": "object", "properties": {}},
}
# A small white square.
IMAGE = {
    "type": "image",
    "source": {
        "type": "base64",
        "media_type": "image/png",
        "data": (
            "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAADklEQVR4nGP4DwUMlDEA98A/wbI0QbsAAAAA"
            "SUVORK5CYII="
        ),
    },
}


@dataclass(slots=True, kw_only=True)
class ProbeReport:
    """The result of a probe.

    ``error`` says why the model did not answer. ``takes`` holds what was found out.
    """

    model: str
    text: str = ""
    error: str = ""
    first_ms: int | None = None
    duration_ms: int = 0
    takes: dict[str, bool] = field(default_factory=dict)


async def probe_model(models: ModelRouter, model: str) -> ProbeReport:
    """Probe the model and save what is learnt. A failure of the model is in the report."""
    report = ProbeReport(model=model)
    began = monotonic()
    try:
        async with aclosing(models.stream(_make_request(model, "Say hello."))) as items:
            async for item in items:
                if isinstance(item, BlockDelta) and report.first_ms is None:
                    report.first_ms = int((monotonic() - began) * 1000)
                elif isinstance(item, MessageCompleted):
                    report.text = text_of_answer(item.blocks)[:MAX_SHOWN_CHARS]
    except ProviderError as error:
        report.error = error.message
        return report
    finally:
        report.duration_ms = int((monotonic() - began) * 1000)
    requests = {
        TOOLS: _make_request(model, "What time is it?", tools=[TOOL]),
        IMAGES: _make_request(model, "Which colour is this?", image=IMAGE),
    }
    known = models.find(model).takes
    for capability, request in requests.items():
        if capability not in known:
            takes = await _accepts(models, request, capability)
            if takes is not None:
                await models.learn_capability(model, capability, takes=takes)
                report.takes[capability] = takes
    return report


async def _accepts(models: ModelRouter, request: ModelRequest, capability: str) -> bool | None:
    """Return whether the model accepts the request, or None if it failed for another reason."""
    try:
        async with aclosing(models.stream(request)) as items:
            async for item in items:
                if isinstance(item, MessageCompleted):
                    return True
    except ProviderError as error:
        if error.refused == capability:
            return False
    return None


def _make_request(
    model: str, text: str, *, image: dict[str, Any] | None = None, **fields: Any
) -> ModelRequest:
    content = [*([image] if image else []), text_block(text)]
    messages = [{"role": "user", "content": content}]
    return ModelRequest(model=model, messages=messages, max_tokens=MAX_TOKENS, **fields)
