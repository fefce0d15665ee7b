"""Encryption of secrets in the database with the server's secret key."""

from base64 import urlsafe_b64encode
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


def encrypt_secret(text: str, *, purpose: str, secret_key: str) -> str:
    return _cipher(purpose, secret_key).encrypt(text.encode()).decode()


def decrypt_secret(text: str, *, purpose: str, secret_key: str) -> str | None:
    """Return the decrypted text, or None if the secret key or the purpose is a different one."""
    from cryptography.fernet import InvalidToken

    try:
        return _cipher(purpose, secret_key).decrypt(text.encode()).decode()
    except InvalidToken:
        return None


@cache
def _cipher(purpose: str, secret_key: str) -> "Fernet":
    from cryptography.fernet import Fernet  # The import takes some tens of milliseconds.

    digest = sha256(f"loom.{purpose}:{secret_key}".encode()).digest()
    return Fernet(urlsafe_b64encode(digest))
