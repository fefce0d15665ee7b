"""Models of the audit log, and of purges: orders, receipts and purged contents."""

import uuid

from django.db import models
from django.db.models import CheckConstraint, Index, Q

from conversations.domain.audit import AUDIT_ACTIONS, FIRST_START, SERVER

from .fields import actor_field
from .sessions import Session


class AuditEntry(models.Model):
    """One reading of another person's transcript, or one decision about a session.

    ``session`` is null if the entry concerns no single session. ``place`` is the path (with its
    query) or the command. ``address`` is the network address of the request, and ``reason`` is the
    reason that the person stated. Names are recorded as they were at the time. The database refuses
    every change.
    """

    number = models.BigIntegerField(unique=True)
    at = models.DateTimeField()
    action = models.CharField(max_length=24)
    actor = actor_field()
    actor_name = models.CharField(max_length=200)
    # This is a uuid and not a foreign key, so that the entry outlives a purge.
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
    def who(self) -> str:
        """The actor's name. It is a translatable message for the server and the first start."""
        for message in (SERVER, FIRST_START):
            if self.actor_name == message:
                return message
        return self.actor_name

    @property
    def did(self) -> str:
        """A description of the action."""
        return AUDIT_ACTIONS.get(self.action, self.action)


class AuditHead(models.Model):
    """The end of the chain of entries: one row, which is locked while an entry is added."""

    number = models.BigIntegerField(default=0, db_default=0)
    digest = models.CharField(max_length=64)

    def __str__(self) -> str:
        return f"{self.number} entries"


class PurgeOrder(models.Model):
    """An order to purge a session at ``due_at``. Until then the order can be cancelled.

    ``by_policy`` means that the session was idle for the retention period of its workspace. An
    order archives the session; ``was_archived`` says whether it was archived before.
    """

    session = models.OneToOneField(Session, on_delete=models.PROTECT, related_name="purge_order")
    ordered_by = actor_field()
    ordered_at = models.DateTimeField()
    reason = models.CharField(max_length=500)
    due_at = models.DateTimeField(db_index=True)
    by_policy = models.BooleanField(default=False, db_default=False)
    was_archived = models.BooleanField(default=False, db_default=False)

    class Meta:
        ordering = ("due_at", "id")

    def __str__(self) -> str:
        return f"purge of session {self.session_id} due {self.due_at:%Y-%m-%d}"


class Receipt(models.Model):
    """The remains of a purged session.

    ``counts`` is JSON: the number of removed rows of each table. ``turn_digest`` and
    ``event_digest`` are the ends of the session's chains, so that a copy of the session can be
    checked. ``digest`` covers the receipt's columns and is also in the audit log. ``cold_name`` and
    ``cold_digest`` name the copy that earlier versions of the product kept. Names are recorded as
    they were at the time. The database refuses every change.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    session = models.UUIDField(db_index=True)
    workspace = models.CharField(max_length=60)
    owner = models.CharField(max_length=150)
    key = models.CharField(max_length=255, default="", db_default="")
    channel = models.CharField(max_length=32)
    created_at = models.DateTimeField()
    last_active_at = models.DateTimeField()
    purged_at = models.DateTimeField()
    ordered_by = actor_field()
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
    """A blob (``archive.blobs``) that a purged session named, or that is stored temporarily.

    It is removed as soon as it is certain that no row names it.
    """

    digest = models.CharField(max_length=64, unique=True)
    purged_at = models.DateTimeField()

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"content {self.digest[:12]}"
