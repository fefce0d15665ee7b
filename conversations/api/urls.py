"""The API's addresses, all below ``/api/v1/``."""

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from .docs import api_docs
from .main import api
from .problems import problem


@csrf_exempt
def no_such_address(request: HttpRequest, rest: str) -> HttpResponse:
    return problem(404, "There is no such address.")


urlpatterns = [
    path("docs", api_docs, name="api_docs"),
    path("", api.urls),
    path("<path:rest>", no_such_address, name="api_elsewhere"),
]
