"""The installation's key for push services (VAPID, RFC 8292), and encrypted messages (RFC 8291).

The key is derived from the installation's secret key, as the secrets of webhooks are. So all
processes and hosts of an installation have the same key, and it need not be stored or backed up.
"""

import base64
import time
from functools import cache
from typing import TYPE_CHECKING

from django.conf import settings
from django.utils.crypto import salted_hmac
from yarl import URL

# The cryptography package is imported in the functions that use it, because most installations
# do not need it when they start.
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

SALT = "loom.vapid"

# The number of points of the curve P-256 (FIPS 186-5). A private key is in 1 … ORDER - 1.
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

MAX_TOKEN_SECONDS = 12 * 3600  # push services accept a day at most

# The whole content of a push. The browser asks the server what has happened.
CONTENT = b"{}"


def private_key() -> "EllipticCurvePrivateKey":
    return _derive_key(settings.SECRET_KEY)


@cache
def _derive_key(secret: str) -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    # With 512 bits, no key is noticeably more likely than another after the modulo.
    number = int.from_bytes(salted_hmac(SALT, "", secret, algorithm="sha512").digest())
    return ec.derive_private_key(number % (ORDER - 1) + 1, ec.SECP256R1())


def public_key() -> str:
    """Return the key with which a browser subscribes (``applicationServerKey``)."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    point = private_key().public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return encode(point)


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Return the bytes of unpadded URL-safe Base64. Raise ValueError if the text is invalid."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def check_browser_keys(p256dh: str, auth: str) -> None:
    """Raise ValueError if a message cannot be encrypted for these keys."""
    from cryptography.hazmat.primitives.asymmetric import ec

    ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decode(p256dh))
    if len(decode(auth)) != 16:
        raise ValueError("the secret of a browser has 16 bytes")


def encrypt(*, p256dh: str, auth: str) -> bytes:
    """Return the encrypted body of a push for the browser with these keys."""
    import http_ece
    from cryptography.hazmat.primitives.asymmetric import ec

    own = ec.generate_private_key(ec.SECP256R1())
    body: bytes = http_ece.encrypt(
        CONTENT,
        private_key=own,
        dh=decode(p256dh),
        auth_secret=decode(auth),
        version="aes128gcm",
    )
    return body


def authorization(endpoint: str, *, site: str) -> str:
    """Return the header that identifies the sender to the push service.

    ``site`` is the address at which the push service may contact the sender.
    """
    import jwt

    claims = {
        "aud": str(URL(endpoint, encoded=True).origin()),
        "exp": int(time.time()) + MAX_TOKEN_SECONDS,
        "sub": site,
    }
    return f"vapid t={jwt.encode(claims, private_key(), algorithm='ES256')}, k={public_key()}"
