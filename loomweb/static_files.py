"""Static files with hashed names, compressed and served without Django's middleware.

A page has a dozen static files. Through the middleware each would need a thread and a database
connection, which costs several times as much as the file itself.
"""

import re
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.middleware.csp import ContentSecurityPolicyMiddleware
from django.middleware.security import SecurityMiddleware
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.storage import CompressedManifestStaticFilesStorage

PIECE_BYTES = 65_536

HASHED_NAME = re.compile(r"\.[0-9a-f]{12}(\.\w+)?\Z")


class LoomStaticStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """A storage that also uses the hashed names in imports of JavaScript modules."""

    support_js_module_import_aggregation = True
    max_post_process_passes = 10  # more than the depth of the modules' imports

    def _post_process(
        self, paths: dict[str, Any], adjustable_paths: list[str], hashed_files: dict[str, str]
    ) -> Iterator[tuple[Any, ...]]:
        """Run one pass, from the second pass on only over files that refer to other files.

        Most files refer to no others. Searching them again would give the same result.
        """
        is_first = not hashed_files
        if is_first:
            self._name_others: set[str] = set()
        else:
            paths = {name: path for name, path in paths.items() if name in self._name_others}
        for name, hashed_name, processed, is_changed in super()._post_process(
            paths, adjustable_paths, hashed_files
        ):
            if is_first and is_changed:
                self._name_others.add(name)
            yield name, hashed_name, processed, is_changed


class StaticFiles:
    """An ASGI application that serves WhiteNoise's files and passes other requests to Django.

    Files are read on the event loop, because requested files are in the system's page cache.
    """

    def __init__(self, application: Any) -> None:
        self.application = application
        self._noise = noise = WhiteNoiseMiddleware()
        noise.directories = [(f"{settings.STATIC_ROOT}/", noise.static_prefix)]
        self._headers = _security_headers()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        noise, path = self._noise, scope["path"]
        static_file = noise.files.get(path)
        if static_file is None and (noise.autorefresh or HASHED_NAME.search(path)):
            # In an upgrade, a newer process has collected files after this one started, and
            # requests for the files of its pages can arrive here.
            static_file = noise.find_file(path)
        if static_file is None:
            await self.application(scope, receive, send)
            return
        wsgi_headers = {
            f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}": value.decode("latin-1")
            for name, value in scope["headers"]
        }
        response = static_file.get_response(scope["method"], wsgi_headers)
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in [*response.headers, *self._headers]
        ]
        status = int(response.status)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if response.file is not None:
            with response.file as file:
                # Pieces are sent as fast as the browser reads them. Otherwise a large file would
                # wait in memory for every slow browser.
                while piece := file.read(PIECE_BYTES):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})


def _security_headers() -> list[tuple[str, str]]:
    """Return the security headers that Django's middleware adds to every page."""
    request, response = HttpRequest(), HttpResponse()
    for middleware in (SecurityMiddleware, ContentSecurityPolicyMiddleware):
        middleware(lambda _: response).process_response(request, response)
    del response["Content-Type"]
    return list(response.items())
