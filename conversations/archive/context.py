"""What was loaded of the workspace's skills, kept with the session."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from uuid import UUID

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from conversations.domain import runs as states
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.events import Info
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.text import dump_json, load_json
from conversations.models import Compaction, Rewind, Run, Session, SessionSkill

from .append import Appended, NewEvent, PreparedEvent, append, lock_session
from .messages import (
    Accepted,
    create_run,
    find_accepted,
    last_user_turn,
    refuse_busy,
    refuse_closed,
)
from .model_calls import CallRecord, append_call
from .rewinds import is_rewound
from .runs import Claimed

# Compaction: a summary stands for turns in the window. Nothing is removed.


UNDONE = "compaction_undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCompaction:
    """A summary that stands for all active turns up to ``to_turn``."""

    pk: int
    to_turn: int
    summary: str
    from_turn: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCompaction:
    """A summary to keep; the figures are those of the table."""

    uuid: UUID
    from_turn: int
    to_turn: int
    floor_before: int
    summary: str
    model: str
    reason: str
    before_turns: int
    after_turns: int
    before_tokens: int
    after_tokens: int


def read_active_compaction(session_pk: int) -> StoredCompaction | None:
    """The newest summary that is in force: neither undone nor rewound.

    A rewind marks all turns from one on, so it concerns a summary exactly when it
    has taken the last of the turns that the summary stands for.
    """
    rows = Compaction.objects.filter(session=session_pk, undone_at=None).order_by("-pk")
    found = rows.values_list("pk", "to_turn", "summary", "from_turn")
    for pk, to_turn, summary, from_turn in found.iterator(chunk_size=5):
        if not is_rewound(session_pk, to_turn):
            return StoredCompaction(pk=pk, to_turn=to_turn, summary=summary, from_turn=from_turn)
    return None


def read_compaction(pk: int) -> StoredCompaction:
    """One summary, whether it is in force or not. Raises NotFound."""
    found = Compaction.objects.filter(pk=pk).first()
    if found is None:
        raise NotFound("There is no such summary.")
    return StoredCompaction(
        pk=found.pk, to_turn=found.to_turn, summary=found.summary, from_turn=found.from_turn
    )


def require_compaction(session: Session, uuid: UUID) -> Compaction:
    """The session's summary of that uuid. Raises NotFound."""
    found = Compaction.objects.filter(session=session.pk, uuid=uuid).first()
    if found is None:
        raise NotFound("There is no such summary.")
    return found


def append_compaction(
    claimed: Claimed, *, new: NewCompaction, event: PreparedEvent, call: CallRecord
) -> Appended:
    """Keep a summary with its row and the record of the call that finished it, and end
    its run: one transaction."""
    with transaction.atomic():
        appended = append_call(claimed, call=call, events=[event])
        Compaction.objects.create(
            session_id=claimed.session_pk,
            actor_id=claimed.user_pk,
            created_at=timezone.now(),
            **asdict(new),
        )
        # The window starts after the turns, and is smaller by what the summary saves.
        sessions = Session.objects.filter(pk=claimed.session_pk)
        sessions.filter(floor_turn__lte=new.to_turn).update(floor_turn=new.to_turn + 1)
        saved = max(0, new.before_tokens - new.after_tokens)
        sessions.filter(context_tokens__gt=saved).update(context_tokens=F("context_tokens") - saved)
        changed = Run.objects.filter(pk=claimed.run_pk, state__in=ACTIVE_STATES).update(
            state=states.COMPLETED, finished_at=timezone.now(), note=""
        )
        if not changed:
            raise Conflict("This run has ended already.", code="run_ended")
    return appended


def undo_compaction(session: Session, *, uuid: UUID, user_pk: int | None) -> Appended:
    """Give the model the turns themselves again, as far as they fit. Raises NotFound,
    and Conflict when it is undone already."""
    with transaction.atomic():
        lock_session(session.pk)
        found = require_compaction(session, uuid)
        if found.undone_at is not None:
            raise Conflict("This summary is undone already.", code="compaction_undone")
        Compaction.objects.filter(pk=found.pk).update(undone_at=timezone.now(), undone_by=user_pk)
        _lower_floor(session)
        text = (
            f"The summary of turns {found.from_turn}–{found.to_turn} is undone. The model is"
            " given the turns themselves again, as far as they fit."
        )
        return append(
            session.pk,
            session_uuid=session.uuid,
            events=[NewEvent(payload=Info(text=text, code=UNDONE))],
        )


def _lower_floor(session: Session) -> None:
    """Where the window starts because of summaries that are undone, it starts where it
    did before them."""
    floor = Session.objects.values_list("floor_turn", flat=True).get(pk=session.pk)
    undone = Compaction.objects.filter(session=session.pk).exclude(undone_at=None)
    before = {to_turn + 1: low for to_turn, low in undone.values_list("to_turn", "floor_before")}
    lowered = floor
    while before.get(lowered, lowered) < lowered:
        lowered = before[lowered]
    Session.objects.filter(pk=session.pk, floor_turn=floor).update(floor_turn=lowered)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionAttempt:
    """The last compaction that was begun: the window's size then, in tokens, and
    whether it came to something that still stands."""

    tokens: int
    helped: bool


def read_last_attempt(session_pk: int) -> CompactionAttempt | None:
    """None when none was ever begun."""
    runs = Run.objects.filter(session=session_pk, kind=states.COMPACT)
    newest = runs.exclude(state=states.QUEUED).order_by("-pk").first()
    if newest is None:
        return None
    undone = Compaction.objects.filter(session=session_pk).order_by("-pk")
    was_undone = undone.values_list("undone_at", flat=True).first() is not None
    return CompactionAttempt(
        tokens=read_request(newest.pk).tokens,
        helped=newest.state == states.COMPLETED and not newest.error_code and not was_undone,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """Why a compaction was asked for, and the window's size then."""

    reason: str
    tokens: int = 0


def request_compaction(
    session: Session, *, client_id: str, request: CompactionRequest, user_pk: int | None
) -> Accepted:
    """Queue a run that writes a summary. Raises Conflict while another run is not over
    and for an archived or expired session (unless it was archived just now: reason
    ``end``),
    Rejected where nothing was said yet."""
    with transaction.atomic():
        closed = lock_session(session.pk)
        known = find_accepted(session, client_id)
        if known is not None:
            return known
        if request.reason != "end":
            refuse_closed(closed)
        refuse_busy(session.pk)
        turn = last_user_turn(session.pk)
        if turn is None:
            raise Rejected("There is nothing to summarise yet.", code="nothing_to_compact")
        return create_run(
            session,
            client_id,
            states.COMPACT,
            user_pk,
            user_turn=turn,
            text=dump_json(asdict(request)),
        )


def read_request(run_pk: int) -> CompactionRequest:
    text = Run.objects.values_list("text", flat=True).get(pk=run_pk)
    return CompactionRequest(**load_json(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSkill:
    """``content`` is the text that loading it gave, ``path`` its file within the
    workspace's folder and ``turn`` the turn that holds the call."""

    pk: int
    name: str
    content: str
    turn: int
    path: str = ""
    digest: str = ""


def read_loaded_skills(session_pk: int) -> list[LoadedSkill]:
    """The skills of the session on its active path, one of each name (the newest),
    in the order of loading."""
    loaded = _stored(SessionSkill.objects.filter(session=session_pk))
    if not loaded:
        return []
    rewound = list(
        Rewind.objects.filter(session=session_pk).values_list("from_turn", "to_turn").order_by("pk")
    )
    active = [s for s in loaded if not any(low <= s.turn <= high for low, high in rewound)]
    newest = {skill.name: skill for skill in active}
    return [skill for skill in active if newest[skill.name] is skill]


def read_skills(pks: Sequence[int]) -> list[LoadedSkill]:
    """These loads, in the order of loading."""
    return _stored(SessionSkill.objects.filter(pk__in=pks)) if pks else []


def _stored(rows: QuerySet[SessionSkill]) -> list[LoadedSkill]:
    columns = ("pk", "name", "content", "turn_number", "path", "digest")
    return [
        LoadedSkill(pk=pk, name=name, content=content, turn=turn, path=path, digest=digest)
        for pk, name, content, turn, path, digest in rows.order_by("pk").values_list(*columns)
    ]


def append_loaded_skill(
    session_pk: int, *, name: str, path: str, content: str, turn: int
) -> LoadedSkill | None:
    """Keep a skill that the model loads. None when the same text of it is loaded on
    the active path already."""
    digest = digest_of(content)
    known = next((s for s in read_loaded_skills(session_pk) if s.name == name), None)
    if known is not None and known.digest == digest:
        return None
    row = SessionSkill.objects.create(
        session_id=session_pk,
        name=name,
        path=path,
        content=content,
        digest=digest,
        turn_number=turn,
        loaded_at=timezone.now(),
    )
    return LoadedSkill(pk=row.pk, name=name, content=content, turn=turn, path=path, digest=digest)


def digest_of(content: str) -> str:
    return sha256(content.encode("utf-8", "replace")).hexdigest()
