"""The frame in which a page draws a diagram.

A diagram is a program's text, and the library that draws it is large. It runs in a document
of its own that has no origin: no cookies, no storage, no way to the page around it but
messages, and nothing that it may load but the library. See docs/adr/0030.
"""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.csp import CSP
from django.views.decorators.cache import cache_control
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.csp import csp_override
from django.views.decorators.http import require_safe

_POLICY: dict[str, list[str]] = {
    "sandbox": ["allow-scripts"],
    "default-src": [CSP.NONE],
    "script-src": [CSP.SELF],
    # The library puts the style of a drawing into the drawing.
    "style-src": [CSP.SELF, CSP.UNSAFE_INLINE],
    "form-action": [CSP.NONE],
    "base-uri": [CSP.NONE],
    "frame-ancestors": [CSP.SELF],
}


@require_safe
@cache_control(private=True, max_age=3600)
@xframe_options_sameorigin
@csp_override(_POLICY)
def diagram(request: HttpRequest) -> HttpResponse:
    """The same for everybody: it gets what it draws in a message."""
    return render(request, "diagram.html")
