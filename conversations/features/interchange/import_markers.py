"""Storing an imported session's rewinds, skills, compactions and attachments."""

import base64
import re
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid5

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F

from conversations.archive.blobs import put_blob, touch_blob
from conversations.archive.context import digest_of
from conversations.archive.file_types import examine
from conversations.archive.state_updates import LEFT_BEHIND, edit_of
from conversations.domain.attachments import (
    DOCUMENT,
    IMAGE,
    IMAGE_TYPES,
    PDF_TYPE,
    TEXT,
    TEXT_TYPE,
    clean_name,
    list_references,
)
from conversations.domain.errors import Rejected
from conversations.domain.events import INFO, MalformedPayload, parse_payload
from conversations.domain.text import an_object, dump_json, load_json
from conversations.domain.windows import COMPACTION_REASONS
from conversations.models import Attachment, Compaction, Rewind, Session, SessionSkill

from .fields import NAMESPACE, UnusableLine
from .import_rows import AnyChain
from .lines import is_uuid, objects

# A session that gets a new uuid is a copy, so its attachments and compactions get new uuids too.


def copied_uuid(uuid: UUID, session: Session) -> UUID:
    """Return an attachment's or compaction's uuid in a copy. It is the same on each import."""
    return uuid5(uuid, str(session.uuid))


def rename_references(text: str, session: Session) -> str:
    """Replace the uuids in a turn's blocks or an event's payload by those of the copy."""
    try:
        value = load_json(text)
    except ValueError:
        return text
    payload = an_object(value)
    blocks = list_references(value) if isinstance(value, list) else []
    places = [(block, "attachment") for block in [*blocks, payload]]
    places += [(file, "uuid") for file in objects(payload.get("attachments"))]
    places.append((an_object(payload.get("data")), "compaction"))
    references = [(holder, name) for holder, name in places if is_uuid(holder.get(name))]
    for holder, name in references:
        holder[name] = str(copied_uuid(UUID(holder[name]), session))
    return dump_json(value) if references else text


_ITEM = re.compile(r"([a-eg-z])(\d{1,15})(.*)")  # Not "f": a file's id has no turn number.


def renumber_edit(payload: str, turns: AnyChain) -> str:
    """Replace the turn numbers in an event's payload by those in the archive.

    Only edits of the session state have turn numbers: in the item's id, for the item's turn, and
    for the turn after which the edit was made. A turn that is missing from the archive gets the
    number 0. In an id, its original number follows the 0, so that ids stay unique."""
    try:
        edit = edit_of(parse_payload(INFO, payload))
    except MalformedPayload:
        return payload
    if edit is None:
        return payload
    item, match = edit.item, _ITEM.fullmatch(edit.item.id)
    new_values = {"id": item.id, "turn": turns.find(item.turn) or 0}
    if match is not None:
        number = turns.find(int(match[2]))
        new_values["id"] = f"{match[1]}{number or f'0.{match[2]}'}{match[3]}"
    after = turns.find(edit.after) or 0
    if (new_values["id"], new_values["turn"], after) == (item.id, item.turn, edit.after):
        return payload
    value = load_json(payload)
    value["data"]["item"] |= new_values
    value["data"] |= {"after": after} if edit.after else {}
    return dump_json(value)


TYPES = {IMAGE: IMAGE_TYPES, DOCUMENT: (PDF_TYPE,), TEXT: (TEXT_TYPE,)}


def store_rewind(
    session: Session, columns: dict[str, Any], *, turns: AnyChain, events: AnyChain
) -> bool:
    """Store a rewind. Return False if it is stored already.

    The session state is out of date until it is rebuilt. Raise UnusableLine if the rewind refers
    to rows that the session does not have."""
    actor = _find_user(columns.pop("actor"))
    for unit, chain, end in (
        ("turn", turns, session.turn_count),
        ("seq", events, session.last_seq),
    ):
        for name in (f"from_{unit}", f"to_{unit}"):
            columns[name] = _place(columns[name], chain)
        if columns[f"from_{unit}"] < 1 or columns[f"to_{unit}"] > end:
            if unit == "turn":
                raise UnusableLine("it rewinds turns that do not exist")
            raise UnusableLine("it rewinds events that do not exist")
    back_to = columns["back_to"]
    if back_to is not None and not 0 <= back_to < session.rewinds.count():
        raise UnusableLine("it goes back to a point that does not exist")
    if columns["reason"] not in Rewind.Reason.values:
        raise UnusableLine("its reason is unknown")
    columns["created_at"] = columns["created_at"] or session.created_at
    with transaction.atomic():
        if Rewind.objects.filter(session=session.pk, **columns).exists():
            return False
        Rewind.objects.create(session=session, actor=actor, **columns)
        Session.objects.filter(pk=session.pk).update(
            rewind_count=F("rewind_count") + 1, state_turn=LEFT_BEHIND
        )
    return True


def store_skill(
    session: Session, columns: dict[str, Any], *, turns: AnyChain, events: AnyChain
) -> bool:
    """Store a loaded skill. Return False if it is stored already.

    Raise UnusableLine if its turn does not exist or its content does not match its digest."""
    columns["turn_number"] = _place(columns["turn_number"], turns)
    if not 1 <= columns["turn_number"] <= session.turn_count:
        raise UnusableLine("it was loaded at a turn that does not exist")
    digest = digest_of(columns["content"])
    if columns["digest"] not in ("", digest):
        raise UnusableLine("its content does not match its digest")
    columns |= {"digest": digest, "loaded_at": columns["loaded_at"] or session.created_at}
    names = ("name", "path", "digest", "turn_number", "loaded_at")
    same = {name: columns.pop(name) for name in names}
    _, is_new = SessionSkill.objects.get_or_create(session=session, **same, defaults=columns)
    return is_new


def store_compaction(
    session: Session, columns: dict[str, Any], *, turns: AnyChain, events: AnyChain
) -> bool:
    """Store a compaction. Return False if nothing changed.

    A stored compaction that the file has as undone is undone here too. Raise UnusableLine if it
    refers to turns that do not exist."""
    for name in ("from_turn", "to_turn"):
        columns[name] = _place(columns[name], turns)
    if not 1 <= columns["from_turn"] <= columns["to_turn"] <= session.turn_count:
        raise UnusableLine("it covers turns that do not exist")
    if columns["reason"] not in COMPACTION_REASONS:
        raise UnusableLine("its reason is unknown")
    identity = f"compaction {session.uuid} {columns['to_turn']} {columns['summary']}"
    columns |= {
        "uuid": columns["uuid"] or uuid5(NAMESPACE, identity),
        "floor_before": max(1, turns.find(columns["floor_before"]) or 1),
        "actor": _find_user(columns["actor"]),
        "undone_by": _find_user(columns["undone_by"]),
        "created_at": columns["created_at"] or session.created_at,
    }
    with transaction.atomic():
        stored = Compaction.objects.filter(uuid=columns["uuid"]).first()
        if stored is None:
            Compaction.objects.create(session=session, **columns)
            return True
        if stored.session_id != session.pk:
            raise UnusableLine("another session has a compaction with this UUID")
        undone = {name: columns[name] for name in ("undone_at", "undone_by")}
        active = Compaction.objects.filter(pk=stored.pk, undone_at=None)
        return undone["undone_at"] is not None and bool(active.update(**undone))


def store_attachment(
    session: Session, line: dict[str, Any], *, turn: int, is_trusted: bool
) -> bool:
    """Store an attachment and its content. Return False if nothing of it is new.

    An attachment without content is stored as one whose content is gone. If ``is_trusted``, its
    digest may refer to content that the archive has already. Raise UnusableLine if the content
    does not match its digest or cannot be attached."""
    columns = dict(line)
    uuid = line["uuid"]
    digest = line["digest"]
    added_by = line["added_by"]
    sent_digest = columns.pop("sent_digest")
    data = _open(columns.pop("data"), digest)
    smaller = _open(columns.pop("sent_data"), sent_digest)
    contents = [(data, digest), (smaller, sent_digest)]
    # An untrusted digest must not give access to another person's file.
    if not is_trusted:
        if data is None:  # replace the digest by one that no content has
            digest = sha256(f"{uuid} {digest}".encode()).hexdigest()
        sent_digest = "" if smaller is None else sent_digest
        added_by = added_by if added_by == session.owner.get_username() else ""
    stored = Attachment.objects.filter(uuid=uuid).first()
    if stored is not None and stored.session_id != session.pk:
        raise UnusableLine("another session has an attachment with this UUID")
    name = clean_name(columns["name"])
    try:
        content_facts = None if data is None else examine(data, name)
    except Rejected as error:
        raise UnusableLine(
            "its content cannot be attached: %(reason)s", reason=error.message
        ) from error
    is_news = False
    for content, content_digest in contents:
        if content is not None and not touch_blob(content_digest):
            put_blob(content)
            is_news = True
    if stored is not None:
        return is_news
    if content_facts is not None:  # the content decides, not the line
        facts = ("kind", "media_type", "width", "height", "pages")
        columns |= {fact: getattr(content_facts, fact) for fact in facts}
    elif columns["media_type"] not in TYPES.get(columns["kind"], ()):
        raise UnusableLine("it has neither content nor a known kind and type")
    columns |= {
        "turn_number": turn,
        "name": name,
        "digest": digest,
        "sent": sent_digest or digest,
        "sent_type": columns["sent_type"] or columns["media_type"],
        "thumbnail": put_blob(content_facts.thumbnail)
        if content_facts and content_facts.thumbnail
        else "",
        "added_by": _find_user(added_by),
        "created_at": columns["created_at"] or session.created_at,
    }
    Attachment.objects.create(session=session, **columns)
    return True


def _open(text: str, digest: str) -> bytes | None:
    if not text:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UnusableLine("its content is not valid base64") from error
    if sha256(data).hexdigest() != digest:
        raise UnusableLine("its content does not match its digest")
    return data


def _find_user(username: str) -> User | None:
    return User.objects.filter(username=username).first() if username else None


def _place(original: int, chain: AnyChain) -> int:
    number = chain.find(original)
    if number is None:
        raise UnusableLine("it refers to rows that were renumbered or left out")
    return number
