"""The reference of the API as a page: open to everybody, as its description is."""

from functools import cache

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from conversations.accounts.tokens import SCOPES

from .main import api
from .problems import problem
from .reference import OperationGroup, Reference


@require_safe
def api_docs(request: HttpRequest) -> HttpResponse:
    """What programs can do. Who is signed in can try what only reads."""
    groups, refusals = _read_reference()
    context = {
        "groups": groups,
        "refusals": refusals,
        "scopes": SCOPES.items(),
        "rate": settings.LOOM.api_rate,
        "site": request.build_absolute_uri("/").rstrip("/"),
    }
    return render(request, "api/docs.html", context)


@cache
def _read_reference() -> tuple[list[OperationGroup], list[tuple[str, str]]]:
    reference = Reference(api.get_openapi_schema())
    return reference.groups(), reference.refusals()


# The API's addresses, all below ``/api/v1/``.


@csrf_exempt
def no_such_address(request: HttpRequest, rest: str) -> HttpResponse:
    return problem(404, "There is no such address.")


urlpatterns = [
    path("docs", api_docs, name="api_docs"),
    path("", api.urls),
    path("<path:rest>", no_such_address, name="api_elsewhere"),
]
