"""The API object: its routers, error handlers and OpenAPI description."""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from conversations.archive.rights import MANAGE, READ, WRITE
from conversations.domain.errors import LoomError
from conversations.feature import features
from conversations.review import api as review
from conversations.review.reasons import ReasonNeeded
from conversations.search import api as search

from . import calls, conversations, files, messages, sessions, state, streams, turns, workspaces
from .auth import scope_of
from .fields import Problem
from .idempotency import apply_idempotency, lacks_key
from .json_format import JsonParser, JsonRenderer
from .problems import MEDIA_TYPE, problem, problem_of

DESCRIPTION = "Conversations with a model in workspaces, archived completely. For programs."

# The errors that any operation may return.
REFUSALS = {
    "400": "The request is invalid.",
    "401": "No valid token and not signed in.",
    "403": "Not permitted.",
    "404": "It does not exist or is not accessible.",
    "409": "The state has changed in the meantime.",
    "413": "Too large.",
    "422": "A value is missing or invalid.",
    "429": "Too many requests; see `Retry-After`.",
    "503": "A part of the installation is not responding; see `Retry-After`, if present.",
    "507": "The server’s disk is full; nothing was stored.",
}
OVERLOADED = 529  # a status that no standard defines


class LoomAPI(NinjaAPI):
    _described: OpenAPISchema | None = None

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Return the name of the operation's function."""
        return operation.view_func.__name__

    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        """Return the OpenAPI description, with errors as problem details and required scopes.

        Each error is declared once and referenced by the operations.
        """
        if self._described is not None:
            return self._described
        schema = super().get_openapi_schema(**options)
        problem_schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schema["components"]["schemas"] |= problem_schema.pop("$defs") | {"Problem": problem_schema}
        content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        schema["components"]["responses"] = {
            f"Problem{status}": {"description": reason, "content": content}
            for status, reason in REFUSALS.items()
        }
        scopes = dict(self.list_scopes())
        tags: dict[str, None] = {}
        for methods in schema["paths"].values():
            for operation in methods.values():
                operation["x-scope"] = scopes[operation["operationId"]]
                _declare_errors(operation["responses"], schema["components"]["responses"])
                tags |= dict.fromkeys(operation["tags"])
        # The paths begin with /api/v1/, so the server is the root of the host that serves this.
        schema["servers"] = [{"url": "/", "description": "This installation."}]
        schema["tags"] = [{"name": tag} for tag in tags]
        # This is set last, so that another thread gets a complete schema or makes its own.
        self._described = schema
        return schema

    def list_scopes(self) -> Iterator[tuple[str, str]]:
        """Yield the name of every operation and the scope that it requires."""
        for operation in self.list_operations():
            yield self.get_openapi_operation_id(operation), scope_of(operation)

    def list_operations(self) -> Iterator[Operation]:
        for router in self._get_bound_routers():
            for view in router.path_operations.values():
                yield from view.operations


def _declare_errors(responses: dict[Any, Any], shared: dict[str, Any]) -> None:
    # Some operations declare errors of their own, with the same schemas in several operations.
    for status, response in responses.items():
        content = response.get("content", {}).get("application/json", {})
        schema = content.get("schema", {})
        if status < HTTPStatus.BAD_REQUEST or "$ref" not in schema:
            continue
        if status == OVERLOADED:
            response["description"] = "Overloaded."
        name = f"{schema['$ref'].rpartition('/')[2]}{status}"
        shared[name] = response
        responses[status] = {"$ref": f"#/components/responses/{name}"}
    for status in REFUSALS:
        if int(status) not in responses:
            responses[status] = {"$ref": f"#/components/responses/Problem{status}"}


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
api.add_router("workspaces/{slug:slug}", workspaces.of_one)
for router in (conversations.router, sessions.key_router, search.router, sessions.router):
    api.add_router("", router)
for part in (calls, turns, files, messages, state, streams):
    api.add_router("sessions/{uuid:uuid}", part.router)
api.add_router("", review.router)
for feature in features():
    for feature_router in feature.api_routers():
        api.add_router("", feature_router)
for operation in filter(lacks_key, api.list_operations()):
    scope = scope_of(operation)
    apply_idempotency(operation, to=scope if scope in (WRITE, MANAGE) else READ)


@api.exception_handler(LoomError)
def on_refusal(request: HttpRequest, error: LoomError) -> HttpResponse:
    return problem_of(error)


@api.exception_handler(ReasonNeeded)
def on_reason_needed(request: HttpRequest, error: ReasonNeeded) -> HttpResponse:
    return problem(403, f"{error.message} Send it in the header Loom-Reason.", code=error.code)


@api.exception_handler(AuthenticationError)
def on_stranger(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    return problem(401, "Sign in, or send a valid personal token.")


@api.exception_handler(ValidationError)
def on_invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    errors = [{"location": list(item["loc"]), "reason": item["msg"]} for item in error.errors]
    detail = "; ".join(f"{'.'.join(map(str, e['location']))}: {e['reason']}" for e in errors[:3])
    return problem(422, detail, errors=errors)


@api.exception_handler(HttpError)
def on_http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    # The body could not be read, and the cause says why.
    if isinstance(error.__cause__, LoomError):
        return problem_of(error.__cause__)
    return problem(error.status_code, str(error))


# The URL patterns and views that ``urls`` imports on first use.

urlpatterns = api.urls[0]


def render_reference(request: HttpRequest) -> HttpResponse:
    """Show the reference. People who are signed in can try operations that only read."""
    settings = {
        "url": reverse("api:openapi-json"),
        "layout": "BaseLayout",
        "deepLinking": False,
        "docExpansion": "none",
        "defaultModelsExpandDepth": 0,
        "supportedSubmitMethods": ["get"] if request.user.is_authenticated else [],
        "validatorUrl": None,  # otherwise the description is sent to a server of Swagger
    }
    return render(request, "api/docs.html", {"swagger_settings": json.dumps(settings)})
