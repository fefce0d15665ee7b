"""Errors in the form of each protocol, with the statuses that its clients recognise."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Schema

from conversations.api.problems import as_problem
from conversations.domain.text import dump_json, load_json

OVERLOADED = 529

# The status of the Messages API for each error code of a run. Other codes have the status 500.
STATUS = {
    "overloaded": OVERLOADED,
    "rate_limited": 429,
    "unknown_model": 404,
    "context_window_exceeded": 400,
    "invalid_request": 400,
    "request_too_large": 413,
    "timeout": 504,
    "billing": 402,
    "budget_reached": 402,
    "withdrawn": 409,
}

# The provider does not accept the key of this server. These errors have the status 500, because
# clients that get 401 or 403 believe that their own token was refused.
OWN_KEY_REFUSED = frozenset({"no_key", "bad_key", "permission"})

STATUSES = frozenset(
    {400, 401, 402, 403, 404, 405, 409, 413, 422, 429, 500, 502, 503, 504, 507, OVERLOADED}
)

# Errors of the Messages API.

THREAD_UNSUPPORTED = "thread_unsupported_request"

ANTHROPIC_TYPES = {
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


class AnthropicErrorBody(Schema):
    type: str
    message: str


class AnthropicError(Schema):
    """An error of the Messages API."""

    type: Literal["error"]
    error: AnthropicErrorBody


def make_anthropic_error(status: int, message: str, *, code: str = "", **_: Any) -> HttpResponse:
    error: dict[str, Any] = {
        "type": ANTHROPIC_TYPES.get(status, "api_error"),
        "message": message,
    }
    if code == THREAD_UNSUPPORTED:  # the SDK reads this and continues without threads
        error["details"] = {"error_code": code}
    return _as_json(status, {"type": "error", "error": error})


# Errors of OpenAI's APIs.

OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}

OPENAI_STATUS = {402: 429, OVERLOADED: 503}  # Replaces statuses that these clients do not know.


class OpenAIErrorBody(Schema):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Schema):
    """An error of OpenAI's APIs."""

    error: OpenAIErrorBody


def make_openai_error(
    status: int, message: str, *, code: str = "", param: str | None = None
) -> HttpResponse:
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {
        "message": message,
        "type": OPENAI_TYPES.get(status, kind),
        "param": param,
        "code": "insufficient_quota" if status == HTTPStatus.PAYMENT_REQUIRED else code or None,
    }
    return _as_json(OPENAI_STATUS.get(status, status), {"error": error})


def _as_json(status: int, body: dict[str, Any]) -> HttpResponse:
    return HttpResponse(dump_json(body), status=status, content_type="application/json")


# Converting any error below the URL prefix of a protocol.

FORMS: dict[str, Callable[..., HttpResponse]] = {
    "/api/v1/anthropic/": make_anthropic_error,
    "/api/v1/openai/": make_openai_error,
}


def as_api_error(request: HttpRequest, response: HttpResponse) -> HttpResponse | None:
    """Return an error response in the form of the protocol of the request's path.

    Return None if the path belongs to no protocol. Responses that are not errors, and errors that
    are JSON already, are returned unchanged. Validation errors get the status 400, as in the
    protocols' APIs."""
    make = next((FORMS[root] for root in FORMS if request.path.startswith(root)), None)
    is_error = response.status_code >= HTTPStatus.BAD_REQUEST
    if make is None or not is_error:
        return None if make is None else response
    if response.get("Content-Type", "").startswith("application/json"):
        return response
    problem = as_problem(request, response)
    fields = load_json(problem.content.decode(), default={})
    detail, code = str(fields.get("detail") or ""), str(fields.get("code") or "")
    param = detail.partition(":")[0] if code == "bad_choice" else None
    if errors := fields.get("errors"):
        named = [(_name_value(error["location"]), error["reason"]) for error in errors[:3]]
        detail = "; ".join(f"{name}: {reason}" for name, reason in named)
        param = named[0][0]
    is_invalid = problem.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    status = int(HTTPStatus.BAD_REQUEST) if is_invalid else problem.status_code
    error_response = make(status, detail, code=code, param=param)
    for name in ("Retry-After", "Allow", "WWW-Authenticate"):
        if name in problem:
            error_response[name] = problem[name]
    return error_response


def _name_value(location: Sequence[str | int]) -> str:
    """Return the name of an invalid value as the client knows it, such as ``messages[0]``.

    Pydantic's location begins with the operation's parameter and contains the types of a union
    (``str``, ``list[str]``), which are left out."""
    name = ""
    for step in location[2:]:
        if isinstance(step, int):
            name += f"[{step}]"
        elif step != "str" and "[" not in step:
            name += f".{step}" if name else step
    return name or str(location[-1])
