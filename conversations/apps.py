"""The app's start: guards on the archive are put back after every migration."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ConversationsConfig(AppConfig):
    name = "conversations"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from conversations import checks  # noqa: F401 (registers the system checks)
        from conversations.models.guards import install_guards
        from conversations.models.search_schema import install_search

        post_migrate.connect(install_guards, sender=self, dispatch_uid="archive-guards")
        post_migrate.connect(install_search, sender=self, dispatch_uid="search-index")
