"""The web app manifest, the service worker and the offline page."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.templatetags.static import static
from django.urls import reverse
from django.utils.crypto import salted_hmac
from django.utils.translation import get_language
from django.views.decorators.http import require_safe

from conversations.access import person
from conversations.domain.text import dump_json

ICONS = {
    "icon-192.png": ("192x192", "any"),
    "icon-512.png": ("512x512", "any"),
    "icon-maskable-512.png": ("512x512", "maskable"),
}
"""File name → size and purpose."""

# Files that the offline page and the bar above stored pages need.
SCRIPTS = ("theme", "page", "lists", "side", "dom")
SHELL = ("css/app.css", "css/pages.css", *(f"js/{name}.js" for name in SCRIPTS))
OFFLINE_SCRIPT, OFFLINE_STYLE = "notices/offline.js", "notices/offline.css"

SALT = "loom.person"


def person_mark(request: HttpRequest) -> str:
    """Return a mark by which the service worker tells one person's pages from another's."""
    return salted_hmac(SALT, str(person(request).pk), algorithm="sha256").hexdigest()[:16]


@require_safe
def manifest(request: HttpRequest) -> HttpResponse:
    icons = [
        {"src": static(f"notices/{name}"), "sizes": sizes, "type": "image/png", "purpose": purpose}
        for name, (sizes, purpose) in ICONS.items()
    ]
    data = {
        "id": "/",
        "name": "Loom Web",
        "short_name": "Loom",
        "start_url": reverse("home"),
        "scope": "/",
        "display": "standalone",
        "background_color": "#ffffff",
        "theme_color": "#4650c8",
        "icons": icons,
    }
    return JsonResponse(data, content_type="application/manifest+json")


@require_safe
def offline(request: HttpRequest) -> HttpResponse:
    """Render the page that is shown without a network if the browser has no copy of a page.

    It contains nothing of any person.
    """
    return render(request, "notices/offline.html")


@require_safe
def service_worker(request: HttpRequest) -> HttpResponse:
    """Return the settings of the service worker, and the statement that imports its script.

    File names change with their contents, so this response alone tells a browser that there is a
    new version of the worker.
    """
    language = get_language()
    words = [static(f"js/words/{language}.js")] if language != settings.LANGUAGE_CODE else []
    shell = [*(static(name) for name in (*SHELL, OFFLINE_STYLE, OFFLINE_SCRIPT)), *words]
    scripts = [*words, static("notices/service-worker.js")]
    config = {
        "shell": [reverse("notices_offline"), *shell],
        "offline": reverse("notices_offline"),
        "offlineStyle": static(OFFLINE_STYLE),
        "offlineScript": static(OFFLINE_SCRIPT),
        "maxPages": settings.LOOM.offline_pages,
        "statics": settings.STATIC_URL,
        "icon": static("notices/icon-192.png"),
        "badge": static("notices/badge-96.png"),
        "waiting": reverse("notices_waiting"),
        "shown": reverse("notices_shown"),
        "subscribe": reverse("notices_subscribe"),
        "signIn": reverse("sign_in"),
        "signOut": reverse("sign_out"),
    }
    body = f"self.LOOM = {dump_json(config)};\nimportScripts(...{dump_json(scripts)});\n"
    response = HttpResponse(body, content_type="text/javascript; charset=utf-8")
    response["Cache-Control"] = "no-cache"
    return response
