"""The language of pages: what the person has chosen, or else what the browser asks for; and
the zone of their days."""

from collections.abc import Callable
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import translation

from conversations.api.problems import ROOT
from conversations.archive.storage import is_storage_error
from conversations.domain.text import zone_of
from conversations.models import Preferences

from .people import read_preferences


class AccountLanguageMiddleware:
    """After Django's LocaleMiddleware, which takes the browser's language: that of the account.
    Programs are answered in English, by which they may have been written."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path.startswith(ROOT) and request.path != reverse("api_docs"):
            translation.activate(settings.LANGUAGE_CODE)
        elif language := _chosen(request):
            translation.activate(language)
        return self._get_response(request)


def _chosen(request: HttpRequest) -> str:
    # Whoever has no cookie is not asked for: that takes the database.
    if settings.SESSION_COOKIE_NAME not in request.COOKIES:
        return ""
    try:
        return preferences_of(request).page_language
    except DatabaseError as error:
        # Some pages say how the server is while the database is away.
        if is_storage_error(error):
            return ""
        raise


def zone_of_browser(request: HttpRequest) -> ZoneInfo:
    """Where the reader's days begin: the page's script keeps it in a cookie. UTC before the
    first page, and without scripts."""
    return zone_of(request.COOKIES.get("loom_zone", "")[:64])


def preferences_of(request: HttpRequest) -> Preferences:
    """Those of whoever is signed in, read once in a request."""
    known: Preferences | None = getattr(request, "preferences", None)
    if known is None:
        user = request.user
        known = read_preferences(user.pk) if isinstance(user, User) else Preferences()
        request.preferences = known  # type: ignore[attr-defined]
    return known
