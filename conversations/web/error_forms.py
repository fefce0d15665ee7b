"""One error, in the form that whoever asked reads."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from conversations.api.anthropic.errors import for_programs
from conversations.api.problems import ROOT, problem_of
from conversations.domain.errors import LoomError, Unavailable


def error_response(
    request: HttpRequest, error: LoomError, *, template: str, **context: Any
) -> HttpResponse:
    """Below the API's address a problem, or what the Messages API has; to htmx the sentence
    alone; else the page ``template``, which gets ``error`` beside the ``context``."""
    if request.path.startswith(ROOT):
        return for_programs(request, problem_of(error))
    if request.headers.get("HX-Request") == "true":
        response = HttpResponse(error.message, content_type="text/plain; charset=utf-8")
    else:
        # Without the request: the page's frame would look for who is signed in, which an
        # unknown host may not know and a database that is away cannot say.
        values: Mapping[str, Any] = context | {"error": error}
        response = HttpResponse(render_to_string(template, values))
    response.status_code = error.status
    if isinstance(error, Unavailable):
        response["Retry-After"] = str(error.retry_after)
    response["Cache-Control"] = "no-store"
    return response
