"""The data that a sign-in with two steps stores in the session after the first step."""

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest

from conversations.archive.workspaces import create_sign_in_link, digest_of, unused_links

BEGUN_WITH = "sign_in_begun_with"  # session auth hash, which changes with the password
BEGUN_AS = "sign_in_begun_as"  # digest of a sign-in link that stands for this sign-in


def record_sign_in_start(request: HttpRequest, user: User) -> None:
    request.session[BEGUN_WITH] = user.get_session_auth_hash()
    if settings.LOOM.two_factor != "off":  # otherwise there is no second step
        # The link's token is not stored, so the link cannot be opened. Signing out all devices
        # expires it, as it does with all unused links.
        request.session[BEGUN_AS] = digest_of(create_sign_in_link(user))


def is_overtaken(request: HttpRequest, user: User) -> bool:
    """Return whether the sign-in must be started again.

    This is so if the password has changed since the first step, or if the person has been signed
    out everywhere.
    """
    if request.session.get(BEGUN_WITH) != user.get_session_auth_hash():
        return True
    begun_as = unused_links(request.session.get(BEGUN_AS, ""))
    return settings.LOOM.two_factor != "off" and not begun_as.exists()
