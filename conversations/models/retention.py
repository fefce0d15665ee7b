"""How long sessions are kept: holds, orders to purge, and what remains of a purge."""

import uuid

from django.conf import settings
from django.db import models

from .sessions import Session
from .workspaces import Workspace


class Hold(models.Model):
    """While it is not released, nothing of the session, or of any session of the
    workspace, is purged, whoever ordered it."""

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


class PurgeOrder(models.Model):
    """The session is to be purged at ``due_at``; until then the order can be called
    off. ``by_policy``: it was idle for as long as its workspace allows. ``was_archived``
    is how it was before the order, which archives it; ``keeps_copy``: a copy goes into cold
    storage, whatever the workspace says."""

    session = models.OneToOneField(Session, on_delete=models.PROTECT, related_name="purge_order")
    ordered_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    ordered_at = models.DateTimeField()
    reason = models.CharField(max_length=500)
    due_at = models.DateTimeField(db_index=True)
    by_policy = models.BooleanField(default=False, db_default=False)
    was_archived = models.BooleanField(default=False, db_default=False)
    keeps_copy = models.BooleanField(default=False, db_default=False)

    class Meta:
        ordering = ("due_at", "id")

    def __str__(self) -> str:
        return f"purge of session {self.session_id} due {self.due_at:%Y-%m-%d}"


class Receipt(models.Model):
    """What remains of a purged session. ``counts`` is JSON: the rows that went, by
    table. The digests are the ends of the session's chains, so that a copy of it can be
    checked; ``digest`` covers all columns and stands in the audit log as well.
    ``cold_name`` and ``cold_digest`` say where a copy was kept. Names are those of the
    time. The database refuses every change."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    session = models.UUIDField(db_index=True)
    workspace = models.CharField(max_length=60)
    owner = models.CharField(max_length=150)
    key = models.CharField(max_length=255, default="", db_default="")
    channel = models.CharField(max_length=32)
    created_at = models.DateTimeField()
    last_active_at = models.DateTimeField()
    purged_at = models.DateTimeField()
    ordered_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    ordered_by_name = models.CharField(max_length=200)
    reason = models.CharField(max_length=500)
    by_policy = models.BooleanField(default=False, db_default=False)
    turns = models.BigIntegerField()
    events = models.BigIntegerField()
    counts = models.TextField(default="{}", db_default="{}")
    turn_digest = models.CharField(max_length=64)
    event_digest = models.CharField(max_length=64)
    cold_name = models.CharField(max_length=500, default="", db_default="")
    cold_digest = models.CharField(max_length=64, default="", db_default="")
    digest = models.CharField(max_length=64)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"receipt of session {self.session}"


class PurgedContent(models.Model):
    """A content (``archive.blobs``) that a purged session named. It goes as soon as it is
    certain that nothing else does."""

    digest = models.CharField(max_length=64, unique=True)
    purged_at = models.DateTimeField()

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"content {self.digest[:12]}"
