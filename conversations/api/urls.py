"""The API's addresses, all below ``/api/v1/``, and its reference as a page.

The operations are imported when one of their addresses is first requested or reversed. Importing
them takes half a second, and the start of the server does not wait for it.
"""

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, path
from django.urls.resolvers import RoutePattern
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from .problems import problem


@require_safe
def api_docs(request: HttpRequest) -> HttpResponse:
    """Show the reference of the API."""
    from .main import render_reference

    return render_reference(request)


@csrf_exempt
def no_such_address(request: HttpRequest, rest: str) -> HttpResponse:
    return problem(404, "This address does not exist.")


class LazyApiResolver(URLResolver):
    """A resolver like the one that ``include`` makes, which imports its module only when needed."""

    def __init__(self) -> None:
        super().__init__(
            RoutePattern(""), "conversations.api.main", app_name="ninja", namespace="api"
        )

    def _populate(self) -> None:
        # Django calls this to collect names without a namespace. All names of the API have one, and
        # collecting them would import the module.
        pass


urlpatterns: list[URLPattern | URLResolver] = [
    path("docs", api_docs, name="api_docs"),
    LazyApiResolver(),
    path("<path:rest>", no_such_address, name="api_elsewhere"),
]
