"""Compression of pages."""

import gzip
import re
import secrets
from io import BytesIO

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils.cache import patch_vary_headers

# A page with 250 rows is compressed to 45 kB in 2 ms. Django's level 6 needs 6 ms for 43 kB.
GZIP_LEVEL = 4

MIN_BYTES = 200


class PageGZipMiddleware(GZipMiddleware):
    """Django's middleware, but with a third of its time for whole pages."""

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        if (
            not isinstance(response, HttpResponse)  # a streaming response
            or "Content-Encoding" in response
            or "ETag" in response
            or len(response.content) < MIN_BYTES
        ):
            return super().process_response(request, response)
        patch_vary_headers(response, ("Accept-Encoding",))
        if re.search(r"\bgzip\b", request.headers.get("Accept-Encoding", "")):
            response.content = self._compress(response.content)
            response["Content-Length"] = str(len(response.content))
            response["Content-Encoding"] = "gzip"
        return response

    def _compress(self, content: bytes) -> bytes:
        buffer = BytesIO()
        # A file name of random length, as Django adds it. Otherwise the length of the response
        # could tell an attacker whether text that they inserted occurs in the page already
        # (BREACH).
        name = "a" * secrets.randbelow(self.max_random_bytes)
        with gzip.GzipFile(
            filename=name, mode="wb", compresslevel=GZIP_LEVEL, fileobj=buffer, mtime=0
        ) as file:
            file.write(content)
        return buffer.getvalue()
