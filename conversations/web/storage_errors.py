"""Answers while the database is away or the disk is full, in the form that the caller reads.

Such a failure can come from anything: a view, the sign-in's own tables, a template. So
where it is caught it is only noted in the request, and the one outermost middleware
answers. A GET is tried once more first, if it has sent nothing that writes: a connection
that was lost while it stood idle is the usual case, and a new one works. Some GETs write
(the entry of a reading, the count of a link's openings): that may have been committed,
whatever the error says, and is not done twice.
"""

import logging
from collections.abc import Callable
from typing import Any

from channels.exceptions import StopConsumer
from django.db import connections
from django.http import HttpRequest, HttpResponse

from conversations.api.anthropic.errors import for_programs
from conversations.archive.storage_errors import translate_storage_error, watch_writes
from conversations.domain.errors import LoomError, StorageFull

from .error_forms import error_response

logger = logging.getLogger(__name__)

READS = ("GET", "HEAD", "OPTIONS")

TRY_AGAIN_LATER = 1013
"""The close code (RFC 6455's registry) of a socket that may come again in a moment."""


class StorageErrorMiddleware:
    """Answers in place of whatever failed for want of the database or of room. Below the
    API's address every error has the API's form, whoever made it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with watch_writes() as writes:
            response = self._get_response(request)
        error = _take_noted(request)
        may_repeat = request.method in READS and not writes.were_sent
        if error is not None and not isinstance(error, StorageFull) and may_repeat:
            response = self._get_response(request)
            error = _take_noted(request)
        if error is not None:
            logger.warning("storage_error: %s %s", error.code, request.method)
            is_full, reads = isinstance(error, StorageFull), request.method in READS
            response = _logged(
                error_response(
                    request, error, template="storage_error.html", is_full=is_full, reads=reads
                )
            )
        return for_programs(request, response)


def note_storage_error(request: HttpRequest, error: BaseException) -> HttpResponse | None:
    """Where an exception is turned into a response: the response to return for a failure of
    the storage, which StorageErrorMiddleware replaces; None for any other exception."""
    translated = translate_storage_error(error)
    if translated is None:
        return None
    request.storage_error = translated  # type: ignore[attr-defined]
    return _logged(HttpResponse(status=translated.status))


def _logged(response: HttpResponse) -> HttpResponse:
    """It is one line in our log: not also Django's, with a traceback."""
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _take_noted(request: HttpRequest) -> LoomError | None:
    error: LoomError | None = request.__dict__.pop("storage_error", None)
    if error is not None:
        _drop_lost_connections()
    return error


def _drop_lost_connections() -> None:
    for one in connections.all(initialized_only=True):
        one.close_if_unusable_or_obsolete()


class SocketStorageErrorMiddleware:
    """A socket whose person or session cannot be looked up is told to come again."""

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
                logger.warning("storage_error: %s socket", translated.code)
                if not is_accepted:
                    await send({"type": "websocket.accept"})
                await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})
            return
