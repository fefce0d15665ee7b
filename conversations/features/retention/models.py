"""The model of holds. Orders to purge and receipts belong to ``archive.purge``."""

from django.conf import settings
from django.db import models

from conversations.models.sessions import Session
from conversations.models.workspaces import Workspace


class Hold(models.Model):
    """A hold, which prevents every purge of a session, or of all sessions of a workspace.

    A hold is in force until it is released.
    """

    session = models.ForeignKey(
        Session, null=True, on_delete=models.PROTECT, related_name="holds", db_index=False
    )
    workspace = models.ForeignKey(
        Workspace, null=True, on_delete=models.PROTECT, related_name="holds", db_index=False
    )
    reason = models.CharField(max_length=500)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True)
    released_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )

    class Meta:
        app_label = "conversations"
        ordering = ("-id",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(session__isnull=True, workspace__isnull=False)
                | models.Q(session__isnull=False, workspace__isnull=True),
                name="hold_has_one_object",
            ),
        )
        indexes = (
            models.Index(fields=("session", "released_at"), name="hold_of_session"),
            models.Index(fields=("workspace", "released_at"), name="hold_of_workspace"),
        )

    def __str__(self) -> str:
        return f"hold {self.pk}"
