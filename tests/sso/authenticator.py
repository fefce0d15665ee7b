"""An authenticator app."""

import hmac
import struct
import time
from base64 import b32decode


def code_of(secret: str, *, steps: int = 0) -> str:
    """Return the code that an authenticator app shows (RFC 6238)."""
    counter = struct.pack(">Q", int(time.time()) // 30 + steps)
    digest = hmac.digest(b32decode(secret.replace(" ", "")), counter, "sha1")
    offset = digest[-1] & 15
    number = struct.unpack(">I", digest[offset : offset + 4])[0] & 0x7FFFFFFF
    return f"{number % 1_000_000:06d}"
