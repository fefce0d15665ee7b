"""Django's sessions of browsers, for keys that can be one only.

A cookie may quote any byte. A key with a NUL in it would make PostgreSQL fail,
and anybody could cause that on any page.
"""

from django.contrib.sessions.backends import db


class SessionStore(db.SessionStore):
    def _validate_session_key(self, key: str | None) -> bool:
        return key is not None and len(key) >= 8 and key.isascii() and key.isalnum()
