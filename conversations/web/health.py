"""Health, readiness and metrics of the server, for its operators."""

from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect, JsonResponse
from django.middleware.common import CommonMiddleware
from django.views.decorators.http import require_safe

from conversations.archive.storage import MONITOR, translate_storage_error
from conversations.domain.errors import StorageFull
from conversations.models.guards import missing_guards
from conversations.runtime.current import read_metrics


@require_safe
def healthz(_: HttpRequest) -> JsonResponse:
    """Report that the process responds."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(_: HttpRequest) -> JsonResponse:
    """Report whether the database responds, the archive has its guards and the disk is writable.

    If space is so short that only large writes are refused, the server is ready, with a warning.
    """
    problem = ""
    try:
        if missing_guards(connection):
            problem = "archive not guarded"
        elif error := MONITOR.find_problem():
            if isinstance(translate_storage_error(error), StorageFull):
                problem = "disk full"
            else:
                is_database = isinstance(error, DatabaseError)
                problem = "database not available" if is_database else "disk not writable"
    except DatabaseError:
        problem = "database not available"
    if problem:
        return JsonResponse({"status": problem}, status=503)
    if not MONITOR.is_low():
        return JsonResponse({"status": "ready"})
    warning = f"low on disk space: less than {settings.LOOM.min_free_mib} MiB are free"
    return JsonResponse({"status": "ready", "warnings": [warning]})


@require_safe
def metrics(_: HttpRequest) -> HttpResponse:
    """Return the metrics in Prometheus' text format."""
    lines = [
        f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
        f"{metric.name} {metric.value}\n"
        for metric in read_metrics()
    ]
    return HttpResponse("".join(lines), content_type="text/plain; version=0.0.4; charset=utf-8")


ASKED_BY_ADDRESS = frozenset(f"/{view.__name__}" for view in (healthz, readyz, metrics))


class HostMiddleware(CommonMiddleware):
    """Django's middleware, which refuses unknown hosts, except for monitoring.

    Monitoring reaches each server by its address, whatever host names are configured.
    """

    def process_request(self, request: HttpRequest) -> HttpResponsePermanentRedirect | None:
        return None if request.path in ASKED_BY_ADDRESS else super().process_request(request)
