"""How many wrong passwords are taken: of one name from one address, and of all names from
one address."""

from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.helpers import get_client_username
from axes.models import AccessAttempt, AccessLog
from django.conf import settings
from django.db.models import Sum
from django.http import HttpRequest


class AttemptCounter(AxesDatabaseHandler):  # type: ignore[misc]
    """Somebody who tries one password on many names stays below the limit of each name, so
    an address has a limit over all names.

    Many people can share an address. Whoever has signed in from it before is not held up by
    what others do there: for their name, its own limit counts alone.
    """

    def is_locked(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> bool:
        return super().is_locked(request, credentials) or self.is_address_locked(
            request, credentials
        )

    def user_login_failed(
        self,
        sender: Any,
        credentials: dict[str, Any],
        request: HttpRequest | None = None,
        **more: Any,
    ) -> None:
        super().user_login_failed(sender, credentials, request, **more)
        if request is not None and self.is_address_locked(request, credentials):
            request.is_address_locked = True  # type: ignore[attr-defined]  # for the page
            request.axes_locked_out = True  # type: ignore[attr-defined]
            request.axes_credentials = credentials  # type: ignore[attr-defined]

    def is_address_locked(
        self, request: HttpRequest, credentials: dict[str, Any] | None = None
    ) -> bool:
        address = request.axes_ip_address  # type: ignore[attr-defined]
        if address is None:
            return False
        since = get_cool_off_threshold(request)
        attempts = AccessAttempt.objects.filter(ip_address=address, attempt_time__gte=since)
        failures = attempts.aggregate(Sum("failures_since_start"))["failures_since_start__sum"]
        if (failures or 0) < settings.LOOM.sign_in_address_attempts:
            return False
        name = get_client_username(request, credentials)
        return not AccessLog.objects.filter(username=name, ip_address=address).exists()
