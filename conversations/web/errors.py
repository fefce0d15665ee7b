"""Responses to errors: the reason, with the status that belongs to it."""

import codecs
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from asgiref.sync import iscoroutinefunction
from channels.exceptions import StopConsumer
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import BadRequest, DisallowedHost, TooManyFilesSent
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.decorators import sync_and_async_middleware
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext
from django.views.defaults import server_error

from conversations.api.problems import ROOT, format_error, problem_of
from conversations.archive.storage import translate_storage_error, watch_writes
from conversations.domain.errors import LoomError, Rejected, StorageFull, Unavailable
from conversations.domain.messages import say
from conversations.domain.text import number_text
from conversations.rendering.messages import translate
from conversations.review.reason_pages import ask_reason
from conversations.review.reasons import ReasonNeeded

# An error in the format that the client reads.

PLAIN = "text/plain; charset=utf-8"


def error_response(
    request: HttpRequest, error: LoomError, *, template: str, **context: Any
) -> HttpResponse:
    """Return the response to an error in the format that the client reads.

    Below the API's address, this is a problem or the format of the Messages API. htmx gets the
    sentence alone. Other clients get the page ``template``, rendered with ``context`` and
    ``error``.
    """
    if request.path.startswith(ROOT):
        return format_error(request, problem_of(error))
    if request.headers.get("HX-Request") == "true":
        message = translate(error.message)
        response = HttpResponse(message, content_type=PLAIN)
    else:
        # Rendered without the request, because the page's frame would look up the signed-in person.
        # An unknown host must not learn who that is, and a database that is away cannot tell.
        values: Mapping[str, Any] = context | {"error": error}
        response = HttpResponse(render_to_string(template, values))
    response.status_code = error.status
    if isinstance(error, Unavailable):
        response["Retry-After"] = str(error.retry_after)
    response["Cache-Control"] = "no-store"
    return response


@contextmanager
def refusal_as_message(request: HttpRequest) -> Iterator[None]:
    """Show why a form was refused on the next page, as a message."""
    try:
        yield
    except Rejected as error:
        messages.error(request, translate(error.message))


# Responses while the database is away or the disk is full.

logger = logging.getLogger(__name__)

READS = ("GET", "HEAD", "OPTIONS")

# The close code (RFC 6455's registry) that asks a client to connect again in a moment.
TRY_AGAIN_LATER = 1013


class StorageErrorMiddleware:
    """Replaces responses that failed because the database is away or the disk is full.

    Below the API's address, every error gets the API's format, whichever code raised it.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with watch_writes() as writes:
            response = self._get_response(request)
        error = _pop_storage_error(request)
        may_repeat = request.method in READS and not writes.were_sent
        if error is not None and not isinstance(error, StorageFull) and may_repeat:
            response = self._get_response(request)
            error = _pop_storage_error(request)
        if error is not None:
            fields = {"error_code": error.code, "method": request.method}
            logger.warning("storage_error", extra={"fields": fields})
            is_full, reads = isinstance(error, StorageFull), request.method in READS
            response = _logged(
                error_response(
                    request, error, template="storage_error.html", is_full=is_full, reads=reads
                )
            )
        return format_error(request, response)


def storage_error_response(request: HttpRequest, error: BaseException) -> HttpResponse | None:
    """Return the response to a storage error, or None for any other exception.

    Call this where an exception is turned into a response. StorageErrorMiddleware replaces the
    response.
    """
    translated = translate_storage_error(error)
    if translated is None:
        return None
    request.storage_error = translated  # type: ignore[attr-defined]
    return _logged(HttpResponse(status=translated.status))


def _logged(response: HttpResponse) -> HttpResponse:
    # The error is logged in one line already. Django must not log it again with a traceback.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _pop_storage_error(request: HttpRequest) -> LoomError | None:
    error: LoomError | None = request.__dict__.pop("storage_error", None)
    if error is not None:
        for connection in connections.all(initialized_only=True):
            connection.close_if_unusable_or_obsolete()
    return error


class SocketStorageErrorMiddleware:
    """Asks a socket to connect again if its person or session cannot be looked up."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        is_accepted = has_begun = False

        async def watched_receive() -> Any:
            nonlocal has_begun
            has_begun = True
            return await receive()

        async def watched_send(message: Any) -> None:
            nonlocal is_accepted
            is_accepted = is_accepted or message["type"] == "websocket.accept"
            await send(message)

        for is_last in (False, True):
            try:
                await self.application(scope, watched_receive, watched_send)
            except StopConsumer:
                raise
            except Exception as error:
                translated = translate_storage_error(error)
                if translated is None:
                    raise
                if not (has_begun or is_last):
                    continue
                fields = {"error_code": translated.code, "method": "socket"}
                logger.warning("storage_error", extra={"fields": fields})
                if not is_accepted:
                    await send({"type": "websocket.accept"})
                await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})
            return


UNKNOWN_HOST = say(
    "This server is not configured for the host name in the address. If you run the server, "
    "add the name to LOOM_ALLOWED_HOSTS."
)
UNREADABLE = say("The request is unreadable or too large.")
TOO_MANY_FILES = say(
    "At most %(count)s files can be uploaded at once.",
    count=number_text(settings.DATA_UPLOAD_MAX_NUMBER_FILES),
)


class LoomErrorMiddleware(MiddlewareMixin):
    """Turns a :class:`LoomError` that a view raises into a page.

    It also replaces the empty response to a method that the address does not allow.
    """

    get_response: Callable[[HttpRequest], HttpResponse]

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if (response := storage_error_response(request, error)) is not None:
            return response
        if not isinstance(error, LoomError):
            return None
        if isinstance(error, ReasonNeeded):
            return ask_reason(request, error)
        return _refusal(request, translate(error.message), code=error.code, status=error.status)

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        # After a form was refused, the browser has the form's address. A reload or a bookmark then
        # requests that address with GET.
        is_page = request.method in ("GET", "HEAD") and not request.path.startswith(ROOT)
        if not (isinstance(response, HttpResponseNotAllowed) and is_page):
            return response
        message = gettext(
            "This address only accepts submitted forms. Go back to the page with the form."
        )
        page = _refusal(request, message, code="method_not_allowed", status=response.status_code)
        page["Allow"] = response["Allow"]
        return _logged(page)


def _refusal(request: HttpRequest, message: str, *, code: str, status: int) -> HttpResponse:
    """Return an error page, or the sentence alone for htmx."""
    if request.headers.get("HX-Request") == "true":
        return HttpResponse(message, content_type=PLAIN, status=status)
    template = f"{status}.html" if status in (403, 404) else "error.html"
    context = {"message": message, "code": code, "status": status}
    return render(request, template, context, status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return the response to a request that was refused before it reached a view.

    The response repeats no part of the request, which may contain anything.
    """
    if isinstance(exception, DisallowedHost):
        error = Rejected(UNKNOWN_HOST, code="unknown_host")
    elif isinstance(exception, TooManyFilesSent):
        error = Rejected(TOO_MANY_FILES, code="too_many_files")
    else:
        reason = exception.args[0] if isinstance(exception, BadRequest) and exception.args else None
        message = reason if isinstance(reason, str) else UNREADABLE
        error = Rejected(message, code="bad_request")
    return error_response(request, error, template="400.html")


def failed(request: HttpRequest) -> HttpResponse:
    """Return the response to an exception that no other code has handled.

    Django also calls this for exceptions of middleware, such as the one that reads who is signed
    in.
    """
    error = sys.exception()
    response = storage_error_response(request, error) if error is not None else None
    return response or server_error(request)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Return the response to a form without a valid token.

    Django's own page has an inline style, which the content security policy would refuse.
    """
    return _refusal(request, gettext("Reload the page and try again."), code="csrf", status=403)


# The accepted encodings of forms and queries, which decode to characters and nothing else.

ACCEPTED_ENCODINGS = frozenset({"utf-8", "ascii", "iso8859-1"})


@sync_and_async_middleware
def refuse_odd_encodings(get_response: Callable[[HttpRequest], Any]) -> Callable[..., Any]:
    """Respond with 400 to a request whose encoding is not in ``ACCEPTED_ENCODINGS``."""

    def respond(request: HttpRequest) -> Any:
        if request.encoding and codecs.lookup(request.encoding).name not in ACCEPTED_ENCODINGS:
            raise BadRequest(say("Requests must be in UTF-8."))
        return get_response(request)

    async def respond_async(request: HttpRequest) -> Any:
        return await respond(request)

    return respond_async if iscoroutinefunction(get_response) else respond
