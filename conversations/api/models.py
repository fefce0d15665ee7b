"""What can be chosen: models."""

from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema

from conversations.accounts.tokens import READ
from conversations.runtime.current import list_models

from .auth import needs
from .fields import Page

router = Router(tags=["Models"])


class ModelOut(Schema):
    """A model that a session can have as its ``model``. Limits are in tokens."""

    id: str
    name: str
    max_input_tokens: int
    max_output_tokens: int


@router.get("/models", auth=needs(READ), response=Page[ModelOut], url_name="models")
def list_models_on_offer(request: HttpRequest) -> dict[str, Any]:
    """The models on offer."""
    return {"items": list_models()}
