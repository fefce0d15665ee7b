"""Forms and queries are in an encoding that gives characters and nothing else.

Django decodes them in whatever encoding the request names, and Python has some
(``unicode_escape``, ``utf-7``) that can give half a surrogate pair, which no database
holds and no page shows.
"""

import codecs
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import BadRequest
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

TAKEN = frozenset({"utf-8", "ascii", "iso8859-1"})


@sync_and_async_middleware
def refuse_odd_encodings(get_response: Callable[[HttpRequest], Any]) -> Callable[..., Any]:
    """Answers 400 to a request that names another one."""

    def respond(request: HttpRequest) -> Any:
        _check(request)
        return get_response(request)

    async def respond_async(request: HttpRequest) -> Any:
        _check(request)
        return await get_response(request)

    return respond_async if iscoroutinefunction(get_response) else respond


def _check(request: HttpRequest) -> None:
    if request.encoding and codecs.lookup(request.encoding).name not in TAKEN:
        raise BadRequest("Requests must be in UTF-8.")
