"""Prompts of tool servers that the model answers once a person has approved them."""

import asyncio
from collections.abc import Mapping
from typing import Any

from conversations.agent.window.sampling import (
    make_sampling_request,
    sampling_manifest,
    sampling_result,
)
from conversations.archive.append import append, prepare_events
from conversations.archive.model_calls import check_model_call
from conversations.domain.errors import BudgetReached, ProviderError
from conversations.domain.tool_questions import (
    ACCEPT,
    CANCEL,
    ToolQuestion,
    make_model_answered_notice,
)

from .execution import Execution
from .model_routing import ModelRouter
from .side_calls import SideCall, estimate_request


def prepare_prompt(
    params: Mapping[str, Any], models: ModelRouter, *, own_model: str
) -> dict[str, Any]:
    """Return the parameters of sampling with the chosen model, within its output limit."""
    preferences = params.get("modelPreferences") or {}
    hints = [hint["name"] for hint in preferences.get("hints") or () if hint.get("name")]
    model = models.sampling_model_for(own_model, hints)
    max_output = models.limits_of(model)[1]
    return {**params, "model": model, "maxTokens": min(params["maxTokens"], max_output)}


async def answer_prompt(
    execution: Execution, question: ToolQuestion, *, seq: int
) -> dict[str, Any]:
    """Return the model's answer in the format that the tool server gets.

    The answer is kept in the transcript, and its model call counts like any other. ``seq`` is that
    of the row in which the server asked.
    """
    context, claimed = execution.context, execution.claimed
    request = make_sampling_request(question.prompt)
    manifest = sampling_manifest(question.prompt, seq=seq)
    call = SideCall(execution, request, manifest, estimate_request(request))
    try:
        await context.database.readers.read(
            check_model_call, claimed.session_pk, person_pk=claimed.user_pk
        )
        result = await call.ask(sampling_result)
    except BudgetReached as error:
        return {"action": CANCEL, "reason": error.message}
    except ProviderError as error:
        return {"action": CANCEL, "reason": f"The model did not answer: {error.message}"}
    notice = make_model_answered_notice(
        question, model=request.model, answer=result["content"]["text"]
    )
    events = await asyncio.to_thread(prepare_events, [notice], session=claimed.session)
    appending = execution.writer.write(
        append, claimed.session_pk, session_uuid=claimed.session, events=events
    )
    await execution.commit(appending)
    return {"action": ACCEPT, "content": result}
