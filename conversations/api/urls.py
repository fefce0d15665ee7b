"""The API's addresses, all below ``/api/v1/``, and its reference as a page.

The operations are loaded when an address among them is asked for or made the first time. That
takes half a second, and no start of the server waits for it.
"""

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, path
from django.urls.resolvers import RoutePattern
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from .problems import problem


@require_safe
def api_docs(request: HttpRequest) -> HttpResponse:
    """What programs can do."""
    from .main import render_reference

    return render_reference(request)


@csrf_exempt
def no_such_address(request: HttpRequest, rest: str) -> HttpResponse:
    return problem(404, "This address does not exist.")


class LazyApiResolver(URLResolver):
    """What ``include`` makes, but for importing the module."""

    def __init__(self) -> None:
        super().__init__(
            RoutePattern(""), "conversations.api.main", app_name="ninja", namespace="api"
        )

    def _populate(self) -> None:
        # Django would look for names here that stand in no namespace.
        pass


urlpatterns: list[URLPattern | URLResolver] = [
    path("docs", api_docs, name="api_docs"),
    LazyApiResolver(),
    path("<path:rest>", no_such_address, name="api_elsewhere"),
]
