"""For those who run the server: is it up, is it ready, what does it do."""

from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from conversations.archive.storage import MONITOR, translate_storage_error
from conversations.domain.errors import StorageFull
from conversations.models.guards import missing_guards
from conversations.runtime.metrics import read_metrics


@require_safe
def healthz(_: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(_: HttpRequest) -> JsonResponse:
    """The database answers, the archive is guarded, and something can be written. While
    only large things are refused, since room is short, it is ready and warns."""
    try:
        problem = "archive not guarded" if missing_guards(connection) else _find_write_problem()
    except DatabaseError:
        problem = "database not available"
    if problem:
        return JsonResponse({"status": problem}, status=503)
    if not MONITOR.is_low():
        return JsonResponse({"status": "ready"})
    warning = f"low on disk space: less than {settings.LOOM.min_free_mib} MiB are free"
    return JsonResponse({"status": "ready", "warnings": [warning]})


def _find_write_problem() -> str:
    error = MONITOR.find_problem()
    if error is None:
        return ""
    if isinstance(translate_storage_error(error), StorageFull):
        return "disk full"
    return "database not available" if isinstance(error, DatabaseError) else "disk not writable"


@require_safe
def metrics(_: HttpRequest) -> HttpResponse:
    """Figures in Prometheus' text format."""
    lines = [
        f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
        f"{metric.name} {metric.value}\n"
        for metric in read_metrics()
    ]
    return HttpResponse("".join(lines), content_type="text/plain; version=0.0.4; charset=utf-8")
