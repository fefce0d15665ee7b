"""Who read what of other people's, and who decided what about it."""

from django.db import models
from django.db.models import CheckConstraint, Index, Q

from conversations.domain.audit import AUDIT_ACTIONS

from .fields import actor_field


class AuditEntry(models.Model):
    """One reading of another person's transcript, or one decision about a session.

    ``session`` is a uuid and no key, so that the entry outlives a purge; null: it
    concerns no single session. ``place`` is the path (with its query) or the command,
    ``address`` the network address it came from and ``reason`` the one that the person
    gave. The names are those of the time. The database refuses every change."""

    number = models.BigIntegerField(unique=True)
    at = models.DateTimeField()
    action = models.CharField(max_length=24)
    actor = actor_field()
    actor_name = models.CharField(max_length=200)
    session = models.UUIDField(null=True)
    workspace = models.CharField(max_length=60, default="", db_default="")
    place = models.CharField(max_length=500, default="", db_default="")
    address = models.CharField(max_length=45, default="", db_default="")
    agent = models.CharField(max_length=200, default="", db_default="")
    reason = models.CharField(max_length=500, default="", db_default="")
    metadata = models.TextField(default="{}", db_default="{}")
    digest = models.CharField(max_length=64)

    class Meta:
        ordering = ("-number",)
        verbose_name_plural = "audit entries"
        permissions = (
            ("administer_installation", "Can manage people, policies and the audit log"),
        )
        constraints = (
            CheckConstraint(condition=Q(action__in=AUDIT_ACTIONS), name="audit_action_known"),
        )
        indexes = (
            Index(fields=("session", "-number"), name="audit_of_session"),
            Index(fields=("actor", "-number"), name="audit_of_actor"),
            Index(fields=("action", "-number"), name="audit_of_action"),
            Index(fields=("workspace", "-number"), name="audit_of_workspace"),
            Index(fields=("at",), name="audit_by_time"),
        )

    def __str__(self) -> str:
        return f"{self.number} · {self.actor_name} {self.did}"

    @property
    def did(self) -> str:
        """What the person did, in words."""
        return AUDIT_ACTIONS.get(self.action, self.action)


class AuditHead(models.Model):
    """The end of the chain: one row, locked while an entry is added."""

    number = models.BigIntegerField(default=0, db_default=0)
    digest = models.CharField(max_length=64)

    def __str__(self) -> str:
        return f"{self.number} entries"
