"""The extra as a Django app: without tables of its own."""

from django.apps import AppConfig, apps
from django.contrib import admin


class SignInConfig(AppConfig):
    name = "conversations.web.sso"
    label = "sso"

    def ready(self) -> None:
        from . import watching

        watching.begin()
        self._leave_admin()

    def _leave_admin(self) -> None:
        """The admin is for reading: whoever could edit a second factor or say whose
        account at the provider is whose could sign in as anybody."""
        for app in apps.get_app_configs():
            if app.name.startswith("allauth."):
                for model in app.get_models():
                    if admin.site.is_registered(model):
                        admin.site.unregister(model)
