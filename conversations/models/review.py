"""What reviewers leave behind: notes, flags, and how far a session is reviewed.

Nothing of it is ever rewritten: a note is withdrawn, a flag resolved, and a mark
followed by another one. All of it goes with the session when that is purged.
"""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import CheckConstraint, Index, Q

from conversations.domain.messages import say

from .fields import actor_field
from .sessions import Session

# What a flag is about → how it is said on a page.
_KINDS = (say("safety"), say("quality"), say("policy"), say("privacy"), say("other"))
LABELS = {name: name.title() for name in _KINDS}

MAX_TEXT_CHARS = 4000  # Of a note, and of what is said with a flag.


class ReviewNote(models.Model):
    """What a reviewer remarks on a turn, or (null) on the session as a whole."""

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
    """Something is to be done about a turn, or (null) about the session, until somebody
    says that it is resolved. ``label`` is one of ``models.review``."""

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
    """Somebody said how far the session is reviewed: through ``through_turn``; 0: not at
    all any more. The newest one counts; the session's ``reviewed_turn`` repeats it."""

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
