"""Random sessions for review, the same ones again for the same seed."""

from datetime import datetime
from hashlib import sha256

from conversations.models import Turn

from .queue import QueueFilters


def draw_sample(filters: QueueFilters, *, seed: str, count: int) -> list[int]:
    """Keys of up to ``count`` sessions in which something was said from ``since`` until
    ``until`` of the filters.

    Each session has a place by lot of its own, made from the seed and its uuid: what is
    said later, and by whom, changes nothing about the sample of a time that is over.
    """
    since, until = filters.since, filters.until
    assert since is not None
    assert until is not None
    places = filters.sessions.order_by().values_list("pk", "uuid")
    drawn: list[int] = []
    for pk, _ in sorted(places, key=lambda place: sha256(f"{seed}:{place[1]}".encode()).digest()):
        if len(drawn) == count:
            break
        if _has_turn(pk, since, until):
            drawn.append(pk)
    return drawn


def _has_turn(session_pk: int, since: datetime, until: datetime) -> bool:
    """The newest first: what is looked at is mostly said of late."""
    said = Turn.objects.filter(session=session_pk, created_at__gte=since, created_at__lt=until)
    return bool(said.order_by("-number").values_list("pk")[:1])
