"""For those who run the server: is it up, is it ready, what does it do."""

from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from conversations.models.guards import missing_guards
from conversations.runtime.metrics import read_metrics


@require_safe
def healthz(_: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(_: HttpRequest) -> JsonResponse:
    """The database answers and the archive is guarded."""
    try:
        problem = "archive not guarded" if missing_guards(connection) else ""
    except DatabaseError:
        problem = "database not available"
    status = 503 if problem else 200
    return JsonResponse({"status": problem or "ready"}, status=status)


@require_safe
def metrics(_: HttpRequest) -> HttpResponse:
    """Figures in Prometheus' text format."""
    lines = [
        f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
        f"{metric.name} {metric.value}\n"
        for metric in read_metrics()
    ]
    return HttpResponse("".join(lines), content_type="text/plain; version=0.0.4; charset=utf-8")
