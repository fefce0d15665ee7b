"""The search index: what is searched for each turn, and how far it reaches.

Everything here is made from the turns and can be made again. ``search_schema``
adds what the databases have of their own for full-text search.
"""

from django.db import models

from .sessions import Session

TURN_BITS = 24
"""A session has fewer than 2**24 turns, so that an entry's id names both, and one
session's entries are one range of ids."""


def entry_id(session_pk: int, number: int) -> int:
    return session_pk << TURN_BITS | number


class SearchEntry(models.Model):
    """The words of one turn, normalised, separated by spaces: ``said`` by people and
    the model; of ``tools`` (names, input, output); those in ``paths``, which are
    among the others too; and ``marks`` for the turn's role and tools. ``length``
    counts the words of the first two."""

    id = models.BigIntegerField(primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="+", db_index=False)
    length = models.IntegerField()
    created_at = models.DateTimeField()
    said = models.TextField()
    tools = models.TextField()
    paths = models.TextField()
    marks = models.TextField()

    class Meta:
        ordering = ("id",)
        verbose_name_plural = "search entries"

    def __str__(self) -> str:
        return f"turn {self.id & (1 << TURN_BITS) - 1} of session {self.session_id}"


class SearchProgress(models.Model):
    """The turns of a session up to ``indexed_turn`` have entries, made by the rules of
    ``version``. ``total_length`` is the sum of their lengths."""

    session = models.OneToOneField(
        Session, on_delete=models.PROTECT, primary_key=True, related_name="search_progress"
    )
    indexed_turn = models.BigIntegerField(default=0, db_default=0)
    total_length = models.BigIntegerField(default=0, db_default=0)
    version = models.IntegerField(db_index=True)

    class Meta:
        ordering = ("session",)
        verbose_name_plural = "search progress"

    def __str__(self) -> str:
        return f"indexed to turn {self.indexed_turn}"
