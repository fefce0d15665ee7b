"""What a person has chosen, as pages carry it: before anything is drawn, and without a
script that would ask for it."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from conversations.archive.preferences import DEFAULTS, Chosen, read_preferences

ATTRIBUTES = {
    "keys": "keys",
    "enter": "enter",
    "language": "dates",
    "clock": "clock",
    "times": "times",
}
"""Preference → the attribute of the page that has it, where it is not the usual one."""


def preferences(request: HttpRequest) -> dict[str, Any]:
    """A context processor. ``chosen`` is empty for somebody who is not signed in.
    Nothing is asked before a template does: parts of pages do not need it."""
    return {"chosen": SimpleLazyObject(lambda: _chosen(request))}


def _chosen(request: HttpRequest) -> dict[str, Any]:
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return {}
    chosen = read_preferences(user.pk)
    return {
        "theme": chosen.theme,
        "enter": chosen.enter,
        "attributes": _attributes(chosen),
        "can_import": settings.LOOM.max_import_bytes > 0,
    }


def _attributes(chosen: Chosen) -> SafeString:
    given = [("theme", chosen.theme)]
    for name, attribute in ATTRIBUTES.items():
        value = getattr(chosen, name)
        if value != getattr(DEFAULTS, name):
            given.append((attribute, value))
    return format_html_join("", ' data-{}="{}"', given)
