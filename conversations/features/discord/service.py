"""Places of another service: what was taken there, and what was posted as an answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone

from conversations.archive.messages import last_user_turn
from conversations.domain.text import dump_json, load_json, one_line, storable
from conversations.models import Run, Workspace

from .models import ChannelPlace, ChannelReply
from .options import Spot

AUTHOR_CHARS = 100

LOOKED_THROUGH = 50
"""Newest replies among which the one that a message shows is sought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceMark:
    """How far a place was read."""

    key: str
    spot: Spot
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMessageSource:
    """The message that was taken: where it is, and who wrote it."""

    address: int
    message: int
    author: int = 0
    author_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRecord:
    """A run whose answer is shown in a place, and the messages that show it."""

    pk: int
    run_pk: int
    run: UUID
    session_pk: int
    session: UUID
    address: int
    source: int
    posted: list[int]
    is_done: bool


def list_places(workspace: Workspace) -> list[PlaceMark]:
    """All places of a workspace that are known."""
    rows = ChannelPlace.objects.filter(workspace=workspace).order_by("pk")
    return [
        PlaceMark(key=key, spot=Spot(channel=address, guild=guild, parent=parent), taken=taken)
        for key, address, guild, parent, taken in rows.values_list(
            "key", "address", "guild", "parent", "taken"
        )
    ]


def mark_place(workspace_pk: int, mark: PlaceMark) -> None:
    """Remember that the place was read up to there; a mark never goes back."""
    where = {"address": mark.spot.channel, "guild": mark.spot.guild, "parent": mark.spot.parent}
    now = timezone.now()
    with transaction.atomic():
        place, is_new = ChannelPlace.objects.get_or_create(
            workspace_id=workspace_pk,
            key=mark.key,
            defaults=where | {"taken": mark.taken, "updated_at": now},
        )
        if not is_new:
            ChannelPlace.objects.filter(pk=place.pk).update(
                **where, taken=Greatest(F("taken"), mark.taken), updated_at=now
            )


def record_taken(
    run_pk: int,
    *,
    source: ChannelMessageSource,
    workspace_pk: int | None = None,
    mark: PlaceMark | None = None,
) -> ReplyRecord:
    """Remember that a message became this run, and that the place was read up to it;
    once for each run."""
    with transaction.atomic():
        run = Run.objects.select_related("session").get(pk=run_pk)
        reply, _ = ChannelReply.objects.get_or_create(
            run=run,
            defaults={
                "session": run.session,
                "address": source.address,
                "source": source.message,
                "author": source.author,
                "author_name": one_line(storable(source.author_name), limit=AUTHOR_CHARS),
                "created_at": timezone.now(),
            },
        )
        if workspace_pk is not None and mark is not None:
            mark_place(workspace_pk, mark)
    return _record(reply)


def open_replies(workspace: Workspace) -> list[ReplyRecord]:
    """Those that are not shown to their end yet, oldest first."""
    replies = ChannelReply.objects.filter(done_at=None, session__workspace=workspace)
    return [_record(reply) for reply in replies.select_related("run__session").order_by("pk")]


def _record(reply: ChannelReply) -> ReplyRecord:
    return ReplyRecord(
        pk=reply.pk,
        run_pk=reply.run_id,
        run=reply.run.uuid,
        session_pk=reply.session_id,
        session=reply.run.session.uuid,
        address=reply.address,
        source=reply.source,
        is_done=reply.done_at is not None,
        posted=_read_posted(reply),
    )


def save_posted(reply_pk: int, *, posted: Sequence[int], done: bool) -> None:
    """Remember which messages show the run; ``done``: they show it to its end."""
    ChannelReply.objects.filter(pk=reply_pk).update(
        posted=dump_json(list(posted)), done_at=timezone.now() if done else None
    )


def list_posted(address: int, *, but: int, limit: int = 50) -> set[int]:
    """Ids of messages there that show other runs, of the newest ones."""
    replies = ChannelReply.objects.filter(address=address).exclude(pk=but).order_by("-pk")
    return {number for reply in replies[:limit] for number in _read_posted(reply)}


def shows_last_message(session_pk: int, message: int) -> bool:
    """Whether this message shows the answer to the last one that a person sent."""
    replies = ChannelReply.objects.filter(session=session_pk).select_related("run")
    newest = replies.order_by("-pk")[:LOOKED_THROUGH]
    shown = next((reply for reply in newest if message in _read_posted(reply)), None)
    return shown is not None and shown.run.user_turn == last_user_turn(session_pk)


def _read_posted(reply: ChannelReply) -> list[int]:
    posted = load_json(reply.posted, default=[])
    return [int(number) for number in posted] if isinstance(posted, list) else []
