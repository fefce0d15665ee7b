"""The operations of OpenAI's APIs: chat completions, responses and models."""

from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Router

from conversations.accounts.tokens import READ, WRITE
from conversations.api.auth import needs
from conversations.api.streams import STREAMED
from conversations.domain.stream import ModelInfo

from .errors import STATUSES, OpenAIError
from .openai_shapes import (
    ChatCompletion,
    CompletionIn,
    ResponseIn,
    ResponseOut,
    read_completion_request,
    read_response_request,
)
from .openai_writing import CompletionWriter, ResponseWriter
from .responses import answer_request, get_model, list_models

router = Router(tags=["OpenAI API compatibility"])

ERRORS = {STATUSES: OpenAIError}


@router.post(
    "/openai/{slug:slug}/v1/chat/completions",
    auth=needs(WRITE),
    response={200: ChatCompletion, **ERRORS},
    openapi_extra=STREAMED,
    url_name="openai_completions",
)
async def create_chat_completion(
    request: HttpRequest, slug: str, asked: CompletionIn
) -> HttpResponseBase:
    """Send a message to a session of the workspace and get the answer.

    With ``stream``, the answer is sent as chunks. The header ``Loom-Session-Key`` names the
    session. Without it, tool results go to the session of their call, and messages go to the
    session in which the messages before them were sent, else to a new session."""
    return await answer_request(request, slug, read_completion_request(asked), CompletionWriter)


@router.post(
    "/openai/{slug:slug}/v1/responses",
    auth=needs(WRITE),
    response={200: ResponseOut, **ERRORS},
    openapi_extra=STREAMED,
    url_name="openai_responses",
)
async def create_response(request: HttpRequest, slug: str, asked: ResponseIn) -> HttpResponseBase:
    """Send a message to a session of the workspace and get the answer as a response.

    Input and output are items. The session is found as for chat completions, or by
    ``previous_response_id``."""
    return await answer_request(request, slug, read_response_request(asked), ResponseWriter)


@router.get(
    "/openai/{slug:slug}/v1/models",
    auth=needs(READ),
    response={200: dict[str, Any], **ERRORS},
    url_name="openai_models",
)
def list_openai_models(request: HttpRequest, slug: str) -> dict[str, Any]:
    """List the available models."""
    models = [describe_model(model) for model in list_models(request, slug)]
    return {"object": "list", "data": models}


@router.get(
    "/openai/{slug:slug}/v1/models/{path:model_id}",
    auth=needs(READ),
    response={200: dict[str, Any], **ERRORS},
    url_name="openai_model",
)
def retrieve_openai_model(request: HttpRequest, slug: str, model_id: str) -> dict[str, Any]:
    """Return one of the available models."""
    return describe_model(get_model(request, slug, model_id))


def describe_model(model: ModelInfo) -> dict[str, Any]:
    return {"id": model.id, "object": "model", "created": 0, "owned_by": "loom"}
