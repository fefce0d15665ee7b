"""The language of pages, from the account or else the browser, and the reader's time zone."""

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
    """A middleware that activates the language that the person has chosen for pages.

    It follows Django's LocaleMiddleware, which activates the browser's language. Responses of
    the API are always in English, because programs may depend on the wording.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path.startswith(ROOT) and request.path != reverse("api_docs"):
            translation.activate(settings.LANGUAGE_CODE)
        elif language := _chosen(request):
            translation.activate(language)
        return self._get_response(request)


def _chosen(request: HttpRequest) -> str:
    # A request without a session cookie has no account, so the database is not queried.
    if settings.SESSION_COOKIE_NAME not in request.COOKIES:
        return ""
    try:
        return preferences_of(request).page_language
    except DatabaseError as error:
        # Some pages show the state of the server while the database is unavailable.
        if is_storage_error(error):
            return ""
        raise


def zone_of_browser(request: HttpRequest) -> ZoneInfo:
    """Return the reader's time zone, which the page's script stores in a cookie.

    Return UTC before the first page and without scripts.
    """
    return zone_of(request.COOKIES.get("loom_zone", "")[:64])


def preferences_of(request: HttpRequest) -> Preferences:
    """Return the preferences of the person who is signed in. They are read once per request."""
    preferences: Preferences | None = getattr(request, "preferences", None)
    if preferences is None:
        user = request.user
        preferences = read_preferences(user.pk) if isinstance(user, User) else Preferences()
        request.preferences = preferences  # type: ignore[attr-defined]
    return preferences
