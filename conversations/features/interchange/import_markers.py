"""What follows the rows of an imported session: rewinds, skills, summaries, gaps, its
coverage."""

from collections.abc import Sequence
from dataclasses import asdict
from uuid import uuid5

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, Model

from conversations.archive.skills import digest_of
from conversations.archive.state_updates import LEFT_BEHIND
from conversations.domain.digest import first_digest
from conversations.domain.text import dump_json, load_json
from conversations.models import (
    ChatEvent,
    Compaction,
    JournalGap,
    Rewind,
    Session,
    SessionSkill,
    Turn,
)
from conversations.models.context import COMPACTION_REASONS

from .fields import (
    NAMESPACE,
    CompactionLine,
    GapLine,
    RewindLine,
    SessionLine,
    SkillLine,
    Unusable,
    add_metadata,
)
from .import_gaps import NumberedLines, Numbering, advance_journal, cover_session, save_gap


def store_rewind(
    session: Session, line: RewindLine, *, turns: Numbering, events: Numbering
) -> bool:
    """Keep a rewind; False if it is kept already. The session state stays behind until
    it is rebuilt. Raises Unusable for one that
    names rows which the session does not have."""
    ranges = {
        "from_turn": _place(line.from_turn, turns),
        "to_turn": _place(line.to_turn, turns),
        "from_seq": _place(line.from_seq, events),
        "to_seq": _place(line.to_seq, events),
    }
    if not (ranges["from_turn"] >= 1 and ranges["to_turn"] <= session.turn_count):
        raise Unusable("it rewinds turns that are not there")
    if not (ranges["from_seq"] >= 1 and ranges["to_seq"] <= session.last_seq):
        raise Unusable("it rewinds events that are not there")
    if line.reason not in Rewind.Reason.values:
        raise Unusable("its reason is not known")
    values = ranges | {"reason": line.reason, "created_at": line.created_at or session.created_at}
    with transaction.atomic():
        if Rewind.objects.filter(session=session.pk, **values).exists():
            return False
        actor = _find_user(line.actor)
        Rewind.objects.create(session=session, actor=actor, **values)
        Session.objects.filter(pk=session.pk).update(
            rewind_count=F("rewind_count") + 1, state_turn=LEFT_BEHIND
        )
    return True


def store_skill(session: Session, line: SkillLine, *, turns: Numbering) -> bool:
    """Keep a loaded skill; False if it is kept already. Raises Unusable for one that
    names a turn which is not there, or that is not what its digest says."""
    turn = _place(line.turn, turns)
    if not 1 <= turn <= session.turn_count:
        raise Unusable("it was loaded at a turn that is not there")
    digest = digest_of(line.content)
    if line.digest not in ("", digest):
        raise Unusable("its content is not what its digest says")
    values = {"name": line.name, "path": line.path, "digest": digest, "turn_number": turn}
    values |= {"loaded_at": line.loaded_at or session.created_at}
    with transaction.atomic():
        if SessionSkill.objects.filter(session=session.pk, **values).exists():
            return False
        SessionSkill.objects.create(
            session=session, content=line.content, metadata=line.metadata, **values
        )
    return True


def store_compaction(session: Session, line: CompactionLine, *, turns: Numbering) -> bool:
    """Keep a summary; False if it is kept already. One that was undone meanwhile is
    undone here too. Raises Unusable for one that names turns which are not there."""
    from_turn, to_turn = _place(line.from_turn, turns), _place(line.to_turn, turns)
    if not 1 <= from_turn <= to_turn <= session.turn_count:
        raise Unusable("it stands for turns that are not there")
    if line.reason not in COMPACTION_REASONS:
        raise Unusable("its reason is not known")
    uuid = line.uuid or uuid5(NAMESPACE, f"compaction {session.uuid} {to_turn} {line.summary}")
    undone = {"undone_at": line.undone_at, "undone_by": _find_user(line.undone_by)}
    with transaction.atomic():
        known = Compaction.objects.filter(uuid=uuid).first()
        if known is not None:
            if known.session_id != session.pk:
                raise Unusable("another session has a compaction with its uuid")
            is_news = line.undone_at is not None and known.undone_at is None
            if is_news:
                Compaction.objects.filter(pk=known.pk).update(**undone)
            return is_news
        Compaction.objects.create(
            uuid=uuid,
            session=session,
            from_turn=from_turn,
            to_turn=to_turn,
            floor_before=max(1, turns.refer(line.floor_before) or 1),
            summary=line.summary,
            model=line.model,
            reason=line.reason,
            before_turns=line.before_turns,
            after_turns=line.after_turns,
            before_tokens=line.before_tokens,
            after_tokens=line.after_tokens,
            actor=_find_user(line.actor),
            created_at=line.created_at or session.created_at,
            metadata=line.metadata,
            **undone,
        )
    return True


def _find_user(username: str) -> User | None:
    return User.objects.filter(username=username).first() if username else None


def _place(original: int, numbering: Numbering) -> int:
    found = numbering.refer(original)
    if found is None:
        raise Unusable("it names rows that were renumbered or left out")
    return found


def is_exact_copy(session: Session, header: SessionLine) -> bool | None:
    """Whether the session holds exactly the rows that an export announced; None
    for a file that announces none. It may have grown since."""
    if header.turns is None or header.events is None or not header.turn_digest:
        return None
    return (
        _digest_at(Turn, session, "turns", number=header.turns) == header.turn_digest
        and _digest_at(ChatEvent, session, "events", seq=header.events) == header.event_digest
    )


def _digest_at(model: type[Model], session: Session, chain: str, **place: int) -> str:
    if 0 in place.values():
        return first_digest(session.uuid, chain=chain)
    rows = model._default_manager.filter(session=session.pk, **place)
    return str(rows.values_list("digest", flat=True).first() or "")


def restore_coverage(session: Session, header: SessionLine, gaps: Sequence[GapLine]) -> list[int]:
    """The coverage that an export announced. Returns the places in ``gaps`` of those
    that do not fit."""
    is_as_announced = (session.turn_count, session.last_seq) == (header.turns, header.events)
    if is_as_announced and not session.runs.exists():
        _forget_other_gaps(session, gaps)
    bad = [place for place, gap in enumerate(gaps) if not save_gap(session, **asdict(gap))]
    advance_journal(session, through_turn=min(header.journal_turn or 0, session.turn_count))
    return bad


def _forget_other_gaps(session: Session, gaps: Sequence[GapLine]) -> None:
    """An import of a shorter file may have found gaps that this one fills."""
    wanted = {(gap.from_turn, gap.to_turn, gap.after_seq) for gap in gaps}
    known = JournalGap.objects.filter(session=session.pk).order_by("from_turn")
    other = [
        pk
        for pk, *place in known.values_list("pk", "from_turn", "to_turn", "after_seq")
        if tuple(place) not in wanted
    ]
    JournalGap.objects.filter(pk__in=other).delete()


def compute_coverage(session: Session, *, has_grown: bool) -> None:
    """The coverage that follows from the rows. What an earlier import found out is
    found out anew if there is more now; what running the session recorded stays."""
    gaps = JournalGap.objects.filter(session=session.pk)
    if not has_grown or session.runs.exists() or not gaps.exists():
        cover_session(session)
        return
    with transaction.atomic():
        gaps.delete()
        cover_session(session)


def remembered_runs(session: Session, name: str) -> tuple[NumberedLines, ...]:
    """What an earlier import renumbered, from the session's metadata."""
    try:
        found = load_json(session.metadata, default={})
        return tuple(NumberedLines(*map(int, run)) for run in found.get(name, ()))
    except (ValueError, TypeError, AttributeError):
        return ()


def remember_runs(session: Session, name: str, numbering: Numbering) -> None:
    """Keep in the session's metadata what was renumbered, as triples of the first
    and last original number and the first number in the archive."""
    runs = [[run.first, run.last, run.number] for run in numbering.runs()]
    if runs == [[run.first, run.last, run.number] for run in remembered_runs(session, name)]:
        return
    metadata = add_metadata(_without(session.metadata, name), {name: runs})
    Session.objects.filter(pk=session.pk).update(metadata=metadata)
    session.metadata = metadata


def _without(text: str, name: str) -> str:
    try:
        metadata = load_json(text, default={})
    except ValueError:
        return text
    if not isinstance(metadata, dict) or name not in metadata:
        return text
    return dump_json({key: value for key, value in metadata.items() if key != name})
