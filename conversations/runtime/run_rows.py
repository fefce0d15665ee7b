"""The turn and the rows that a run writes: of an answer, and of what went wrong with it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from conversations.domain.errors import BudgetReached, ProviderError
from conversations.domain.events import AssistantText, Info, Payload, ToolCallStarted
from conversations.domain.stream import Block, MessageCompleted
from conversations.domain.text import dump_json, estimate_tokens, storable
from conversations.domain.turns import NewTurn, text_of_answer


@dataclass(slots=True)
class _TextRow:
    """One row in the making: thinking, then text, up to the next tool call."""

    thinking: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    thinking_ms: int = 0

    @property
    def text(self) -> str:
        return storable("".join(self.texts))


def make_turn(message: MessageCompleted) -> NewTurn:
    """The turn of a complete answer; its blocks exactly as they were received."""
    content = storable(text_of_answer(message.blocks))
    return NewTurn(
        role="assistant",
        content=content,
        blocks=dump_json(message.blocks),
        tool_calls=dump_json(calls) if (calls := tool_calls_of(message.blocks)) else None,
        token_count=message.usage.output_tokens or estimate_tokens(content),
        stop_reason=message.stop_reason[:64],
        metadata=dump_json({"model": message.model, "message_id": message.message_id}),
    )


def make_payloads(
    message: MessageCompleted, *, thinking_ms: Mapping[int, int], calls: Sequence[UUID]
) -> list[Payload]:
    """The rows of a complete answer. ``thinking_ms`` is by block index, ``calls`` are
    the uuids of its calls' records, in order."""
    payloads: list[Payload] = []
    uuids = iter(calls)
    for item in _pieces(message.blocks, thinking_ms):
        if not isinstance(item, _TextRow):
            started = ToolCallStarted(
                call=str(next(uuids)),
                call_id=storable(str(item.get("id", ""))),
                name=storable(str(item.get("name") or "tool")),
                arguments=item.get("input"),
            )
            payloads.append(started)
            continue
        thinking = storable("\n\n".join(item.thinking).strip())
        if item.text.strip() or thinking:
            payloads.append(
                AssistantText(
                    text=item.text,
                    thinking=thinking,
                    thinking_ms=item.thinking_ms or None,
                    model=message.model,
                )
            )
    return payloads


def _pieces(blocks: Sequence[Block], thinking_ms: Mapping[int, int]) -> Iterator[_TextRow | Block]:
    """Texts and tool calls in order; thinking opens a row of text."""
    row = _TextRow()
    for index, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text":
            row.texts.append(str(block.get("text", "")))
        elif kind == "thinking":
            if row.texts:
                yield row
                row = _TextRow()
            row.thinking.append(str(block.get("thinking", "")))
            row.thinking_ms += thinking_ms.get(index, 0)
        elif kind == "tool_use":
            yield row
            yield block
            row = _TextRow()
    yield row


def tool_calls_of(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.get("type") == "tool_use"]


# What a person is told when an answer fails, and what can be done next.

NEXT_STEP = {
    "no_key": "Set ANTHROPIC_API_KEY and restart the server.",
    "bad_key": "Check ANTHROPIC_API_KEY and restart the server.",
    "permission": "Choose another model, or ask for access to this one.",
    "billing": "Check the provider's billing settings, then retry.",
    "unknown_model": "Choose another model, then retry.",
    "invalid_request": "Edit the message, or retry.",
    "request_too_large": "Shorten the message, then send it again.",
    "context_window_exceeded": "Shorten the message, or start a new session.",
    "rate_limited": "Wait a moment, then retry.",
    "overloaded": "Wait a moment, then retry.",
    "server_error": "Retry; it may be over already.",
    "timeout": "Retry; it may be over already.",
    "connection_failed": "Check the network and ANTHROPIC_BASE_URL, then retry.",
    "connection_lost": "Retry to answer again, or send a message to go on from here.",
    "stream_error": "Retry to answer again, or send a message to go on from here.",
    "incomplete_stream": "Retry to answer again, or send a message to go on from here.",
    "bad_response": "Check that ANTHROPIC_BASE_URL speaks the Messages API.",
}

KEPT = "Your message is kept."


def describe_provider_error(error: ProviderError, *, run: str) -> Info:
    """The row for a failure of the provider."""
    facts = [f"code: {error.code}"]
    if error.http_status is not None:
        facts.append(f"status: {error.http_status}")
    if error.request_id:
        facts.append(f"request: {error.request_id}")
    return Info(
        text=f"{sentence(error.message)} {KEPT} {NEXT_STEP.get(error.code, 'Retry.')}",
        kind="error",
        code=error.code,
        detail="\n".join(facts),
        action="retry",
        run=run,
    )


def describe_refused_files(error: ProviderError) -> Info:
    """The row for an answer that was given without what is attached."""
    return Info(
        text="The provider refused the request with the attached files. This answer was given"
        " without them; they are kept.",
        code="files_refused",
        detail=f"{sentence(error.message)}\ncode: {error.code}",
    )


def describe_out_of_budget(error: BudgetReached, *, run: str, has_answered: bool) -> Info:
    """The row for a run that a budget ended, before its first model call or later."""
    kept = "What there is is kept; continue then." if has_answered else f"{KEPT} Retry then."
    return Info(
        text=f"{error.message} {kept}",
        kind="notice" if has_answered else "error",
        code=error.code,
        action="continue" if has_answered else "retry",
        run=run,
    )


def describe_crash(*, run: str) -> Info:
    """The row for a fault of ours; the log has the details."""
    return Info(
        text=f"Something went wrong in the server. {KEPT} Retry; the server's log says why.",
        kind="error",
        code="internal_error",
        action="retry",
        run=run,
    )


def describe_stop(stop_reason: str, *, explanation: str, run: str) -> Info | None:
    """The row for an answer that ended in an unusual way; None for an ordinary end."""
    known = _STOPS.get(stop_reason)
    if known is None:
        return None
    text, next_step, action = known
    return Info(
        text=" ".join(sentence(part) for part in (text, explanation, next_step) if part),
        kind="error" if action == "retry" else "notice",
        code=stop_reason,
        action=action,
        run=run,
    )


def sentence(text: str) -> str:
    """What a provider says does not always end like one."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


_STOPS = {
    "empty_answer": (
        "The model answered nothing.",
        "Retry, or put the question differently.",
        "retry",
    ),
    "refusal": (
        "The model declined to answer.",
        "Edit your message, or retry.",
        "retry",
    ),
    "max_tokens": (
        "The answer was cut at the output limit.",
        "Continue to have the rest written, or raise LOOM_MAX_OUTPUT_TOKENS.",
        "continue",
    ),
    "model_context_window_exceeded": (
        "The answer was cut because the model's window is full.",
        "Continue; older turns leave the window, none leaves the archive.",
        "continue",
    ),
    "too_many_calls": (
        "The run was ended after too many model calls in a row.",
        "Continue to let it go on. The limit is LOOM_MAX_MODEL_CALLS.",
        "continue",
    ),
}
