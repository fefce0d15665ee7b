"""The operations of the Messages API: ``POST …/v1/messages`` and ``GET …/v1/models``."""

from contextlib import suppress
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Router

from conversations.access import get_workspace_for
from conversations.accounts.tokens import READ, WRITE
from conversations.api.auth import needs
from conversations.api.streams import STREAMED
from conversations.archive.file_types import examine
from conversations.archive.rights import READ as TO_READ
from conversations.domain.errors import Rejected
from conversations.domain.formats import read_file
from conversations.domain.stream import ModelInfo
from conversations.domain.text import dump_json, estimate_tokens

from .anthropic_shapes import CountIn, MessageOut, MessagesIn, TokensOut, read_request
from .anthropic_writing import MessageWriter
from .errors import STATUSES, AnthropicError
from .responses import answer_request, get_model, list_models

router = Router(tags=["Messages API compatibility"])

ERRORS = {STATUSES: AnthropicError}

# How deep files are searched for. An image in a document in a tool result is at level 8.
MAX_FILE_LEVELS = 12


@router.post(
    "/anthropic/{slug:slug}/v1/messages",
    auth=needs(WRITE),
    response={200: MessageOut, **ERRORS},
    openapi_extra=STREAMED,
    url_name="anthropic_messages",
)
async def create_message(request: HttpRequest, slug: str, asked: MessagesIn) -> HttpResponseBase:
    """Send a message to a session of the workspace and get the answer.

    With ``stream``, the answer is sent as server-sent events. The header ``Loom-Session-Key`` (or
    ``metadata.user_id``) names the session. Without either, tool results go to the session of
    their call, and messages go to the session in which the messages before them were sent, else
    to a new session."""
    return await answer_request(request, slug, read_request(asked), MessageWriter)


@router.post(
    "/anthropic/{slug:slug}/v1/messages/count_tokens",
    auth=needs(READ),
    response={200: TokensOut, **ERRORS},
    url_name="anthropic_count",
)
def count_tokens(request: HttpRequest, slug: str, counted: CountIn) -> TokensOut:
    """Estimate the tokens of these messages, without the session's other content."""
    get_workspace_for(request, slug, to=TO_READ)
    files: list[int] = []
    counted_values = [_set_files_aside(counted.messages, files), counted.system, counted.tools]
    texts = [estimate_tokens(dump_json(value)) for value in counted_values if value]
    return TokensOut(input_tokens=sum(texts + files))


def _set_files_aside(value: Any, tokens: list[int], levels: int = MAX_FILE_LEVELS) -> Any:
    """Return the value without its files, to be counted as text.

    Append the tokens of each file to ``tokens``. Files that could not be sent count nothing."""
    if not levels:
        return value  # files are never nested so deep
    if isinstance(value, list):
        return [_set_files_aside(item, tokens, levels - 1) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        file = read_file(value)
    except Rejected:
        return {name: _set_files_aside(item, tokens, levels - 1) for name, item in value.items()}
    with suppress(Rejected):
        tokens.append(examine(file.data, file.name).tokens)
    return None


@router.get(
    "/anthropic/{slug:slug}/v1/models",
    auth=needs(READ),
    response={200: dict[str, Any], **ERRORS},
    url_name="anthropic_models",
)
def list_offered_models(request: HttpRequest, slug: str) -> dict[str, Any]:
    """List the available models."""
    models = [describe_model(model) for model in list_models(request, slug)]
    first, last = (models[0]["id"], models[-1]["id"]) if models else (None, None)
    return {"data": models, "has_more": False, "first_id": first, "last_id": last}


@router.get(
    "/anthropic/{slug:slug}/v1/models/{path:model_id}",
    auth=needs(READ),
    response={200: dict[str, Any], **ERRORS},
    url_name="anthropic_model",
)
def retrieve_offered_model(request: HttpRequest, slug: str, model_id: str) -> dict[str, Any]:
    """Return one of the available models."""
    return describe_model(get_model(request, slug, model_id))


def describe_model(model: ModelInfo) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.name,
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": model.max_input_tokens,
        "max_tokens": model.max_output_tokens,
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "capabilities": None,
    }
