"""What stands beside the rows of an imported session: rewinds, skills, summaries."""

from typing import Any
from uuid import uuid5

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F

from conversations.archive.context import digest_of
from conversations.archive.state_updates import LEFT_BEHIND
from conversations.models import Compaction, Rewind, Session, SessionSkill
from conversations.models.context import COMPACTION_REASONS

from .fields import NAMESPACE, Unusable
from .import_numbers import Numbering


def store_rewind(
    session: Session, columns: dict[str, Any], *, turns: Numbering, events: Numbering
) -> bool:
    """Keep a rewind; False if it is kept already. The session state stays behind until
    it is rebuilt. Raises Unusable for one that names rows which the session does not have."""
    actor = _find_user(columns.pop("actor"))
    for what, numbering, end in (
        ("turn", turns, session.turn_count),
        ("seq", events, session.last_seq),
    ):
        for name in (f"from_{what}", f"to_{what}"):
            columns[name] = _place(columns[name], numbering)
        if columns[f"from_{what}"] < 1 or columns[f"to_{what}"] > end:
            rows = "turns" if what == "turn" else "events"
            raise Unusable(f"it rewinds {rows} that are not there")
    if columns["reason"] not in Rewind.Reason.values:
        raise Unusable("its reason is not known")
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
    session: Session, columns: dict[str, Any], *, turns: Numbering, events: Numbering
) -> bool:
    """Keep a loaded skill; False if it is kept already. Raises Unusable for one that
    names a turn which is not there, or that is not what its digest says."""
    columns["turn_number"] = _place(columns["turn_number"], turns)
    if not 1 <= columns["turn_number"] <= session.turn_count:
        raise Unusable("it was loaded at a turn that is not there")
    digest = digest_of(columns["content"])
    if columns["digest"] not in ("", digest):
        raise Unusable("its content is not what its digest says")
    columns |= {"digest": digest, "loaded_at": columns["loaded_at"] or session.created_at}
    same = {name: columns[name] for name in ("name", "path", "digest", "turn_number", "loaded_at")}
    with transaction.atomic():
        if SessionSkill.objects.filter(session=session.pk, **same).exists():
            return False
        SessionSkill.objects.create(session=session, **columns)
    return True


def store_compaction(
    session: Session, columns: dict[str, Any], *, turns: Numbering, events: Numbering
) -> bool:
    """Keep a summary; False if it is kept already. One that was undone meanwhile is
    undone here too. Raises Unusable for one that names turns which are not there."""
    for name in ("from_turn", "to_turn"):
        columns[name] = _place(columns[name], turns)
    if not 1 <= columns["from_turn"] <= columns["to_turn"] <= session.turn_count:
        raise Unusable("it stands for turns that are not there")
    if columns["reason"] not in COMPACTION_REASONS:
        raise Unusable("its reason is not known")
    told = f"compaction {session.uuid} {columns['to_turn']} {columns['summary']}"
    columns |= {
        "uuid": columns["uuid"] or uuid5(NAMESPACE, told),
        "floor_before": max(1, turns.refer(columns["floor_before"]) or 1),
        "actor": _find_user(columns["actor"]),
        "undone_by": _find_user(columns["undone_by"]),
        "created_at": columns["created_at"] or session.created_at,
    }
    with transaction.atomic():
        known = Compaction.objects.filter(uuid=columns["uuid"]).first()
        if known is None:
            Compaction.objects.create(session=session, **columns)
            return True
        if known.session_id != session.pk:
            raise Unusable("another session has a compaction with its uuid")
        is_news = columns["undone_at"] is not None and known.undone_at is None
        if is_news:
            undone = {name: columns[name] for name in ("undone_at", "undone_by")}
            Compaction.objects.filter(pk=known.pk).update(**undone)
        return is_news


def _find_user(username: str) -> User | None:
    return User.objects.filter(username=username).first() if username else None


def _place(original: int, numbering: Numbering) -> int:
    found = numbering.refer(original)
    if found is None:
        raise Unusable("it names rows that were renumbered or left out")
    return found
