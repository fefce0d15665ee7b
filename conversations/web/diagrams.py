"""The frame in which a page draws a diagram.

A diagram is source code (Mermaid), and the library that draws it is large. The library runs in a
document of its own without an origin. That document has no cookies and no storage, can reach the
page around it only by messages, and may load nothing but the library. See docs/adr/0030.
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
    # The library writes styles into its drawings.
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
    """Serve the frame, which is the same for all people. It gets the diagram in a message."""
    return render(request, "diagram.html")
