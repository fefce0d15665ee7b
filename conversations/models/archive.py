"""The append-only tables: turns, events, and the markers that reinterpret them.

The database itself refuses to change or remove archived rows (``guards``). JSON is stored as text,
so that any content survives byte for byte.
"""

from django.db import models
from django.db.models import CheckConstraint, Index, Q, UniqueConstraint

from conversations.domain.turns import ROLES, SYSTEM

from .fields import actor_field
from .sessions import Session


class Turn(models.Model):
    """One verbatim message.

    ``blocks`` are the provider's content blocks as received. ``digest`` links the turn to the turn
    before. ``html`` caches the rows that are synthesised from the turn if the journal does not
    cover it.
    """

    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="turns", db_index=False
    )
    number = models.BigIntegerField()
    role = models.CharField(max_length=9)
    content = models.TextField()
    blocks = models.TextField(null=True)
    tool_calls = models.TextField(null=True)
    tool_call_id = models.CharField(max_length=255, null=True)
    tool_name = models.CharField(max_length=255, null=True)
    token_count = models.BigIntegerField(default=0, db_default=0)
    stop_reason = models.CharField(max_length=64, default="", db_default="")
    complete = models.BooleanField(default=True, db_default=True)
    metadata = models.TextField(default="{}", db_default="{}")
    created_at = models.DateTimeField()
    digest = models.CharField(max_length=64)
    html = models.TextField(default="", db_default="")
    render_version = models.IntegerField(default=0, db_default=0)

    class Meta:
        ordering = ("session", "number")
        constraints = (
            UniqueConstraint(fields=("session", "number"), name="turn_number_unique"),
            CheckConstraint(condition=Q(number__gte=1), name="turn_number_positive"),
            CheckConstraint(condition=Q(role__in=ROLES), name="turn_role_known"),
        )
        indexes = (
            Index(
                fields=("session", "tool_name", "number"),
                condition=Q(tool_name__isnull=False),
                name="turn_by_tool",
            ),
            Index(fields=("session", "number"), condition=Q(role=SYSTEM), name="turn_of_system"),
        )

    def __str__(self) -> str:
        return f"turn {self.number} ({self.role})"


class ChatEvent(models.Model):
    """One row of what the person saw.

    ``html`` caches its rendering by the version ``render_version`` of the renderer.
    """

    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="events", db_index=False
    )
    seq = models.BigIntegerField()
    event_type = models.CharField(max_length=32)
    payload = models.TextField()
    turn_number = models.BigIntegerField(null=True)
    created_at = models.DateTimeField()
    digest = models.CharField(max_length=64)
    html = models.TextField(default="", db_default="")
    render_version = models.IntegerField(default=0, db_default=0)

    class Meta:
        ordering = ("session", "seq")
        constraints = (
            UniqueConstraint(fields=("session", "seq"), name="event_seq_unique"),
            CheckConstraint(condition=Q(seq__gte=1), name="event_seq_positive"),
        )
        indexes = (Index(fields=("session", "turn_number", "seq"), name="event_by_turn"),)

    def __str__(self) -> str:
        return f"event {self.seq} ({self.event_type})"


class Rewind(models.Model):
    """A marker that these turns and rows are no longer on the active path.

    The range of turns is empty if ``to_turn`` is below ``from_turn``; so is the range of rows if
    ``to_seq`` is below ``from_seq``. With ``back_to``, the rest of the path is what it was when the
    session had that many markers (``domain.active_path``).
    """

    class Reason(models.TextChoices):
        EDIT = "edit", "edited"
        REGENERATE = "regenerate", "regenerated"
        RESET = "reset", "reset"
        UNDO = "undo", "undone"
        SWITCH = "switch", "switched"

    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="rewinds")
    from_turn = models.BigIntegerField()
    to_turn = models.BigIntegerField()
    from_seq = models.BigIntegerField()
    to_seq = models.BigIntegerField()
    back_to = models.BigIntegerField(null=True)
    reason = models.CharField(max_length=16, choices=Reason)
    actor = actor_field()
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("id",)
        indexes = (Index(fields=("session", "to_seq"), name="rewind_by_seq"),)

    def __str__(self) -> str:
        return f"rewind of turns {self.from_turn}–{self.to_turn}"


class JournalGap(models.Model):
    """A range of turns that the journal does not cover although it continues after them.

    The rows of these turns are synthesised and stand after the event ``after_seq``.
    """

    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="journal_gaps")
    from_turn = models.BigIntegerField()
    to_turn = models.BigIntegerField()
    after_seq = models.BigIntegerField()

    class Meta:
        ordering = ("session", "from_turn")
        constraints = (
            UniqueConstraint(fields=("session", "from_turn"), name="journal_gap_unique"),
        )

    def __str__(self) -> str:
        return f"turns {self.from_turn}–{self.to_turn} without events"


class PromptText(models.Model):
    """A text in the input of model calls that is not a turn.

    It is a system prompt, or the JSON of the tools on offer. Each text is stored once. A manifest
    names it by its SHA-256 digest.
    """

    digest = models.CharField(max_length=64, unique=True)
    text = models.TextField()

    def __str__(self) -> str:
        return f"prompt text {self.digest[:12]}"


class PurgePermit(models.Model):
    """A permit to remove the rows of a session, as long as the permit exists."""

    # The purge creates and removes the permit in one transaction, so no other transaction sees it.
    session_pk = models.BigIntegerField(unique=True)
    reason = models.TextField()
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"permit to purge session {self.session_pk}"
