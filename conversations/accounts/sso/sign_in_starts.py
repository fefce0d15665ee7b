"""What a sign-in in two steps remembers of its first one."""

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest

from conversations.archive.workspaces import create_sign_in_link, digest_of, unused_links

BEGUN_WITH = "sign_in_begun_with"  # What stands for the password at the first step
BEGUN_AS = "sign_in_begun_as"  # What stands for the sign-in itself


def record_sign_in_start(request: HttpRequest, user: User) -> None:
    request.session[BEGUN_WITH] = user.get_session_auth_hash()
    if settings.LOOM.two_factor != "off":  # else there is nothing to wait for
        # Nobody can open this link; like all that are unused, it ends when devices are signed out.
        request.session[BEGUN_AS] = digest_of(create_sign_in_link(user))


def is_overtaken(request: HttpRequest, user: User) -> bool:
    """Whether the password is another one since the sign-in was begun, or the person was signed
    out everywhere."""
    if request.session.get(BEGUN_WITH) != user.get_session_auth_hash():
        return True
    begun_as = unused_links(request.session.get(BEGUN_AS, ""))
    return settings.LOOM.two_factor != "off" and not begun_as.exists()
