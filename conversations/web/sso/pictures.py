"""The secret of an authenticator app, to be scanned or typed."""

from base64 import b64encode

from allauth.mfa.adapter import get_adapter
from django.contrib.auth.models import User


def totp_picture(user: User, secret: str) -> dict[str, str]:
    """``secret`` in groups of four, as people type it, and ``picture``, a QR code as an
    address that needs no request."""
    adapter = get_adapter()
    svg = adapter.build_totp_svg(adapter.build_totp_url(user, secret))
    groups = (secret[start : start + 4] for start in range(0, len(secret), 4))
    return {
        "secret": " ".join(groups),
        "picture": "data:image/svg+xml;base64," + b64encode(svg.encode()).decode(),
    }
