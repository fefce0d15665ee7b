"""What stands in the window besides turns: loaded skills, and summaries of turns."""

import uuid

from django.db import models
from django.db.models import CheckConstraint, Q, UniqueConstraint

from conversations.domain.windows import COMPACTION_REASONS

from .fields import actor_field
from .sessions import Session


class SessionSkill(models.Model):
    """A skill as it was when the model loaded it. ``content`` is the file's text,
    ``digest`` its SHA-256, ``path`` the file within the workspace's folder and
    ``turn_number`` the turn that holds the call, or 1 in a fork without that turn."""

    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="skills")
    name = models.CharField(max_length=120)
    path = models.CharField(max_length=1024, default="", db_default="")
    content = models.TextField()
    digest = models.CharField(max_length=64)
    turn_number = models.BigIntegerField()
    loaded_at = models.DateTimeField()
    metadata = models.TextField(default="{}", db_default="{}")

    class Meta:
        ordering = ("id",)
        constraints = (
            CheckConstraint(condition=Q(turn_number__gte=1), name="skill_turn_positive"),
        )

    def __str__(self) -> str:
        return f"skill {self.name} at turn {self.turn_number}"


class Compaction(models.Model):
    """A marker: in the window a summary stands for the active turns up to ``to_turn``, of which it
    was written from those from ``from_turn`` on. ``before`` and ``after`` are turns and estimated
    tokens of the history without it and with it; ``floor_before`` is where the window started.
    Undoing it is noted beside it; nothing else of it ever changes."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="compactions")
    from_turn = models.BigIntegerField()
    to_turn = models.BigIntegerField()
    floor_before = models.BigIntegerField(default=1, db_default=1)
    summary = models.TextField()
    model = models.CharField(max_length=120)
    reason = models.CharField(max_length=12)
    before_turns = models.BigIntegerField()
    after_turns = models.BigIntegerField()
    before_tokens = models.BigIntegerField()
    after_tokens = models.BigIntegerField()
    actor = actor_field()
    created_at = models.DateTimeField()
    metadata = models.TextField(default="{}", db_default="{}")
    undone_at = models.DateTimeField(null=True, blank=True)
    undone_by = actor_field(blank=True)

    class Meta:
        ordering = ("id",)
        constraints = (
            CheckConstraint(
                condition=Q(from_turn__gte=1, to_turn__gte=models.F("from_turn")),
                name="compaction_turns_in_order",
            ),
            CheckConstraint(
                condition=Q(reason__in=COMPACTION_REASONS), name="compaction_reason_known"
            ),
        )

    def __str__(self) -> str:
        return f"summary of turns {self.from_turn}–{self.to_turn}"


class StateCheckpoint(models.Model):
    """The state after turn ``turn`` and the edit that is event ``seq`` (0: none yet),
    when the session had ``rewinds`` rewinds. One every fifty turns, one after each
    rewind and one after each edit, so that no reading of an earlier state starts at the
    beginning. Derived: ``rebuild_state`` makes it anew."""

    session = models.ForeignKey(
        Session, on_delete=models.CASCADE, related_name="state_checkpoints", db_index=False
    )
    turn = models.BigIntegerField()
    seq = models.BigIntegerField()
    rewinds = models.BigIntegerField()
    state = models.TextField()

    class Meta:
        ordering = ("session", "turn", "seq", "rewinds")
        constraints = (
            UniqueConstraint(
                fields=("session", "turn", "seq", "rewinds"), name="state_checkpoint_unique"
            ),
        )

    def __str__(self) -> str:
        return f"state after turn {self.turn}"
