"""The Django app of the extra ``sso``, which has no tables of its own."""

from django.apps import AppConfig


class SignInConfig(AppConfig):
    name = "conversations.accounts.sso"
    label = "sso"

    def ready(self) -> None:
        from . import signals

        signals.connect_signals()
