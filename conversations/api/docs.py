"""The API's addresses, all below ``/api/v1/``, and its reference as a page."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from ninja.openapi.docs import Swagger

from .main import api
from .problems import problem


class Reference(Swagger):
    """Swagger UI with the static files of django-ninja, inside a page of ours."""

    template = "api/docs.html"


@require_safe
def api_docs(request: HttpRequest) -> HttpResponse:
    """What programs can do. Who is signed in can try what only reads."""
    settings: dict[str, Any] = {
        "deepLinking": False,
        "docExpansion": "none",
        "defaultModelsExpandDepth": 0,
        "supportedSubmitMethods": ["get"] if request.user.is_authenticated else [],
        "validatorUrl": None,  # else the description is sent to a server of Swagger's
    }
    return Reference(settings).render_page(request, api)


@csrf_exempt
def no_such_address(request: HttpRequest, rest: str) -> HttpResponse:
    return problem(404, "There is no such address.")


urlpatterns = [
    path("docs", api_docs, name="api_docs"),
    path("", api.urls),
    path("<path:rest>", no_such_address, name="api_elsewhere"),
]
