"""Snapshots of the session state, so that no reading of an earlier one starts at the
beginning."""

from django.db import models

from .sessions import Session


class StateCheckpoint(models.Model):
    """The state after turn ``turn`` and the edit that is event ``seq`` (0: none yet),
    when the session had ``rewinds`` rewinds. One every fifty turns, one after each
    rewind and one after each edit. Derived: ``rebuild_state`` makes it anew."""

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
            models.UniqueConstraint(
                fields=("session", "turn", "seq", "rewinds"), name="state_checkpoint_unique"
            ),
        )

    def __str__(self) -> str:
        return f"state after turn {self.turn}"
