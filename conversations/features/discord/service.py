"""Storing how far each place was read, and which messages show each run."""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Greatest
from django.utils import timezone

from conversations.archive.messages import last_user_turn
from conversations.domain.runs import ACTIVE_STATES, QUEUED
from conversations.domain.text import dump_json, one_line, storable
from conversations.models import Run, Workspace

from .models import ChannelPlace, ChannelReply

MAX_AUTHOR_CHARS = 100
MAX_SEARCHED_REPLIES = 50  # The newest replies, in which a message is looked up.


def list_places(workspace: Workspace) -> list[ChannelPlace]:
    return list(ChannelPlace.objects.filter(workspace=workspace).order_by("pk"))


def mark_place(mark: ChannelPlace) -> None:
    """Save that the place was read up to ``mark.taken``. A stored mark never moves back."""
    address_columns = {"address": mark.address, "guild": mark.guild, "parent": mark.parent}
    now = timezone.now()
    with transaction.atomic():
        place, is_new = ChannelPlace.objects.get_or_create(
            workspace_id=mark.workspace_id,
            key=mark.key,
            defaults=address_columns | {"taken": mark.taken, "updated_at": now},
        )
        if not is_new:
            ChannelPlace.objects.filter(pk=place.pk).update(
                **address_columns, taken=Greatest(F("taken"), mark.taken), updated_at=now
            )


def record_taken(
    run_pk: int, *, author_name: str, mark: ChannelPlace | None = None, **source: Any
) -> ChannelReply:
    """Save the reply of a run, unless it is saved already, and the place's ``mark``.

    ``source`` are the columns ``address``, ``source`` and ``author`` of the reply."""
    name = one_line(storable(author_name), limit=MAX_AUTHOR_CHARS)
    with transaction.atomic():
        run = Run.objects.get(pk=run_pk)
        reply, _ = ChannelReply.objects.get_or_create(
            run=run,
            defaults=source
            | {"session_id": run.session_id, "author_name": name, "created_at": timezone.now()},
        )
        if mark is not None:
            mark_place(mark)
        return _replies().get(pk=reply.pk)


def open_replies(workspace: Workspace) -> list[ChannelReply]:
    """Return the workspace's replies that are not completely shown, oldest first."""
    return list(_replies().filter(done_at=None, session__workspace=workspace).order_by("pk"))


def _replies() -> QuerySet[ChannelReply]:
    # The rows are used on the event loop, where related rows cannot be loaded.
    return ChannelReply.objects.select_related("run", "session")


def save_posted(reply_pk: int, *, posted: Sequence[int], done: bool) -> None:
    """Save which messages show the run. ``done`` says that they show all of it."""
    ChannelReply.objects.filter(pk=reply_pk).update(
        posted=dump_json(list(posted)), done_at=timezone.now() if done else None
    )


def list_posted(address: int, *, but: int) -> set[int]:
    """Return the ids of the messages that show the newest runs at ``address``.

    The messages of the reply with the primary key ``but`` are left out."""
    replies = ChannelReply.objects.filter(address=address).exclude(pk=but).order_by("-pk")
    return {number for reply in replies[:MAX_SEARCHED_REPLIES] for number in reply.posted_ids}


def is_answering(session_pk: int) -> bool:
    """Return whether the session has a running or waiting run, also of another person."""
    return Run.objects.filter(session=session_pk, state__in=(QUEUED, *ACTIVE_STATES)).exists()


def shows_last_message(session_pk: int, message: int) -> bool:
    """Return whether this message shows the answer to the session's last user message."""
    newest = _replies().filter(session=session_pk).order_by("-pk")[:MAX_SEARCHED_REPLIES]
    shown_reply = next((reply for reply in newest if message in reply.posted_ids), None)
    return shown_reply is not None and shown_reply.run.user_turn == last_user_turn(session_pk)
