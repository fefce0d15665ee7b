"""A part of a page asked for by somebody who has been signed out meanwhile.

A browser follows the redirection to the sign-in page by itself, which would then
stand in the midst of the page that asked.
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.utils.http import urlencode


class SignedOutMiddleware:
    """Sends the whole page to the sign-in; a chat stays as it is, with what is
    written in it: its socket says that the person is signed out."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        sign_in = resolve_url("sign_in")
        is_part = request.method == "GET" and request.headers.get("HX-Request") == "true"
        if not is_part or urlsplit(response.get("Location", "")).path != sign_in:
            return response
        answer = HttpResponse(status=204)
        page = urlsplit(request.headers.get("HX-Current-URL", "")).path or "/"
        if not page.startswith("/s/"):
            answer["HX-Redirect"] = f"{sign_in}?{urlencode({'next': page})}"
        return answer
