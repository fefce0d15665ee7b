"""Models of reviews: notes, flags, and marks how far a session is reviewed.

Their rows are never rewritten: a note is withdrawn, a flag is resolved, and a mark is followed by
another one. A purge of the session removes all of them.
"""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import CheckConstraint, Index, Q

from conversations.domain.messages import say

from .fields import actor_field
from .sessions import Session

# Label of a flag → its title on a page.
_KINDS = (say("safety"), say("quality"), say("policy"), say("privacy"), say("other"))
LABELS = {name: name.title() for name in _KINDS}

MAX_TEXT_CHARS = 4000  # Of a note, and of the text of a flag.


class ReviewNote(models.Model):
    """A reviewer's remark on a turn, or on the whole session if ``turn`` is null."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="review_notes", db_index=False
    )
    turn = models.BigIntegerField(null=True)
    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    text = models.TextField()
    created_at = models.DateTimeField()
    withdrawn_at = models.DateTimeField(null=True)
    withdrawn_by = actor_field()

    class Meta:
        ordering = ("id",)
        constraints = (
            CheckConstraint(condition=Q(turn=None) | Q(turn__gte=1), name="review_note_turn"),
        )
        indexes = (Index(fields=("session", "turn", "id"), name="review_note_of_session"),)

    def __str__(self) -> str:
        return f"note {self.uuid}"


class ReviewFlag(models.Model):
    """A request to do something about a turn, or about the whole session if ``turn`` is null.

    A flag is open until a person marks it as resolved. ``label`` is one of ``LABELS``.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="review_flags", db_index=False
    )
    turn = models.BigIntegerField(null=True)
    label = models.CharField(max_length=12)
    text = models.TextField(default="", db_default="")
    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)
    resolved_by = actor_field()

    class Meta:
        ordering = ("id",)
        constraints = (
            CheckConstraint(condition=Q(turn=None) | Q(turn__gte=1), name="review_flag_turn"),
            CheckConstraint(condition=Q(label__in=LABELS), name="review_flag_label_known"),
        )
        indexes = (
            Index(fields=("session", "turn", "id"), name="review_flag_of_session"),
            Index(fields=("session",), condition=Q(resolved_at=None), name="review_flag_open"),
        )

    def __str__(self) -> str:
        return f"{self.label} flag {self.uuid}"


class ReviewMark(models.Model):
    """A mark that the session is reviewed through the turn ``through_turn``.

    0 means that it is no longer reviewed at all. The newest mark of a session counts; the session's
    ``reviewed_turn`` repeats its value.
    """

    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="review_marks", db_index=False
    )
    through_turn = models.BigIntegerField()
    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("id",)
        constraints = (CheckConstraint(condition=Q(through_turn__gte=0), name="review_mark_turn"),)
        indexes = (Index(fields=("session", "-id"), name="review_mark_of_session"),)

    def __str__(self) -> str:
        return f"reviewed through turn {self.through_turn}"
