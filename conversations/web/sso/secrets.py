"""Second factors in the database: unreadable without the server's secret key.

A copy of the database signs nobody in.
"""

from base64 import urlsafe_b64encode
from functools import cache
from hashlib import sha256

from allauth.mfa.adapter import DefaultMFAAdapter
from cryptography.fernet import Fernet
from django.conf import settings
from django.contrib.auth.models import User


class TwoFactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    def encrypt(self, text: str) -> str:
        return _cipher(settings.SECRET_KEY).encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        """Raises InvalidToken when the secret key is another one."""
        return _cipher(settings.SECRET_KEY).decrypt(encrypted_text.encode()).decode()

    def get_totp_label(self, user: User) -> str:
        return user.get_username()


@cache
def _cipher(secret_key: str) -> Fernet:
    return Fernet(urlsafe_b64encode(sha256(b"loom.two_factor:" + secret_key.encode()).digest()))
