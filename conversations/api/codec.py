"""How requests are read and answers written: JSON as its standard has it."""

import json
from datetime import datetime
from math import isfinite
from typing import Any

from django.http import HttpRequest
from ninja.parser import Parser
from ninja.renderers import JSONRenderer
from ninja.responses import NinjaJSONEncoder

from conversations.domain.digest import instant
from conversations.domain.text import require_encodable


class JsonParser(Parser):
    """Of bodies: JSON as its standard has it, of texts that are ones."""

    def parse_body(self, request: HttpRequest) -> Any:
        value = json.loads(request.body, parse_constant=_refuse, parse_float=_finite)
        require_encodable(value)
        if value is None:
            raise ValueError("there is nothing in it")
        if not isinstance(value, dict):  # a list would pass where everything may be left out
            raise ValueError("it is no object")
        return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    """Raises ValueError for a number that could not be written as JSON again."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    return number


class JsonEncoder(NinjaJSONEncoder):
    """Moments to the microsecond, as they are kept and exported."""

    def default(self, o: Any) -> Any:
        return instant(o) if isinstance(o, datetime) else super().default(o)


class JsonRenderer(JSONRenderer):
    encoder_class = JsonEncoder


def dump(value: Any) -> str:
    """For answers that are written piece by piece."""
    return json.dumps(value, cls=JsonEncoder)
