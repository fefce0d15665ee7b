"""The ASGI application: pages by Django, sockets by Channels, and static files before both."""

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import django
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.db import connections
from django.http import UnreadablePostError

from loomweb.sqlite3.base import MAX_IDLE_CONNECTIONS

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomweb.settings")

# With Python's default of 5 ms, a page that needs CPU would hold up all streams for 5 ms at a
# time. In measurements 1 ms reduced the p95 of deltas from 130 to 43 ms at no cost.
sys.setswitchinterval(0.001)

django.setup(set_prefix=False)


class RequestThread(ThreadPoolExecutor):
    def __init__(self) -> None:
        super().__init__(max_workers=1, thread_name_prefix="request")
        self._last: Future[Any] | None = None

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self._last = super().submit(*args, **kwargs)
        return self._last

    def end(self) -> Future[None]:
        """End the thread. The future is done when its database connections are closed."""
        closed = self.submit(connections.close_all)
        self.shutdown(wait=False)
        return closed

    @property
    def is_idle(self) -> bool:
        """Whether the thread has finished. A view runs on after the server has given up on it."""
        return self._last is None or self._last.done()


class BodyRequest(ASGIRequest):
    def __init__(self, scope: Any, body_file: Any) -> None:
        super().__init__(scope, body_file)
        # Without its length, as in chunked encoding, Django would take a form for empty.
        self.META.setdefault("CONTENT_LENGTH", str(body_file.seek(0, os.SEEK_END)))
        body_file.seek(0)

    def read(self, *args: Any, **kwargs: Any) -> bytes:
        try:
            return super().read(*args, **kwargs)
        except ValueError as error:
            # The client has disconnected. Django closes the body's file while the thread runs on.
            raise UnreadablePostError(*error.args) from error


class OneThreadHandler(ASGIHandler):
    """A handler that runs middleware and view on one thread, without returning to the event loop.

    The thread is kept for the next request (see docs/adr/0039).
    """

    request_class = BodyRequest

    def __init__(self) -> None:
        super().__init__()
        self.idle: list[RequestThread] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        thread = self.idle.pop() if self.idle else RequestThread()
        try:
            async with ThreadSensitiveContext(executor=thread):
                await self.handle(scope, receive, send)
        finally:
            if thread.is_idle and len(self.idle) < MAX_IDLE_CONNECTIONS:
                self.idle.append(thread)
            else:
                thread.end()

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().handle(scope, receive, send)
        except OSError as error:  # a large body is stored in the folder for temporary files
            await refuse(receive, send, 507, full_disk_text(error, method=scope["method"]))

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: Any) -> Any:
        return await sync_to_async(self.get_response, thread_sensitive=True)(request)

    async def send_response(self, response: Any, send: Any) -> None:
        try:
            await super().send_response(response, send)
        finally:
            # If a client disconnects during the response, Django closes only its own wrapper. It
            # leaves the stream inside to the garbage collector, which may take hours.
            if response.streaming and response.is_async:
                close = getattr(response._iterator, "aclose", None)
                if close is not None:
                    await close()


django_application = OneThreadHandler()

from channels.auth import AuthMiddlewareStack  # noqa: E402 (the apps must be loaded)
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

from conversations.web.addresses import OriginMiddleware  # noqa: E402
from conversations.web.errors import SocketStorageErrorMiddleware  # noqa: E402
from conversations.web.urls import websocket_urlpatterns  # noqa: E402

from .server import full_disk_text, refuse  # noqa: E402
from .static_files import StaticFiles  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": StaticFiles(django_application),
        "websocket": OriginMiddleware(
            SocketStorageErrorMiddleware(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))
        ),
    }
)
