"""Models of tools: permissions, grants of tool servers, file changes and attachments."""

import uuid

from django.db import models
from django.db.models import CharField, CheckConstraint, Func, Index, Q, UniqueConstraint

from conversations.domain.tool_calls import is_kind

from .fields import actor_field
from .runs import Run, ToolCall
from .sessions import Session
from .workspaces import Workspace


class ToolPermission(models.Model):
    """A kind of call that a person has always allowed in a workspace, until it is revoked.

    ``kind`` is the key of a ``domain.tool_calls.CallKind``.
    """

    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="tool_permissions"
    )
    kind = models.CharField(max_length=255)
    label = models.CharField(max_length=255)
    granted_by = actor_field()
    granted_at = models.DateTimeField()
    revoked_by = actor_field()
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("id",)
        constraints = (
            UniqueConstraint(
                fields=("workspace", "kind"),
                condition=Q(revoked_at=None),
                name="tool_permission_unique",
            ),
        )

    def __str__(self) -> str:
        return self.label

    @property
    def applies(self) -> bool:
        """Whether the kind still exists. If not, calls ask for approval again."""
        return is_kind(self.kind)


class ToolServerGrant(models.Model):
    """A grant by the authorization server of a tool server.

    ``workspace`` is the slug of the workspace that configures the tool server. It is empty for a
    server of the installation. ``secrets`` and ``answer`` are encrypted. While a person signs in,
    ``state_digest`` is the digest of the ``state`` that the expected answer has.
    """

    workspace = models.CharField(max_length=100, blank=True)
    server = models.CharField(max_length=40)
    url = models.TextField()
    secrets = models.TextField(default="")
    granted_by = actor_field()
    granted_at = models.DateTimeField(null=True)
    state_digest = models.CharField(max_length=64, default="", db_index=True)
    answer = models.TextField(default="")
    problem = models.TextField(default="")
    asked_in = models.CharField(max_length=100, default="")
    asked_by = actor_field()
    asked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("id",)
        constraints = (
            UniqueConstraint(fields=("workspace", "server"), name="tool_server_grant_unique"),
        )

    def __str__(self) -> str:
        return f"{self.workspace} {self.server}".strip()


class Revert(models.Model):
    """A revert: a person put files back as they were before a call, a run or the session."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="reverts")
    run = models.ForeignKey(Run, null=True, on_delete=models.PROTECT, related_name="+")
    call = models.ForeignKey(ToolCall, null=True, on_delete=models.PROTECT, related_name="+")
    actor = actor_field()
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"revert {self.uuid}"


PATH_HEAD_CHARS = 100


class PathHead(Func):
    """The beginning of a path, as an SQL expression without parameters.

    SQLite uses an index of an expression only if a query has exactly the same expression.
    """

    template = f"SUBSTR(%(expressions)s, 1, {PATH_HEAD_CHARS})"
    output_field = CharField()


class FileChange(models.Model):
    """One file, link or folder that a call or a revert changed.

    ``before`` and ``after`` are digests of the content (see ``agent.undo.disk``), or empty if there
    was or is none. The modes are the whole ``st_mode``. A tool's change is recorded before the tool
    makes it, and ``done_at`` is null until the change is known to have happened. ``path`` is
    relative to the workspace's folder, and quoted if it is not UTF-8. With ``has_copy``, the
    replaced content can be restored.
    """

    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="file_changes", db_index=False
    )
    run = models.ForeignKey(Run, null=True, on_delete=models.PROTECT, related_name="+")
    call = models.ForeignKey(
        ToolCall, null=True, on_delete=models.PROTECT, related_name="file_changes"
    )
    revert = models.ForeignKey(
        Revert, null=True, on_delete=models.PROTECT, related_name="file_changes"
    )
    path = models.CharField(max_length=4096)
    before = models.CharField(max_length=64, default="", db_default="")
    before_mode = models.IntegerField(null=True)
    before_size = models.BigIntegerField(null=True)
    after = models.CharField(max_length=64, default="", db_default="")
    after_mode = models.IntegerField(null=True)
    after_size = models.BigIntegerField(null=True)
    has_copy = models.BooleanField(default=True, db_default=True)
    created_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True)
    reverted_by = models.ForeignKey(
        Revert, null=True, on_delete=models.PROTECT, related_name="reverted"
    )

    class Meta:
        ordering = ("id",)
        indexes = (
            Index(fields=("session", "id"), name="file_change_of_session"),
            Index(fields=("call",), condition=Q(done_at=None), name="file_change_begun"),
            # The index finds the changes of one file. A whole path can be too long for an index.
            Index(PathHead("path"), "id", name="file_change_of_path"),
        )

    def __str__(self) -> str:
        return f"change {self.pk}"


class Attachment(models.Model):
    """An image, a PDF or a text that a person sent or a tool read.

    The content is a blob (``archive.blobs``), which is stored once. ``sent`` is the blob that the
    model gets, of the type ``sent_type``: a smaller copy of a large image, else the content itself.
    ``tokens`` is its estimated cost in the window. ``turn_number`` is the turn to which the
    attachment belongs, and null until it is sent.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="attachments")
    turn_number = models.BigIntegerField(null=True)
    name = models.CharField(max_length=255)
    kind = models.CharField(max_length=12)
    media_type = models.CharField(max_length=127)
    digest = models.CharField(max_length=64)
    size = models.BigIntegerField()
    width = models.IntegerField(null=True)
    height = models.IntegerField(null=True)
    pages = models.IntegerField(null=True)
    tokens = models.IntegerField(default=0, db_default=0)
    sent = models.CharField(max_length=64, default="", db_default="")
    sent_type = models.CharField(max_length=127, default="", db_default="")
    thumbnail = models.CharField(max_length=64, default="", db_default="")
    added_by = actor_field()
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("id",)
        constraints = (
            CheckConstraint(
                condition=Q(kind__in=("image", "document", "text")), name="attachment_kind_known"
            ),
        )
        indexes = (
            Index(fields=("session", "turn_number", "id"), name="attachment_of_turn"),
            Index(
                fields=("created_at",),
                condition=Q(turn_number__isnull=True),
                name="attachment_unsent",
            ),
        )

    def __str__(self) -> str:
        return f"attachment {self.uuid}"
