"""The app's configuration, and its post_migrate receivers: guards, search and groups."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ConversationsConfig(AppConfig):
    name = "conversations"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from conversations import checks  # noqa: F401 (registers the system checks)
        from conversations.accounts import devices  # noqa: F401 (connects its signal receivers)
        from conversations.archive.rights import make_role_groups
        from conversations.models.guards import install_guards
        from conversations.models.search import install_search

        post_migrate.connect(install_guards, sender=self, dispatch_uid="archive-guards")
        post_migrate.connect(install_search, sender=self, dispatch_uid="search-index")
        post_migrate.connect(make_role_groups, sender=self, dispatch_uid="role-groups")
