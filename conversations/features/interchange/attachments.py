"""Attachments of imported sessions, with their contents."""

import base64
import binascii
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User

from conversations.archive.attachments import attachment_block, facts_of
from conversations.archive.blobs import put_blob, touch_blob
from conversations.archive.file_types import examine
from conversations.domain.attachments import (
    DOCUMENT,
    IMAGE,
    IMAGE_TYPES,
    PDF_TYPE,
    TEXT,
    TEXT_TYPE,
    clean_name,
)
from conversations.domain.errors import Rejected
from conversations.models import Attachment, Session

from .fields import AttachmentLine, Unusable

TYPES = {IMAGE: IMAGE_TYPES, DOCUMENT: (PDF_TYPE,), TEXT: (TEXT_TYPE,)}


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
    digest, sent_digest, added_by = line.digest, line.sent_digest, line.added_by
    if not is_trusted:
        if data is None:  # a digest that no content has
            digest = sha256(f"{line.uuid} {line.digest}".encode()).hexdigest()
        sent_digest = "" if smaller is None else sent_digest
        added_by = added_by if added_by == session.owner.get_username() else ""
    known = Attachment.objects.filter(uuid=line.uuid).first()
    if known is not None and known.session_id != session.pk:
        raise Unusable("another session has an attachment with its uuid")
    try:
        found = examine(data, clean_name(line.columns["name"])) if data is not None else None
    except Rejected as error:
        raise Unusable(f"its content cannot be attached: {error.message}") from error
    is_news = _put(data, line.digest) | _put(smaller, line.sent_digest)
    if known is not None:
        return is_news
    columns = dict(line.columns)
    if found is not None:  # what the content is counts, not what the line says
        columns |= {
            name: getattr(found, name)
            for name in ("kind", "media_type", "width", "height", "pages")
        }
    elif columns["media_type"] not in TYPES.get(columns["kind"], ()):
        raise Unusable("neither its content nor a kind and type that are known are there")
    columns |= {
        "name": clean_name(columns["name"]),
        "sent": sent_digest or digest,
        "sent_type": line.sent_type or columns["media_type"],
        "thumbnail": put_blob(found.thumbnail) if found and found.thumbnail else "",
        "added_by": User.objects.filter(username=added_by).first() if added_by else None,
        "created_at": columns["created_at"] or session.created_at,
    }
    Attachment.objects.create(
        session=session, uuid=line.uuid, turn_number=turn, digest=digest, **columns
    )
    return True


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
