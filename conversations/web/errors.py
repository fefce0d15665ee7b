"""Deliberate errors as pages: the reason, and the status that belongs to it."""

import sys
from collections.abc import Callable

from django.core.exceptions import BadRequest, DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.deprecation import MiddlewareMixin
from django.views.defaults import server_error

from conversations.domain.errors import LoomError, Rejected

from .error_forms import error_response
from .reason_pages import ask_reason
from .reasons import ReasonNeeded
from .storage_errors import note_storage_error

UNKNOWN_HOST = (
    "This server does not answer to the host name in the address. If you run the server, add "
    "the name to LOOM_ALLOWED_HOSTS."
)
UNREADABLE = "The request could not be read, or it is too large."


class LoomErrorMiddleware(MiddlewareMixin):
    """Turns a :class:`LoomError` that a view raises into its page."""

    get_response: Callable[[HttpRequest], HttpResponse]

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if (response := note_storage_error(request, error)) is not None:
            return response
        if not isinstance(error, LoomError):
            return None
        if isinstance(error, ReasonNeeded):
            return ask_reason(request, error)
        template = f"{error.status}.html" if error.status in (403, 404) else "error.html"
        context = {"message": error.message, "code": error.code, "status": error.status}
        return render(request, template, context, status=error.status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The answer to a request that no view was asked about, without a word of the request:
    that may be anything."""
    if isinstance(exception, DisallowedHost):
        error = Rejected(UNKNOWN_HOST, code="unknown_host")
    else:
        is_told = isinstance(exception, BadRequest)
        error = Rejected(str(exception) if is_told else UNREADABLE, code="bad_request")
    return error_response(request, error, template="errors/400.html")


def failed(request: HttpRequest) -> HttpResponse:
    """The answer to an exception that nothing else took: Django calls this for those of the
    middleware too, such as the one that reads who is signed in."""
    error = sys.exception()
    response = note_storage_error(request, error) if error is not None else None
    return response or server_error(request)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """A form without a valid token: our page in place of Django's, whose inline
    style the policy would refuse."""
    context = {"message": "Load the page again and repeat it.", "code": "csrf", "status": 403}
    return render(request, "403.html", context, status=403)
