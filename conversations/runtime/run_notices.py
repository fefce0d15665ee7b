"""What a person is told when an answer fails or ends early, and what can be done next."""

from conversations.domain.errors import BudgetReached, ProviderError
from conversations.domain.events import Info

NEXT_STEP = {
    "no_key": "Set the key in the server's environment and restart it.",
    "bad_key": "Check the key in the server's environment and restart it.",
    "permission": "Choose another model, or ask for access to this one.",
    "billing": "Check the provider's billing settings, then retry.",
    "unknown_model": "Choose another model, then retry.",
    "invalid_request": "Edit the message, or retry.",
    "request_too_large": "Shorten the message, then send it again.",
    "context_window_exceeded": "Shorten the message, send /compact, or start a new session.",
    "rate_limited": "Wait a moment, then retry.",
    "overloaded": "Wait a moment, then retry.",
    "server_error": "Retry; the problem may be over.",
    "timeout": "Retry; the problem may be over.",
    "connection_failed": "Check that the model server runs, and its address, then retry.",
    "connection_lost": "Retry to answer again, or send a message to continue from here.",
    "stream_error": "Retry to answer again, or send a message to continue from here.",
    "incomplete_stream": "Retry to answer again, or send a message to continue from here.",
    "bad_response": "Check the model server's address, and the protocol that it speaks.",
}

KEPT = "Your message is saved."

# Stop reasons: what is told, what to do next, and the button for that.
STOPS = {
    "empty_answer": (
        "The model gave no answer.",
        "Retry, or rephrase the question.",
        "retry",
    ),
    "refusal": ("The model declined to answer.", "Edit your message, or retry.", "retry"),
    "max_tokens": (
        "The answer was cut off at the output limit.",
        "Continue to get the rest, or raise LOOM_MAX_OUTPUT_TOKENS.",
        "continue",
    ),
    "model_context_window_exceeded": (
        "The answer was cut off because the model's context is full.",
        "Continue; older turns leave the context but stay in the archive.",
        "continue",
    ),
    "too_many_calls": (
        "The run was stopped after too many consecutive model calls.",
        "Continue to resume it. The limit is LOOM_MAX_MODEL_CALLS.",
        "continue",
    ),
}


def describe_provider_error(error: ProviderError, *, run: str) -> Info:
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
    return Info(
        text="The provider refused the request with the attached files. This answer was created "
        "without them; the files are still stored.",
        code="files_refused",
        detail=f"{sentence(error.message)}\ncode: {error.code}",
    )


def describe_out_of_budget(error: BudgetReached, *, run: str, has_answered: bool) -> Info:
    """The row for a run that a budget ended, before its first model call or later."""
    kept = "Everything so far is saved; continue then." if has_answered else f"{KEPT} Retry then."
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
        text=f"Something went wrong on the server. {KEPT} Retry; see the server's log for the "
        "reason.",
        kind="error",
        code="internal_error",
        action="retry",
        run=run,
    )


def describe_stop(stop_reason: str, *, explanation: str, run: str) -> Info:
    """The row for an answer that ended in one of the unusual ways (``STOPS``)."""
    text, next_step, action = STOPS[stop_reason]
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
