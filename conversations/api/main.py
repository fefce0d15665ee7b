"""The API as one object: its routers, its errors, its description."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.openapi.schema import OpenAPISchema

from conversations.domain.errors import LoomError

from . import (
    calls,
    choices,
    conversations,
    events,
    files,
    hooks,
    keys,
    messages,
    runs,
    search,
    sessions,
    streams,
    turns,
    workspaces,
)
from .anthropic import messages as anthropic
from .codec import JsonParser, JsonRenderer
from .problems import MEDIA_TYPE, Problem, problem, problem_of

DESCRIPTION = "Conversations with a model in workspaces, kept completely. For programs."

REFUSALS = {
    "400": "The request cannot be carried out as it is.",
    "401": "No valid token, and not signed in.",
    "403": "Seen, and not permitted.",
    "404": "Not there, or not yours.",
    "409": "The state has moved on meanwhile.",
    "413": "Too large.",
    "422": "A value is missing or of the wrong form.",
    "429": "Too many requests; `Retry-After` says when to try again.",
    "503": "A part of the installation does not answer.",
}
"""How any operation may refuse, beside what it answers."""


class LoomAPI(NinjaAPI):
    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        """The description, with refusals as problem details."""
        schema = super().get_openapi_schema(**options)
        made = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schema["components"]["schemas"] |= made.pop("$defs") | {"Problem": made}
        content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        for operations in schema["paths"].values():
            for operation in operations.values():
                for status, reason in REFUSALS.items():
                    refusal = {"description": reason, "content": content}
                    operation["responses"].setdefault(status, refusal)
        return schema


api = LoomAPI(
    title="Loom Web",
    version="1",
    description=DESCRIPTION,
    urls_namespace="api",
    docs_url=None,
    parser=JsonParser(),
    renderer=JsonRenderer(),
)
api.add_router("workspaces", workspaces.router)
for part in (
    calls,
    choices,
    conversations,
    events,
    files,
    hooks,
    keys,
    messages,
    runs,
    search,
    sessions,
    streams,
    turns,
):
    api.add_router("", part.router)
api.add_router("", anthropic.router)


@api.exception_handler(LoomError)
def on_refusal(request: HttpRequest, error: LoomError) -> HttpResponse:
    return problem_of(error)


@api.exception_handler(AuthenticationError)
def on_stranger(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    return problem(401, "Sign in, or send a personal token that works.")


@api.exception_handler(ValidationError)
def on_invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    errors = [{"location": list(one["loc"]), "reason": one["msg"]} for one in error.errors]
    detail = "; ".join(f"{'.'.join(map(str, e['location']))}: {e['reason']}" for e in errors[:3])
    return problem(422, detail, errors=errors)


@api.exception_handler(HttpError)
def on_http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    return problem(error.status_code, str(error))
