"""The admin's own sign-in page would ask for one factor only."""

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme


def admin_sign_in(request: HttpRequest) -> HttpResponse:
    """In its place: ours. Who is signed in already and may not enter is told so."""
    if request.user.is_authenticated:
        raise PermissionDenied
    wanted = request.GET.get("next", "")
    is_ours = url_has_allowed_host_and_scheme(wanted, allowed_hosts=None)
    return redirect_to_login(wanted if is_ours else reverse("admin:index"))
