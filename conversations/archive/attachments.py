"""Attachments: files that a person adds to a message or that a tool reads.

A file is examined and its content is stored as a blob before the attachment's row is created. An
attachment that is not sent yet is visible only to its uploader. A sent attachment belongs to its
turn for good.
"""

import base64
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from conversations.domain.attachments import (
    HIDDEN,
    IMAGE,
    TEXT,
    TEXT_TYPE,
    Block,
    clean_name,
    is_reference,
    kind_of,
)
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.messages import say
from conversations.domain.runs import QUEUED
from conversations.domain.text import load_json
from conversations.models import Attachment, Run

from .blobs import DIGEST, put_blob, read_blob
from .file_types import FileType, decode_text, examine
from .storage import require_space

MAX_UNSENT_AGE = timedelta(days=1)  # The blob is removed later, together with other unused blobs.

MAX_UNSENT_FILES = 100  # Per person and session


def facts_of(content: FileType, *, name: str, size: int) -> dict[str, Any]:
    """Return the columns of an attachment that describe its content."""
    columns = ("kind", "media_type", "width", "height", "pages", "tokens")
    facts = {column: getattr(content, column) for column in columns}
    sent_type = content.sent_type or content.media_type
    return {"name": name, "size": size, "sent_type": sent_type, **facts}


def save_attachment(
    session_pk: int,
    *,
    data: bytes,
    name: str,
    user_pk: int | None,
    turn: int | None = None,
    content: FileType | None = None,
) -> Attachment:
    """Store a file. The file is on disk when this function returns.

    ``content`` is the result of :func:`examine`. Examining takes long, so callers on the writer's
    thread must pass it. Raise Rejected if the file cannot be attached.
    """
    name = clean_name(name)
    content = content or examine(data, name)
    digest = put_blob(data)
    return Attachment.objects.create(
        session_id=session_pk,
        turn_number=turn,
        digest=digest,
        sent=digest if content.sent is None else put_blob(content.sent),
        **facts_of(content, name=name, size=len(data)),
        thumbnail=put_blob(content.thumbnail) if content.thumbnail else "",
        added_by_id=user_pk,
        created_at=timezone.now(),
    )


def upload_attachment(session_pk: int, *, data: bytes, name: str, user_pk: int) -> Attachment:
    """Store a file that a person is about to send.

    Raise Conflict if the person has too many unsent files, StorageFull if disk space is short, and
    the errors of :func:`save_attachment`.
    """
    require_space(say("Files"))
    remove_unsent()
    waiting = Attachment.objects.filter(
        session=session_pk, turn_number=None, added_by=user_pk
    ).count()
    if waiting >= MAX_UNSENT_FILES:
        raise Conflict(
            "%(waiting)s files are already waiting to be sent. Remove some first.",
            waiting=waiting,
            code="too_many_attachments",
        )
    return save_attachment(session_pk, data=data, name=name, user_pk=user_pk)


def attachment_block(attachment: Attachment) -> dict[str, Any]:
    """Return the content block by which a turn refers to it (see ``domain.attachments``)."""
    block: dict[str, Any] = {
        "type": "image" if attachment.kind == IMAGE else "document",
        "source": {
            "type": "attachment",
            "digest": attachment.sent,
            "media_type": attachment.sent_type,
            "tokens": attachment.tokens,
        },
        "title": attachment.name,
        "attachment": str(attachment.uuid),
        "size": attachment.size,
    }
    if attachment.sent_type != attachment.media_type:
        block["media_type"] = attachment.media_type
    shape = {"width": attachment.width, "height": attachment.height, "pages": attachment.pages}
    return block | {name: value for name, value in shape.items() if value is not None}


def get_attachment(session_pk: int, uuid: UUID, *, user_pk: int | None) -> Attachment:
    """Return a file of the session.

    Raise NotFound if the file does not exist, or if it is not sent yet and was added by another
    person.
    """
    attachment = Attachment.objects.filter(session=session_pk, uuid=uuid).first()
    if attachment is None or (attachment.turn_number is None and attachment.added_by_id != user_pk):
        raise NotFound(HIDDEN)
    return attachment


def remove_attachment(session_pk: int, uuid: UUID, *, user_pk: int) -> None:
    """Remove a file that is not sent. Raise NotFound, or Conflict if it belongs to a message."""
    attachment = get_attachment(session_pk, uuid, user_pk=user_pk)
    if attachment.turn_number is not None or str(uuid) in _queued_uuids([session_pk]):
        raise Conflict("This file is already part of a message.", code="attachment_sent")
    attachment.delete()


def check_attachments(session_pk: int, uuids: Sequence[str], *, user_pk: int | None) -> None:
    """Raise Rejected unless the person can send all of these files with one message."""
    if len(uuids) > settings.LOOM.max_attachments:
        raise Rejected(
            "A message can have at most %(limit)s attached files.",
            limit=settings.LOOM.max_attachments,
            code="too_many_attachments",
        )
    attachments = Attachment.objects.filter(session=session_pk, uuid__in=uuids).order_by("pk")
    usable = {
        str(uuid)
        for uuid, turn, added_by in attachments.values_list("uuid", "turn_number", "added_by")
        if turn is not None or added_by == user_pk
    }
    if len(usable) < len(set(uuids)):
        raise Rejected(
            "A file of this message no longer exists. Attach it again.",
            code="attachment_unknown",
        )


def recorded_digests(session_pk: int, digests: Collection[str]) -> set[str]:
    """Return those of the digests that are recorded for attachments of the session.

    A turn can contain any digest, and knowing a digest must not give access to its content.
    """
    valid = [digest for digest in digests if DIGEST.fullmatch(digest)]
    attachments = Attachment.objects.filter(session=session_pk).order_by()
    attachments = attachments.filter(Q(sent__in=valid) | Q(digest__in=valid))
    return {digest for pair in attachments.values_list("sent", "digest") for digest in pair}


def list_attachments(session_pk: int, uuids: Sequence[str]) -> list[Attachment]:
    """Return these files of the session in the given order, without duplicates or unknown files."""
    attachments = Attachment.objects.filter(session=session_pk, uuid__in=uuids).order_by("pk")
    by_uuid = {str(attachment.uuid): attachment for attachment in attachments}
    return [by_uuid[uuid] for uuid in dict.fromkeys(uuids) if uuid in by_uuid]


def record_sent(attachments: Sequence[Attachment], *, turn: int) -> None:
    """Assign the attachments to the turn, except those that already belong to a turn."""
    pks = [attachment.pk for attachment in attachments]
    Attachment.objects.filter(pk__in=pks, turn_number=None).update(turn_number=turn)


def remove_unsent() -> int:
    """Delete attachments that were not sent within a day, and return how many were deleted."""
    old = Attachment.objects.filter(
        turn_number=None, created_at__lt=timezone.now() - MAX_UNSENT_AGE
    ).order_by("pk")
    rows = list(old.values_list("pk", "session_id", "uuid"))
    if not rows:
        return 0
    queued = _queued_uuids({session_pk for _, session_pk, _ in rows})
    unused = [pk for pk, _, uuid in rows if str(uuid) not in queued]
    Attachment.objects.filter(pk__in=unused, turn_number=None).delete()
    return len(unused)


def read_uuids(run: Run) -> list[str]:
    """Return the UUIDs of the attachments of a run's message, in the order of sending."""
    uuids: list[str] = load_json(run.attachments)
    return uuids


def _queued_uuids(session_pks: Any) -> set[str]:
    runs = Run.objects.filter(session__in=session_pks, state=QUEUED).exclude(attachments="[]")
    return {uuid for run in runs for uuid in read_uuids(run)}


# The keys of a reference that this module writes. Other keys came with the block.
REFERENCE_KEYS = frozenset(
    ("type", "source", "title", "attachment", "size", "media_type", "width", "height", "pages")
)


def make_content_block(block: Block, data: bytes, *, media_type: str) -> Block:
    """Return the block with its content in place of the reference. A document gets a title."""
    if kind_of(block) == IMAGE:
        return {"type": "image", "source": _encode(data, media_type)}
    document: Block = {"type": "document", "title": str(block.get("title") or "") or "document"}
    if kind_of(block) == TEXT:
        text = decode_text(data) or "[no text]"
        return document | {"source": {"type": "text", "media_type": TEXT_TYPE, "data": text}}
    return document | {"source": _encode(data, media_type)}


def _encode(data: bytes, media_type: str) -> dict[str, str]:
    return {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}


def content_opener(session_pk: int) -> Callable[[Block], list[Block]]:
    """Return a function that replaces the reference in a block with the attached file.

    The function inserts the file itself, not the smaller copy that the model got. If the file is no
    longer stored or does not belong to the session, the block becomes a text block that says so.
    Blocks without a reference stay as they are.
    """

    def open_content(block: Block) -> list[Block]:
        if not is_reference(block):
            return [block]
        try:
            # Use the recorded attachment, because the block's own values are not trustworthy.
            uuid = UUID(str(block.get("attachment")))
            attachment = Attachment.objects.get(session=session_pk, uuid=uuid)
            data = read_blob(attachment.digest)
        except (ValueError, Attachment.DoesNotExist, NotFound):
            name = block.get("title") or "An attachment"
            return [{"type": "text", "text": f"[{name} was attached; it is no longer stored.]"}]
        other_keys = {k: value for k, value in block.items() if k not in REFERENCE_KEYS}
        return [make_content_block(block, data, media_type=attachment.media_type) | other_keys]

    return open_content
