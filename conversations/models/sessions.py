"""Sessions: one conversation each, with its counters."""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import CheckConstraint, Index, Q, UniqueConstraint

from .fields import ShownField
from .workspaces import Workspace

# A condition on sessions that have turns that no reviewer has marked as reviewed.
UNREVIEWED = Q(next_turn__gt=models.F("reviewed_turn") + 1)

# A condition on sessions that have turns without a search entry.
UNINDEXED = Q(next_turn__gt=models.F("unindexed_turn"))


class Session(models.Model):
    """One conversation in a workspace.

    The row is a checkpoint derived from the archive. Its counters allocate the gapless numbers of
    turns and events, and its digests are the ends of the two hash chains. Counters and digests are
    written only together with the rows that they cover.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="sessions")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="sessions"
    )
    key = models.CharField(max_length=255, null=True, blank=True)
    channel = models.CharField(max_length=32, default="web", db_default="web")
    title = ShownField(max_length=200, blank=True, default="", db_default="")
    title_is_chosen = models.BooleanField(default=False, db_default=False)
    preview = models.CharField(max_length=200, blank=True, default="", db_default="")
    model = models.CharField(max_length=120, blank=True, default="", db_default="")
    system_prompt = models.TextField(blank=True, default="", db_default="")
    # The session's own instructions. In the system prompt they follow the workspace's.
    instructions = models.TextField(blank=True, default="", db_default="")
    state = models.TextField(default="{}", db_default="{}")
    state_turn = models.BigIntegerField(default=0, db_default=0)

    next_turn = models.BigIntegerField(default=1, db_default=1)
    next_seq = models.BigIntegerField(default=1, db_default=1)
    turn_digest = models.CharField(max_length=64)
    event_digest = models.CharField(max_length=64)
    journal_turn = models.BigIntegerField(default=0, db_default=0)
    floor_turn = models.BigIntegerField(default=1, db_default=1)
    # ``context_tokens`` are the tokens of the newest window with its answer, as reported or else as
    # estimated, and ``context_limit`` is their limit. ``token_ratio`` is the number of tokens that
    # ``token_model`` counts for one estimated token. 0 means unknown.
    context_tokens = models.BigIntegerField(default=0, db_default=0)
    context_limit = models.BigIntegerField(default=0, db_default=0)
    token_ratio = models.FloatField(default=0.0, db_default=0.0)
    token_model = models.CharField(max_length=120, blank=True, default="", db_default="")
    rewind_count = models.BigIntegerField(default=0, db_default=0)

    # The turn through which a reviewer has marked the session as reviewed.
    reviewed_turn = models.BigIntegerField(default=0, db_default=0)
    # The first turn without a search entry. The column repeats ``SearchProgress.indexed_turn`` plus
    # one, so that an index finds the sessions with such turns among any number of sessions.
    unindexed_turn = models.BigIntegerField(default=1, db_default=1)

    input_tokens = models.BigIntegerField(default=0, db_default=0)
    output_tokens = models.BigIntegerField(default=0, db_default=0)
    cached_tokens = models.BigIntegerField(default=0, db_default=0)
    cost_microusd = models.BigIntegerField(default=0, db_default=0)

    # The session and turn from which this session was forked. A session that continues an expired
    # one has a parent but no ``fork_turn``.
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="forks"
    )
    fork_turn = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField()
    last_active_at = models.DateTimeField()
    # From ``expires_at`` on, nobody can continue the session; it stays readable. At ``expired_at``
    # the server released its key. Another session can begin under the key at any time.
    expires_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True)
    former_key = models.CharField(max_length=255, null=True, blank=True)
    archived_at = models.DateTimeField(null=True, blank=True)
    pinned_at = models.DateTimeField(null=True, blank=True)
    metadata = models.TextField(default="{}", db_default="{}")

    class Meta:
        ordering = ("-last_active_at", "-id")
        permissions = (("review_transcripts", "Can read and review other people's transcripts"),)
        constraints = (
            UniqueConstraint(
                fields=("workspace", "key"),
                condition=Q(key__isnull=False),
                name="session_key_unique",
            ),
            CheckConstraint(
                condition=Q(next_turn__gte=1, next_seq__gte=1), name="session_counters"
            ),
        )
        indexes = (
            Index(fields=("workspace", "-last_active_at", "-id"), name="session_by_activity"),
            # A list begins with pinned sessions. Without this index, finding them reads all rows.
            Index(
                fields=("workspace", "-last_active_at", "-id"),
                condition=Q(pinned_at__isnull=False),
                name="session_pinned",
            ),
            Index(
                fields=("workspace", "channel", "-last_active_at", "-id"), name="session_of_channel"
            ),
            # The choices of a list's filters are read from this index alone.
            Index(
                fields=("workspace", "archived_at", "model", "owner", "channel"),
                name="session_choices",
            ),
            Index(fields=("-last_active_at", "-id"), name="session_by_time"),
            Index(
                fields=("-last_active_at", "-id"), condition=UNREVIEWED, name="session_unreviewed"
            ),
            Index(
                fields=("expires_at",),
                condition=Q(expires_at__isnull=False, expired_at=None),
                name="session_to_expire",
            ),
            Index(
                fields=("workspace", "former_key", "-expired_at"),
                condition=Q(former_key__isnull=False),
                name="session_by_former_key",
            ),
            Index(fields=("id",), condition=UNINDEXED, name="session_unindexed"),
        )

    def __str__(self) -> str:
        return self.title or str(self.uuid)

    @property
    def turn_count(self) -> int:
        return self.next_turn - 1

    @property
    def last_seq(self) -> int:
        return self.next_seq - 1

    @property
    def chosen_model(self) -> str:
        """The session's model, else the workspace's, else empty for the installation's default."""
        return self.model or self.workspace.default_model


class ReadingPosition(models.Model):
    """The last turn that a session had when a person last had it open."""

    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    turn = models.BigIntegerField()

    class Meta:
        constraints = (
            UniqueConstraint(fields=("user", "session"), name="reading_position_unique"),
            CheckConstraint(condition=Q(turn__gte=0), name="reading_position_turn"),
        )

    def __str__(self) -> str:
        return f"read through turn {self.turn}"
