"""People's second factors, for those who lost them. The tables are django-allauth's,
and there only where two factors are switched on."""

from django.apps import apps
from django.contrib.auth.models import User
from django.db.models import Model


def remove_second_factors(user: User) -> int:
    """Next time the person signs in by the first factor alone, or sets up a new second
    one; how many are gone, recovery codes counted as one."""
    model: type[Model] = apps.get_app_config("mfa").get_model("Authenticator")
    removed, _ = model._default_manager.filter(user=user).delete()
    return removed
