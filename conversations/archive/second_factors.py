"""People's second factors, for those who lost them. The tables are django-allauth's,
and there only where two factors are switched on."""

from django.apps import apps
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Model

from conversations.domain.audit import ROLE

from .audit import AuditEvent, AuditOrigin, record


def remove_second_factors(user: User, *, origin: AuditOrigin) -> int:
    """Next time the person signs in by the first factor alone, or sets up a new second
    one; how many are gone, recovery codes counted as one."""
    model: type[Model] = apps.get_app_config("mfa").get_model("Authenticator")
    with transaction.atomic():
        removed, _ = model._default_manager.filter(user=user).delete()
        if removed:
            metadata = {"person": user.get_username(), "second_factor": "removed"}
            record(origin, AuditEvent(action=ROLE, metadata=metadata))
    return removed
