"""Errors as problem details (RFC 9457), and JSON in requests and responses."""

import json
from datetime import datetime
from http import HTTPStatus
from math import isfinite
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Schema
from ninja.parser import Parser
from ninja.renderers import JSONRenderer
from ninja.responses import NinjaJSONEncoder
from pydantic import ConfigDict

from conversations.domain.errors import LoomError, TooLarge, Unavailable
from conversations.domain.text import (
    MAX_JSON_VALUES,
    dump_json,
    has_more_values,
    instant,
    null_constants,
    require_encodable,
)
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


class Wrong(Schema):
    """A value of the request that is invalid: its location, and the reason."""

    location: list[str | int]
    reason: str


class Problem(Schema):
    """The reason why a request was refused (RFC 9457).

    Programs should check ``code``. ``detail`` is for people, and never contains a secret.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[Wrong] | None = None


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
    for feature in features():
        formatted = feature.format_error(request, response)
        if formatted is not None:
            return formatted
    return as_problem(request, response)


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


# Reading requests and writing responses: JSON as its standard defines it.


class JsonParser(Parser):
    """A parser of request bodies: standard JSON, whose texts can be encoded as UTF-8."""

    def parse_body(self, request: HttpRequest) -> Any:
        text = request.body.decode(json.detect_encoding(request.body), "surrogatepass")
        if has_more_values(text):
            raise TooLarge(
                "A request may have at most %(limit)s values.", limit=f"{MAX_JSON_VALUES:,}"
            )
        value = json.loads(text, parse_constant=refuse_constant, parse_float=read_finite)
        require_encodable(value)
        if value is None:
            raise ValueError("the body is empty")
        if not isinstance(value, dict):  # a schema of optional fields would accept a list
            raise ValueError("the body is not an object")
        return value


def refuse_constant(name: str) -> None:
    """Raise ValueError for ``NaN`` and the infinities, which Python would accept."""
    raise ValueError(f"{name} is not valid JSON")


def read_finite(text: str) -> float:
    """Return the number. Raise ValueError if it could not be written as JSON again."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    return number


class JsonEncoder(NinjaJSONEncoder):
    """An encoder that writes times to the microsecond, as they are stored and exported."""

    def default(self, o: Any) -> Any:
        return instant(o) if isinstance(o, datetime) else super().default(o)


class JsonRenderer(JSONRenderer):
    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> str:
        return dump(data)


def dump(value: Any) -> str:
    """Return the JSON of a whole response, or of a piece of a streamed response."""
    return null_constants(json.dumps(value, cls=JsonEncoder), write=json.dumps)
