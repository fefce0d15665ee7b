"""Models of the window's contents besides turns: skills, summaries and session states."""

import uuid

from django.db import models
from django.db.models import CheckConstraint, Q, UniqueConstraint

from conversations.domain.windows import COMPACTION_REASONS

from .fields import actor_field
from .sessions import Session


class SessionSkill(models.Model):
    """A skill as it was when the model loaded it.

    ``content`` is the text of the skill's file, ``digest`` is its SHA-256 digest, and ``path`` is
    its path within the workspace's folder. ``turn_number`` is the turn that holds the call, or 1 in
    a fork without that turn.
    """

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
    """A marker that in the window a summary stands for the active turns up to ``to_turn``.

    The summary was written from the active turns from ``from_turn`` to ``to_turn``. The columns
    ``before_…`` and ``after_…`` are the turns and estimated tokens of the history without and with
    the summary. ``floor_before`` is the turn at which the window started. ``undone_at`` and
    ``undone_by`` are the only columns that ever change.
    """

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
    """The session state after the turn ``turn`` and the edit that is the event ``seq``.

    ``seq`` is 0 if there was no edit yet. ``rewinds`` is the session's number of rewinds at that
    time. A checkpoint is made every fifty turns, after each rewind and after each edit, so that an
    earlier state never has to be computed from the first turn. Checkpoints are derived data, which
    ``rebuild_state`` creates again.
    """

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
