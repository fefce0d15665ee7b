"""Reading requests and writing responses: JSON as its standard defines it."""

import json
from datetime import datetime
from math import isfinite
from typing import Any

from django.http import HttpRequest
from ninja.parser import Parser
from ninja.renderers import JSONRenderer
from ninja.responses import NinjaJSONEncoder

from conversations.domain.errors import TooLarge
from conversations.domain.text import (
    MAX_JSON_VALUES,
    has_more_values,
    instant,
    null_constants,
    require_encodable,
)


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
