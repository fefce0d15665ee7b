"""Models of workspaces, their members and groups, and workspace memory."""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import CheckConstraint, Q, UniqueConstraint

from conversations.domain.people import MEMBER, OWNER, ROLES, VIEWER
from conversations.domain.session_state import (
    FOR_PERSON,
    FOR_WORKSPACE,
    MAX_ITEM_CHARS,
    PREFERENCE,
    RULE,
)
from conversations.domain.windows import STRATEGIES

from .fields import FolderField, ShownField, actor_field


class Workspace(models.Model):
    """A folder on the server with a name, instructions, a default model, a tool policy and members.

    ``reads_instruction_files`` and the rules of the window are empty or null where the setting of
    the installation applies. A new session expires after ``expire_after_hours``. A session that is
    idle for ``retention_days`` is purged after the grace period. Null means never.
    ``members_may_purge`` lets members order a purge of their own sessions. ``channel_recall`` says
    what sessions of channels and programs can quote (``archive.rights``).
    """

    class ToolPolicy(models.TextChoices):
        READ_ONLY = "read_only", "read only"
        ASK = "ask", "ask"
        AUTO = "auto", "automatic"

    class ChannelRecall(models.TextChoices):
        SESSION = "session", "themselves only"
        WORKSPACE = "workspace", "the whole workspace"

    name = ShownField(max_length=120)
    slug = models.SlugField(max_length=60, unique=True)
    root = FolderField(max_length=1024)
    instructions = models.TextField(blank=True, default="")
    reads_instruction_files = models.BooleanField(null=True, blank=True)
    default_model = models.CharField(max_length=120, blank=True, default="")
    tool_policy = models.CharField(
        max_length=12, choices=ToolPolicy, default=ToolPolicy.ASK, db_default=ToolPolicy.ASK
    )
    allows_network = models.BooleanField(default=False, db_default=False)
    channel_recall = models.CharField(
        max_length=12,
        choices=ChannelRecall,
        default=ChannelRecall.SESSION,
        db_default=ChannelRecall.SESSION,
    )
    window_strategy = models.CharField(max_length=16, blank=True, default="", db_default="")
    keep_recent = models.PositiveSmallIntegerField(null=True, blank=True)
    high_water = models.PositiveSmallIntegerField(null=True, blank=True)
    low_water = models.PositiveSmallIntegerField(null=True, blank=True)
    expire_after_hours = models.PositiveIntegerField(null=True, blank=True)
    retention_days = models.PositiveIntegerField(null=True, blank=True)
    members_may_purge = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField()
    members = models.ManyToManyField(
        settings.AUTH_USER_MODEL, through="Membership", related_name="workspaces"
    )

    class Meta:
        ordering = ("name", "id")
        constraints = (
            CheckConstraint(
                condition=Q(tool_policy__in=("read_only", "ask", "auto")),
                name="workspace_tool_policy_known",
            ),
            CheckConstraint(
                condition=Q(window_strategy__in=("", *STRATEGIES)), name="workspace_strategy_known"
            ),
            CheckConstraint(
                condition=Q(channel_recall__in=("session", "workspace")),
                name="workspace_channel_recall_known",
            ),
        )

    def __str__(self) -> str:
        return str(self.name)


class Membership(models.Model):
    """A person's role in a workspace.

    A viewer reads, a member writes, and an owner also changes the workspace and its members.
    """

    class Role(models.TextChoices):
        VIEWER = VIEWER, "viewer"
        MEMBER = MEMBER, "member"
        OWNER = OWNER, "owner"

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships"
    )
    role = models.CharField(max_length=8, choices=Role, default=Role.MEMBER)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("id",)
        constraints = (
            UniqueConstraint(fields=("workspace", "user"), name="membership_unique"),
            CheckConstraint(
                condition=Q(role__in=("viewer", "member", "owner")), name="membership_role_known"
            ),
        )

    def __str__(self) -> str:
        return f"{self.user} in {self.workspace} ({self.role})"


class WorkspaceGroup(models.Model):
    """A group whose people are all in the workspace, with one role.

    A person who is in the workspace in several ways has the strongest of the roles.
    """

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="groups")
    group = models.ForeignKey("auth.Group", on_delete=models.CASCADE, related_name="workspaces")
    role = models.CharField(max_length=8, choices=Membership.Role, default=Membership.Role.MEMBER)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("id",)
        constraints = (
            UniqueConstraint(fields=("workspace", "group"), name="workspace_group_unique"),
            CheckConstraint(condition=Q(role__in=ROLES), name="workspace_group_role_known"),
        )

    def __str__(self) -> str:
        return f"{self.group} in {self.workspace} ({self.role})"


class MemoryEntry(models.Model):
    """A rule or a preference in workspace memory.

    The entry stands in the state of every session of the workspace. With an ``owner``, it stands
    only in sessions that this person owns. ``session``, ``turn`` and ``item`` name the place where
    it was said. They are null or empty if it was written by hand, or if the session was purged. An
    entry with ``is_declined`` was offered to its owner, who declined it. Such an entry stands in no
    state and is not offered again.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="memory", db_index=False
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+"
    )
    kind = models.CharField(max_length=10)
    text = models.CharField(max_length=MAX_ITEM_CHARS)
    session = models.ForeignKey(
        "conversations.Session", null=True, on_delete=models.PROTECT, related_name="+"
    )
    turn = models.BigIntegerField(null=True)
    item = models.CharField(max_length=64, default="", db_default="")
    is_declined = models.BooleanField(default=False, db_default=False)
    created_by = actor_field()
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("id",)
        verbose_name_plural = "memory entries"
        constraints = (
            CheckConstraint(condition=Q(kind__in=(RULE, PREFERENCE)), name="memory_kind_known"),
            CheckConstraint(
                condition=Q(is_declined=False) | Q(owner__isnull=False, session__isnull=False),
                name="memory_declined_by_somebody",
            ),
        )
        indexes = (models.Index(fields=("workspace", "owner", "id"), name="memory_of_workspace"),)

    def __str__(self) -> str:
        return f"memory entry {self.uuid}"

    @property
    def scope(self) -> str:
        return FOR_WORKSPACE if self.owner_id is None else FOR_PERSON
