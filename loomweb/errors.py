"""What answers a request that no page could be asked about."""

from http import HTTPStatus

from django.core.exceptions import BadRequest, DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.template import loader

from conversations.api.anthropic.errors import ROOT as ANTHROPIC
from conversations.api.anthropic.errors import as_api_error
from conversations.api.problems import ROOT, problem

UNKNOWN_HOST = (
    "This server does not answer to the name or address that you came by. Whoever runs it "
    "says in LOOM_ALLOWED_HOSTS which names it has."
)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400 in the form of the API or as a page, without a word of the request: that may be
    anything."""
    if isinstance(exception, DisallowedHost):
        message, code = UNKNOWN_HOST, "unknown_host"
    elif isinstance(exception, BadRequest):
        message, code = str(exception), "bad_request"
    else:
        message, code = "The request could not be read, or is larger than is taken.", "bad_request"
    if request.path.startswith(ANTHROPIC):
        return as_api_error(request, problem(HTTPStatus.BAD_REQUEST, message, code=code))
    if request.path.startswith(ROOT):
        return problem(HTTPStatus.BAD_REQUEST, message, code=code)
    # Without the request: the page of an unknown host cannot say who is signed in.
    page = loader.get_template("errors/400.html").render({"message": message})
    return HttpResponse(page, status=HTTPStatus.BAD_REQUEST)
