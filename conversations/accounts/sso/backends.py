"""Which browser sessions count where two factors are required.

A browser session notes the backend that made it, and counts only while that backend is
in the settings: for pages, for sockets, for everything. Where two factors are required
this one stands in the place of Django's own, and only the last step of a sign-in names
it. So what was signed in before, or past that step, is signed out.
"""

from django.contrib.auth.backends import ModelBackend


class SecondFactorBackend(ModelBackend):
    """Names, passwords and permissions as ever."""
