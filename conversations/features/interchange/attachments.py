"""Attachments in the interchange file, with their contents."""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User

from conversations.archive.attachments import attachment_block, facts_of
from conversations.archive.blobs import put_blob, read_blob, touch_blob
from conversations.archive.file_types import FileType, examine
from conversations.domain.attachments import (
    DOCUMENT,
    IMAGE,
    IMAGE_TYPES,
    PDF_TYPE,
    TEXT,
    TEXT_TYPE,
    clean_name,
)
from conversations.domain.digest import instant
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.text import dump_json
from conversations.models import Attachment, Session

from .fields import AttachmentLine, Unusable

PAGE = 20

TYPES = {IMAGE: IMAGE_TYPES, DOCUMENT: (PDF_TYPE,), TEXT: (TEXT_TYPE,)}


def attachment_lines(session: Session) -> Iterator[str]:
    """What was sent or read, in order; holds one content at a time."""
    sent = Attachment.objects.select_related("added_by").filter(
        session=session.pk, turn_number__lt=session.next_turn
    )
    last = 0
    while page := list(sent.filter(pk__gt=last).order_by("pk")[:PAGE]):
        for attachment in page:
            yield dump_json(_line(attachment))
        last = page[-1].pk


def _line(attachment: Attachment) -> dict[str, Any]:
    is_smaller = attachment.sent not in ("", attachment.digest)
    line = {
        "type": "attachment",
        "uuid": str(attachment.uuid),
        "turn": attachment.turn_number,
        "name": attachment.name,
        "kind": attachment.kind,
        "media_type": attachment.media_type,
        "size": attachment.size,
        "width": attachment.width,
        "height": attachment.height,
        "pages": attachment.pages,
        "tokens": attachment.tokens,
        "added_by": attachment.added_by.get_username() if attachment.added_by else None,
        "created_at": instant(attachment.created_at),
        "digest": attachment.digest,
        "data": _read(attachment.digest),
        "sent_digest": attachment.sent if is_smaller else None,
        "sent_type": attachment.sent_type if is_smaller else None,
        "sent_data": _read(attachment.sent) if is_smaller else None,
    }
    return {name: value for name, value in line.items() if value is not None}


def _read(digest: str) -> str | None:
    try:
        return base64.b64encode(read_blob(digest)).decode()
    except NotFound:
        return None


def describe_file(data: bytes, *, uuid: UUID, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a file that another program kept: the block by which a turn names it, and its line,
    still without the turn. Raises Rejected for what cannot be attached."""
    name = clean_name(name)
    found = examine(data, name)
    digest, sent = sha256(data).hexdigest(), found.sent or data
    attachment = Attachment(
        uuid=uuid,
        digest=digest,
        sent=sha256(sent).hexdigest(),
        **facts_of(found, name=name, size=len(data)),
    )
    line = {
        "type": "attachment",
        "uuid": str(uuid),
        "name": name,
        "size": len(data),
        "digest": digest,
        "tokens": found.tokens,
        "data": base64.b64encode(data).decode(),
    }
    if found.sent is not None:
        line["sent_digest"], line["sent_type"] = attachment.sent, attachment.sent_type
        line["sent_data"] = base64.b64encode(found.sent).decode()
    return attachment_block(attachment), line


def store_attachment(
    session: Session, line: AttachmentLine, *, turn: int, is_trusted: bool = True
) -> bool:
    """Keep an attachment and its content; False if nothing of it is new. Without the
    content it is kept as one that is gone. Raises Unusable for contents that are not
    what their digests say, or none that can be attached.

    ``is_trusted``: its digest may stand for a content that is here already. Otherwise
    somebody who knows the digest of another's file would get the file by it.
    """
    data = _open(line.data, line.digest)
    smaller = _open(line.sent_data, line.sent_digest)
    known = Attachment.objects.filter(uuid=line.uuid).first()
    if not is_trusted:
        line = _without_claims(
            line, session, has_data=data is not None, has_smaller=smaller is not None
        )
    if known is not None and known.session_id != session.pk:
        raise Unusable("another session has an attachment with its uuid")
    try:
        found = examine(data, clean_name(line.name)) if data is not None else None
    except Rejected as error:
        raise Unusable(f"its content cannot be attached: {error.message}") from error
    is_news = _put(data, line.digest) | _put(smaller, line.sent_digest)
    if known is not None:
        return is_news
    Attachment.objects.create(**_values(session, line, turn, found))
    return True


def _without_claims(
    line: AttachmentLine, session: Session, *, has_data: bool, has_smaller: bool
) -> AttachmentLine:
    """The line with a digest that no content has, where it came without one; added by the
    session's owner or by nobody."""
    digest = line.digest if has_data else sha256(f"{line.uuid} {line.digest}".encode()).hexdigest()
    return replace(
        line,
        digest=digest,
        sent_digest=line.sent_digest if has_smaller else "",
        added_by=line.added_by if line.added_by == session.owner.get_username() else "",
    )


def _values(
    session: Session, line: AttachmentLine, turn: int, found: FileType | None
) -> dict[str, Any]:
    """What the content is, where it is there; else what the line says."""
    if found is None and line.media_type not in TYPES.get(line.kind, ()):
        raise Unusable("neither its content nor a kind and type that are known are there")
    return {
        "session": session,
        "uuid": line.uuid,
        "turn_number": turn,
        "name": clean_name(line.name),
        "kind": found.kind if found else line.kind,
        "media_type": found.media_type if found else line.media_type,
        "digest": line.digest,
        "size": line.size,
        "width": found.width if found else line.width,
        "height": found.height if found else line.height,
        "pages": found.pages if found else line.pages,
        "tokens": line.tokens,
        "sent": line.sent_digest or line.digest,
        "sent_type": line.sent_type or (found.media_type if found else line.media_type),
        "thumbnail": put_blob(found.thumbnail) if found and found.thumbnail else "",
        "added_by": User.objects.filter(username=line.added_by).first() if line.added_by else None,
        "created_at": line.created_at or session.created_at,
    }


def _open(text: str, digest: str) -> bytes | None:
    if not text:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unusable("its content is not base64") from error
    if sha256(data).hexdigest() != digest:
        raise Unusable("its content is not what its digest says")
    return data


def _put(data: bytes | None, digest: str) -> bool:
    if data is None or touch_blob(digest):
        return False
    put_blob(data)
    return True
