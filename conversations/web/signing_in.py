"""The one way in: whoever has shown who they are is signed in here.

Where a second factor is asked for, it comes between. A sign-in past this function is
safe as well: where two factors are required, the sessions that it makes count for
nothing (see ``sso.backends``).
"""

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

BACKEND = "django.contrib.auth.backends.ModelBackend"


def sign_in_person(request: HttpRequest, user: User, *, to: str) -> HttpResponse:
    """Sign this person in, or ask for the second factor first; then on to ``to``, which
    is an address of our own."""
    if settings.LOOM.two_factor == "off":
        login(request, user, backend=BACKEND)
        return redirect(to)
    from .sso.second_factor import continue_sign_in

    return continue_sign_in(request, user, to=to)
