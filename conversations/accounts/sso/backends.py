"""The authentication backend for installations that require two factors.

A browser session stores the path of its backend and is valid only while the settings list that
backend. If two factors are required, this backend replaces Django's own in the settings, and only
the last step of a sign-in uses it. Sessions from before the setting was changed, or that skipped
that step, are therefore signed out for pages and sockets alike.
"""

from django.contrib.auth.backends import ModelBackend


class SecondFactorBackend(ModelBackend):
    """Django's backend under another path."""
