"""Errors as the Messages API has them, by whose status clients know them."""

from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse

from conversations.api.problems import as_problem
from conversations.domain.text import dump_json, load_json

ROOT = "/api/v1/anthropic/"

OVERLOADED = 529

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}

# Why a run failed → what the API would have answered; anything else is a 500.
STATUS = {
    "overloaded": OVERLOADED,
    "rate_limited": 429,
    "unknown_model": 404,
    "context_window_exceeded": 400,
    "invalid_request": 400,
    "request_too_large": 413,
    "timeout": 504,
    "budget_reached": 402,
}

_TEXT = {"type": "string"}

SCHEMA = {
    "type": "object",
    "title": "ApiError",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": _TEXT, "message": _TEXT},
        },
    },
}

STATUSES = (*TYPES, 405, 500, 502, 503)

# For the description of an operation.
ERRORS: dict[str, Any] = {
    "responses": {
        str(status): {
            "description": TYPES.get(status, "api_error"),
            "content": {"application/json": {"schema": SCHEMA}},
        }
        for status in STATUSES
    }
}


def error_body(status: int, message: str) -> str:
    kind = TYPES.get(status, "api_error")
    return dump_json({"type": "error", "error": {"type": kind, "message": message}})


def error_response(status: int, message: str) -> HttpResponse:
    return HttpResponse(error_body(status, message), status=status, content_type="application/json")


def as_api_error(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """An error for such a client, whoever has answered it, in its own form. Values that are
    missing have the API's status."""
    is_error = response.status_code >= HTTPStatus.BAD_REQUEST
    if not is_error or response.get("Content-Type", "").startswith("application/json"):
        return response
    problem = as_problem(request, response)
    detail = load_json(problem.content.decode(), default={}).get("detail")
    is_invalid = problem.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    made = error_response(400 if is_invalid else problem.status_code, str(detail or ""))
    for name in ("Retry-After", "Allow", "WWW-Authenticate"):
        if name in problem:
            made[name] = problem[name]
    return made
