"""Errors as problem details (RFC 9457).

Pages import this module too, so it does not import the framework of the API.
"""

from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse

from conversations.domain.errors import LoomError, Unavailable
from conversations.domain.text import dump_json
from conversations.feature import features

MEDIA_TYPE = "application/problem+json"
ROOT = "/api/v1/"
PROBLEMS = "/api/v1/problems"

RETRY_AFTER_SECONDS = 10  # by then, a person with too many streams may have closed one

# Status → the default code of an error.
CODES = {
    400: "bad_request",
    401: "signed_out",
    403: "not_permitted",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "unavailable",
    507: "storage_full",
}


def problem(status: int, detail: str, *, code: str = "", **extra: Any) -> HttpResponse:
    """Return the response to a request that is refused."""
    code = code or CODES.get(status, "error")
    body = {
        "type": f"{PROBLEMS}#{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        **extra,
    }
    response = HttpResponse(dump_json(body), status=status, content_type=MEDIA_TYPE)
    if status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = 'Bearer realm="Loom Web"'
    return response


def problem_of(error: LoomError) -> HttpResponse:
    """Return the response to a request that raised a LoomError."""
    response = problem(error.status, error.message, code=error.code)
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        response["Retry-After"] = str(RETRY_AFTER_SECONDS)
    elif isinstance(error, Unavailable) and error.retry_after:
        response["Retry-After"] = str(error.retry_after)
    return response


def format_error(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Return an error below the API's address in the format that its clients expect.

    A feature may define another format for its own addresses. Other responses are returned
    unchanged.
    """
    if not request.path.startswith(ROOT):
        return response
    own = (feature.format_error(request, response) for feature in features())
    formatted = next(filter(None, own), None) or as_problem(request, response)
    if hasattr(response, "_has_been_logged"):  # otherwise Django would log a server fault again
        formatted._has_been_logged = response._has_been_logged  # type: ignore[attr-defined]
    return formatted


def as_problem(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Return an error response of Django as a problem, and other responses unchanged."""
    is_error = response.status_code >= HTTPStatus.BAD_REQUEST
    if not is_error or response.get("Content-Type", "").startswith(MEDIA_TYPE):
        return response
    detail = {
        404: "This address does not exist.",
        405: f"{request.method} is not supported here.",
    }.get(response.status_code, HTTPStatus(response.status_code).description)
    converted = problem(response.status_code, detail or "The request is invalid.")
    if "Allow" in response:
        converted["Allow"] = response["Allow"]
    return converted
