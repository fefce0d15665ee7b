"""Notices for an answer that fails or ends early: what happened and what to do next."""

from conversations.domain.errors import BudgetReached, ProviderError
from conversations.domain.events import Info
from conversations.domain.messages import say

NEXT_STEP = {
    "no_key": say("Set the key in the server's environment and restart it."),
    "bad_key": say("Check the key in the server's environment and restart it."),
    "permission": say("Choose another model, or ask for access to this one."),
    "billing": say("Check the provider's billing settings, then try again."),
    "unknown_model": say("Choose another model, then try again."),
    "invalid_request": say("Edit the message, or retry."),
    "request_too_large": say("Shorten the message, then send it again."),
    "context_window_exceeded": say("Shorten the message, send /compact, or start a new session."),
    "rate_limited": say("Wait a moment, then try again."),
    "overloaded": say("Wait a moment, then try again."),
    "server_error": say("Try again. The problem may be temporary."),
    "timeout": say("Try again. The problem may be temporary."),
    "connection_failed": say(
        "Check that the model server is running and that its address is correct, then try again."
    ),
    "connection_lost": say("Try again, or send a message to continue from here."),
    "stream_error": say("Try again, or send a message to continue from here."),
    "incomplete_stream": say("Try again, or send a message to continue from here."),
    "bad_response": say("Check the model server's address and protocol."),
}

TRY_AGAIN = say("Try again.")
KEPT = say("Everything so far is saved.")

# Stop reasons: what happened, what to do next, and the action of the button.
STOPS = {
    "empty_answer": (
        say("The model gave no answer."),
        say("Retry, or rephrase the question."),
        "retry",
    ),
    "refusal": (
        say("The model declined to answer."),
        say("Edit your message, or retry."),
        "retry",
    ),
    "max_tokens": (
        say("The answer was cut off at the output limit."),
        say("Continue to get the rest."),
        "continue",
    ),
    "model_context_window_exceeded": (
        say("The answer was cut off because the model's context is full."),
        say("Continue; older turns leave the context but stay in the archive."),
        "continue",
    ),
    "too_many_calls": (
        say("The run was stopped after too many consecutive model calls."),
        say("Continue to resume it. The limit is LOOM_MAX_MODEL_CALLS."),
        "continue",
    ),
}


def describe_provider_error(error: ProviderError, *, run: str, action: str) -> Info:
    facts = [f"code: {error.code}"]
    if error.http_status is not None:
        facts.append(f"status: {error.http_status}")
    if error.request_id:
        facts.append(f"request: {error.request_id}")
    return Info(
        text=say(
            "%(reason)s %(kept)s %(next_step)s",
            reason=sentence(error.message),
            kept=KEPT,
            next_step=NEXT_STEP.get(error.code, TRY_AGAIN),
        ),
        kind="error",
        code=error.code,
        detail="\n".join(facts),
        action=action,
        run=run,
    )


def describe_refused_files(error: ProviderError) -> Info:
    return Info(
        text=say(
            "The provider refused the request with the attached files. This answer was created "
            "without them; the files are still stored."
        ),
        code="files_refused",
        detail=f"{sentence(error.message)}\ncode: {error.code}",
    )


def describe_out_of_budget(error: BudgetReached, *, run: str, has_work: bool) -> Info:
    """Return the row for a run that a budget ended.

    ``has_work`` says that there is more to keep than the message.
    """
    text = (
        say("%(reason)s Everything so far is saved; continue then.", reason=error.message)
        if has_work
        else say("%(reason)s Your message is saved. Retry then.", reason=error.message)
    )
    return Info(
        text=text,
        kind="notice" if has_work else "error",
        code=error.code,
        action="continue" if has_work else "retry",
        run=run,
    )


def describe_crash(*, run: str, action: str) -> Info:
    """Return the row for an internal error. The log has the details."""
    return Info(
        text=say(
            "Something went wrong on the server. Everything so far is saved. Try again; see the "
            "server's log for the reason."
        ),
        kind="error",
        code="internal_error",
        action=action,
        run=run,
    )


def describe_stop(stop_reason: str, *, explanation: str, run: str) -> Info:
    """Return the row for an answer that ended for one of the reasons in ``STOPS``."""
    what, next_step, action = STOPS[stop_reason]
    text = (
        say(
            "%(what)s %(explanation)s %(next_step)s",
            what=what,
            explanation=sentence(explanation),
            next_step=next_step,
        )
        if explanation
        else say("%(what)s %(next_step)s", what=what, next_step=next_step)
    )
    return Info(
        text=text,
        kind="error" if action == "retry" else "notice",
        code=stop_reason,
        action=action,
        run=run,
    )


def sentence(text: str) -> str:
    """Return the text with a full stop at its end, which providers' messages may lack."""
    return text if text.endswith((".", "!", "?", "…")) else say("%(text)s.", text=text)
