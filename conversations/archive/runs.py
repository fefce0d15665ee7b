"""Runs: accept a message, claim it for one process, end it, recover it.

A message is on disk before it is acknowledged. If the session is idle its turn
and row are committed with it; otherwise it waits as a queued run, and becomes a
turn when it is claimed. The database lets only one run of a session be active,
whatever the number of processes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.models import Count, F, QuerySet
from django.utils import timezone

from conversations.domain import runs as states
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.events import (
    CONTENT_INDICATOR,
    USER_MESSAGE,
    AssistantText,
    Info,
    Payload,
    TurnSeparator,
    UserMessage,
)
from conversations.domain.jsontext import dump_json, load_json
from conversations.domain.runs import ACTIVE_STATES, QUEUED, RUNNING
from conversations.domain.text import estimate_tokens, is_storable, storable
from conversations.domain.turns import NewTurn
from conversations.models import (
    ChatEvent,
    DraftChunk,
    ModelCall,
    Rewind,
    Run,
    Session,
    ToolCall,
    Turn,
)

from .append import Appended, Counted, NewEvent, PreparedEvent, Row, append
from .drafts import Chunk, append_draft_chunks
from .journal import StoredEvent, get_chat_events
from .turns import MAX_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A run that this process may carry out. ``rows`` are those that claiming it
    appended (a queued message becoming a turn)."""

    run_pk: int
    run: UUID
    session_pk: int
    session: UUID
    kind: str
    model: str
    user_turn: int
    rows: list[Row]
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    run: UUID
    text: str
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What became of a message. ``turn`` and ``seq`` are None while it waits.
    ``is_new`` is False when the same ``client_id`` had been accepted before.
    ``claimed``: the session was idle, and the run is the caller's to carry out."""

    run: UUID
    run_pk: int
    client_id: str
    state: str
    turn: int | None
    seq: int | None
    is_new: bool
    rows: list[Row] = field(default_factory=list)
    title: str = ""
    claimed: Claimed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """Rows that left the active path; an empty range when there were none."""

    from_seq: int
    to_seq: int


def accept_message(
    session: Session,
    *,
    client_id: str,
    text: str,
    user_pk: int | None,
    max_queued: int,
    owner: str = "",
) -> Accepted:
    """Commit a person's message, once for each ``client_id``; in an idle session
    claim its run for ``owner`` in the same transaction.

    Raises Rejected for an empty message or an archived session, Conflict when too
    many messages wait already. Raw SQL where a first word waits for it.
    """
    if not text.strip():
        raise Rejected("A message needs at least one character.", code="message_empty")
    with transaction.atomic(), connection.cursor() as cursor:
        is_archived = _lock_session(session.pk)
        known_pk, busy = _known_and_busy(cursor, session.pk, client_id)
        if known_pk is not None:
            return _accepted_before(Run.objects.get(pk=known_pk))
        _refuse_archived(is_archived)
        if busy > max_queued:
            raise Conflict(
                f"{busy - 1} messages wait already. Withdraw one, or wait for an answer.",
                code="queue_full",
            )
        run = Run(
            session=session,
            client_id=client_id,
            kind=states.MESSAGE,
            state=QUEUED,
            text=dump_json(text),
            requested_by_id=user_pk,
            created_at=timezone.now(),
        )
        appended = None if busy else _append_user_turn(run, session, text)
        if not busy and owner:
            run.state, run.owner = RUNNING, owner
            run.started_at = run.heartbeat_at = run.created_at
        _insert_run(cursor, run)
        claimed = _claimed(run, session, appended) if run.state == RUNNING else None
        return _accepted(run, appended, claimed=claimed)


def _known_and_busy(cursor: Any, session_pk: int, client_id: str) -> tuple[int | None, int]:
    """The run of this ``client_id``, if any, and how many runs are not over."""
    cursor.execute(
        "SELECT (SELECT id FROM conversations_run WHERE session_id = %s AND client_id = %s),"
        " (SELECT COUNT(*) FROM conversations_run WHERE session_id = %s AND state IN (%s, %s, %s))",
        [session_pk, client_id, session_pk, *ACTIVE_STATES, QUEUED],
    )
    known_pk, busy = cursor.fetchone()
    return known_pk, busy


def _insert_run(cursor: Any, run: Run) -> None:
    columns = [field.column for field in _RUN_FIELDS]
    values = [
        field.get_db_prep_save(getattr(run, field.attname), connection) for field in _RUN_FIELDS
    ]
    marks = ", ".join(["%s"] * len(columns))
    cursor.execute(
        f"INSERT INTO conversations_run ({', '.join(columns)}) VALUES ({marks}) RETURNING id",  # noqa: S608 (columns of the model)
        values,
    )
    run.pk = cursor.fetchone()[0]


_RUN_FIELDS = [field for field in Run._meta.concrete_fields if not field.primary_key]


def _lock_session(session_pk: int) -> bool:
    """Take the row's lock first, so that two callers cannot both find the session
    idle. Returns whether it is archived; raises NotFound."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE conversations_session SET rewind_count = rewind_count WHERE id = %s"
            " RETURNING archived_at",
            [session_pk],
        )
        found = cursor.fetchone()
    if found is None:
        raise NotFound("There is no such session.")
    return found[0] is not None


def _refuse_archived(is_archived: bool) -> None:
    if is_archived:
        raise Conflict(
            "This session is archived. Bring it back to go on with it.", code="session_archived"
        )


def _known(session: Session, client_id: str) -> Accepted | None:
    run = Run.objects.filter(session=session.pk, client_id=client_id).first()
    return None if run is None else _accepted_before(run)


def _accepted_before(run: Run) -> Accepted:
    return replace(_accepted(run, None), is_new=False)


def _create_run(
    session: Session, client_id: str, kind: str, user_pk: int | None, **fields: Any
) -> Run:
    return Run.objects.create(
        session=session,
        client_id=client_id,
        kind=kind,
        state=QUEUED,
        requested_by_id=user_pk,
        created_at=timezone.now(),
        **fields,
    )


def _accepted(run: Run, appended: Appended | None, *, claimed: Claimed | None = None) -> Accepted:
    return Accepted(
        run=run.uuid,
        run_pk=run.pk,
        client_id=run.client_id,
        state=run.state,
        turn=run.user_turn,
        seq=run.user_seq,
        is_new=True,
        rows=appended.rows if appended else [],
        title=appended.title if appended else "",
        claimed=claimed,
    )


def _append_user_turn(run: Run, session: Session, text: str) -> Appended:
    """Make the run's message a turn and a row; the run notes which, unsaved. What
    no database can hold in a text column is kept exactly in the turn's blocks."""
    content = storable(text)
    blocks = None if is_storable(text) else dump_json([{"type": "text", "text": text}])
    appended = append(
        session.pk,
        session_uuid=session.uuid,
        turns=[
            NewTurn(
                role="user", content=content, blocks=blocks, token_count=estimate_tokens(content)
            )
        ],
        events=[NewEvent(payload=UserMessage(text=content, client_id=run.client_id), new=0)],
    )
    run.user_turn = appended.turns[0]
    run.user_seq = appended.rows[0].seq if appended.rows else None
    return appended


def withdraw_message(session: Session, *, run: UUID) -> None:
    """Take back a message that still waits. Raises Conflict when it is too late.
    The message stays in the archive as a run that was stopped before it began."""
    changed = Run.objects.filter(session=session.pk, uuid=run, state=QUEUED, user_turn=None).update(
        state=states.STOPPED, finished_at=timezone.now(), note="withdrawn"
    )
    if not changed:
        raise Conflict("This message is not waiting any more.", code="not_queued")


def queued_messages(session_pk: int) -> list[QueuedMessage]:
    """Messages that wait for a run to end, in order."""
    waiting = Run.objects.filter(
        session=session_pk, state=QUEUED, user_turn=None, kind=states.MESSAGE
    ).order_by("pk")
    return [
        QueuedMessage(run=run.uuid, text=message_text(run), client_id=run.client_id)
        for run in waiting
    ]


def message_text(run: Run) -> str:
    """A run's message, exactly as it was sent."""
    return str(load_json(run.text, default=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """A run that answers an earlier message again, and the rows it replaced."""

    accepted: Accepted
    rewound: Rewound


def edit_message(
    session: Session, *, client_id: str, turn: int, text: str, user_pk: int | None
) -> Restarted:
    """Replace a person's message and all that follows: a rewind, then a new turn.

    Raises Rejected when the turn is not a message of the person on the active
    path, Conflict while a run is active.
    """
    if not text.strip():
        raise Rejected("A message needs at least one character.", code="message_empty")
    with transaction.atomic():
        is_archived = _lock_session(session.pk)
        known = _known(session, client_id)
        if known is not None:
            return Restarted(accepted=known, rewound=Rewound(from_seq=1, to_seq=0))
        _refuse_archived(is_archived)
        _refuse_busy(session.pk)
        _require_active_user_turn(session, turn)
        rewound = append_rewind(
            session,
            from_turn=turn,
            from_seq=_first_seq_from_turn(session.pk, turn),
            reason=Rewind.Reason.EDIT,
            actor_pk=user_pk,
        )
        run = _create_run(session, client_id, states.MESSAGE, user_pk, text=dump_json(text))
        appended = _append_user_turn(run, session, text)
        run.save(update_fields=["user_turn", "user_seq"])
        return Restarted(accepted=_accepted(run, appended), rewound=rewound)


def answer_again(
    session: Session, *, client_id: str, turn: int | None, user_pk: int | None
) -> Restarted:
    """Answer a message of the person anew; what followed it is rewound.

    ``turn`` None means the last message. Raises as :func:`edit_message`.
    """
    with transaction.atomic():
        is_archived = _lock_session(session.pk)
        known = _known(session, client_id)
        if known is not None:
            return Restarted(accepted=known, rewound=Rewound(from_seq=1, to_seq=0))
        _refuse_archived(is_archived)
        _refuse_busy(session.pk)
        chosen = turn if turn is not None else last_user_turn(session.pk)
        if chosen is None:
            raise Rejected("There is no message to answer yet.", code="nothing_to_answer")
        _require_active_user_turn(session, chosen)
        rewound = append_rewind(
            session,
            from_turn=chosen + 1,
            from_seq=_first_seq_of_answer(session.pk, chosen),
            reason=Rewind.Reason.REGENERATE,
            actor_pk=user_pk,
        )
        run = _create_run(session, client_id, states.REGENERATE, user_pk, user_turn=chosen)
        return Restarted(accepted=_accepted(run, None), rewound=rewound)


def continue_run(session: Session, *, client_id: str, user_pk: int | None) -> Accepted:
    """Go on after an answer that was cut off. Raises Conflict while a run is active,
    Rejected when there is nothing to go on from."""
    with transaction.atomic():
        is_archived = _lock_session(session.pk)
        known = _known(session, client_id)
        if known is not None:
            return known
        _refuse_archived(is_archived)
        _refuse_busy(session.pk)
        turn = last_user_turn(session.pk)
        if turn is None:
            raise Rejected("There is nothing to go on from yet.", code="nothing_to_answer")
        return _accepted(
            _create_run(session, client_id, states.CONTINUE, user_pk, user_turn=turn), None
        )


def _refuse_busy(session_pk: int) -> None:
    if Run.objects.filter(session=session_pk, state__in=(*ACTIVE_STATES, QUEUED)).exists():
        raise Conflict("An answer is being written. Stop it first.", code="session_busy")


def _require_active_user_turn(session: Session, number: int) -> None:
    is_user = Turn.objects.filter(session=session.pk, number=number, role="user").exists()
    if not is_user or _is_rewound(session.pk, number):
        raise Rejected(
            "This is not a message of the conversation as it stands.", code="not_a_message"
        )


def _is_rewound(session_pk: int, number: int) -> bool:
    return Rewind.objects.filter(
        session=session_pk, from_turn__lte=number, to_turn__gte=number
    ).exists()


def last_user_turn(session_pk: int) -> int | None:
    """The person's last message on the active path."""
    numbers = (
        Turn.objects.filter(session=session_pk, role="user")
        .order_by("-number")
        .values_list("number", flat=True)
    )
    return next(
        (n for n in numbers.iterator(chunk_size=50) if not _is_rewound(session_pk, n)), None
    )


def append_rewind(
    session: Session, *, from_turn: int, from_seq: int | None, reason: str, actor_pk: int | None
) -> Rewound:
    """Mark all turns from one on, and all rows from one on (None: no row), as no
    longer on the active path."""
    counters = Session.objects.values("next_turn", "next_seq").get(pk=session.pk)
    last_turn, last_seq = counters["next_turn"] - 1, counters["next_seq"] - 1
    from_seq = last_seq + 1 if from_seq is None else from_seq
    if last_turn < from_turn and last_seq < from_seq:
        return Rewound(from_seq=1, to_seq=0)
    Rewind.objects.create(
        session_id=session.pk,
        from_turn=from_turn,
        to_turn=last_turn,
        from_seq=from_seq,
        to_seq=last_seq,
        reason=reason,
        actor_id=actor_pk,
        created_at=timezone.now(),
    )
    Session.objects.filter(pk=session.pk).update(rewind_count=F("rewind_count") + 1)
    return Rewound(from_seq=from_seq, to_seq=last_seq)


def _first_seq_of_answer(session_pk: int, user_turn: int) -> int | None:
    """Where the rows begin that follow a message of the person; the notices and
    footers of an answer without a turn of its own carry the message's turn."""
    asked = _events_from(session_pk, user_turn).filter(
        turn_number=user_turn, event_type__in=(USER_MESSAGE, CONTENT_INDICATOR)
    )
    last = asked.order_by("-seq").values_list("seq", flat=True).first()
    return last + 1 if last is not None else _first_seq_from_turn(session_pk, user_turn + 1)


def _first_seq_from_turn(session_pk: int, turn: int) -> int | None:
    events = _events_from(session_pk, turn).order_by("turn_number", "seq")
    return events.values_list("seq", flat=True).first()


def _events_from(session_pk: int, turn: int) -> QuerySet[ChatEvent]:
    return ChatEvent.objects.filter(session=session_pk, turn_number__gte=turn)


def claim_next_run(session_pk: int, *, owner: str) -> Claimed | None:
    """Make the session's oldest queued run this process's own, and its message a
    turn if it is not one yet. None when there is none or another run is active."""
    try:
        with transaction.atomic():
            _lock_session(session_pk)
            if Run.objects.filter(session=session_pk, state__in=ACTIVE_STATES).exists():
                return None
            run = (
                Run.objects.select_related("session", "session__workspace")
                .filter(session=session_pk, state=QUEUED)
                .order_by("pk")
                .first()
            )
            return None if run is None else _claim(run, owner)
    except IntegrityError:
        return None


def _claim(run: Run, owner: str) -> Claimed:
    now = timezone.now()
    run.state, run.owner, run.started_at, run.heartbeat_at = RUNNING, owner, now, now
    appended = None
    if run.user_turn is None:
        appended = _append_user_turn(run, run.session, message_text(run))
    run.save()
    return _claimed(run, run.session, appended)


def _claimed(run: Run, session: Session, appended: Appended | None) -> Claimed:
    assert run.user_turn is not None
    return Claimed(
        run_pk=run.pk,
        run=run.uuid,
        session_pk=session.pk,
        session=session.uuid,
        kind=run.kind,
        model=session.model or session.workspace.default_model,
        user_turn=run.user_turn,
        rows=appended.rows if appended else [],
        title=appended.title if appended else "",
    )


def note_run(run_pk: int, *, note: str) -> None:
    """Say what an active run is doing (waiting to try again), for every page."""
    Run.objects.filter(pk=run_pk, state__in=ACTIVE_STATES).update(note=note[:255])


def request_stop(session_pk: int) -> int:
    """Ask the active run to end, in whatever process it runs. Returns how many."""
    return Run.objects.filter(
        session=session_pk, state__in=ACTIVE_STATES, stop_requested_at=None
    ).update(stop_requested_at=timezone.now())


def beat(run_pks: Sequence[int]) -> set[int]:
    """Say that these runs are alive; returns those whose stop was requested."""
    runs = Run.objects.filter(pk__in=run_pks, state__in=ACTIVE_STATES)
    runs.update(heartbeat_at=timezone.now())
    return set(runs.filter(stop_requested_at__isnull=False).values_list("pk", flat=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One model call as it is kept. Token figures None: not reported."""

    ordinal: int
    model: str
    manifest: str
    request_digest: str
    message_id: str = ""
    stop_reason: str = ""
    error_code: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_microusd: int | None = None
    first_token_ms: int | None = None
    duration_ms: int | None = None


def append_answer(
    claimed: Claimed,
    *,
    turn: NewTurn | None,
    events: Sequence[PreparedEvent],
    call: CallRecord,
    tool_calls: Sequence[dict[str, Any]] = (),
) -> Appended:
    """Commit one model call: its turn, rows, record and counters; its draft goes."""
    with transaction.atomic():
        appended = append(
            claimed.session_pk,
            session_uuid=claimed.session,
            turns=[turn] if turn else [],
            events=events,
            counted=_counted(call),
        )
        number = appended.turns[0] if appended.turns else None
        _insert_call(claimed, call, turn_number=number)
        for tool_call in tool_calls:
            _record_tool_call(claimed, tool_call, number or 0)
        DraftChunk.objects.filter(run=claimed.run_pk).delete()
    return appended


def append_failed_call(claimed: Claimed, *, call: CallRecord) -> None:
    """Keep the record of a call that gave no answer."""
    _insert_call(claimed, call, turn_number=None)


def _insert_call(claimed: Claimed, call: CallRecord, *, turn_number: int | None) -> None:
    ModelCall.objects.create(
        run_id=claimed.run_pk, created_at=timezone.now(), turn_number=turn_number, **asdict(call)
    )


def _counted(call: CallRecord) -> Counted:
    cached = call.cache_read_tokens or 0
    return Counted(
        input_tokens=(call.input_tokens or 0) + cached + (call.cache_write_tokens or 0),
        output_tokens=call.output_tokens or 0,
        cached_tokens=cached,
        cost_microusd=call.cost_microusd or 0,
    )


def _record_tool_call(claimed: Claimed, call: dict[str, Any], turn: int) -> None:
    ToolCall.objects.create(
        run_id=claimed.run_pk,
        call_id=str(call.get("id", ""))[:255],
        name=str(call.get("name", ""))[:255],
        arguments=dump_json(call.get("input", {})),
        state="started",
        turn_number=turn,
        created_at=timezone.now(),
    )


def append_tool_result(
    claimed: Claimed,
    *,
    turn: NewTurn,
    event: PreparedEvent,
    call_turn: int,
    ok: bool,
    duration_ms: int,
) -> Appended:
    """Commit a tool's result: its turn, its row and the record of the call."""
    with transaction.atomic():
        appended = append(
            claimed.session_pk,
            session_uuid=claimed.session,
            turns=[turn],
            events=[event],
        )
        ToolCall.objects.filter(
            run=claimed.run_pk, turn_number=call_turn, call_id=turn.tool_call_id
        ).update(
            state="completed",
            ok=ok,
            result_turn=appended.turns[0],
            duration_ms=duration_ms,
        )
    return appended


def finish_run(
    claimed: Claimed,
    *,
    state: str,
    payloads: Sequence[Payload],
    error_code: str = "",
    draft: Sequence[Chunk] = (),
) -> Appended:
    """End a run with its last rows (footer, notice), in one transaction. A draft
    that is still there becomes a partial turn first: nothing shown is lost.
    ``draft`` is what has not been kept of it yet."""
    with transaction.atomic():
        append_draft_chunks(draft)
        partial, rows = _keep_draft(claimed.run_pk, claimed.session_pk, claimed.session)
        appended = append(
            claimed.session_pk,
            session_uuid=claimed.session,
            events=[NewEvent(payload=payload) for payload in payloads],
        )
        changed = Run.objects.filter(pk=claimed.run_pk, state__in=ACTIVE_STATES).update(
            state=state, finished_at=timezone.now(), error_code=error_code, note=""
        )
        if not changed:
            raise Conflict("This run has ended already.", code="run_ended")
    return Appended(turns=partial, rows=rows + appended.rows)


def _keep_draft(run_pk: int, session_pk: int, session: UUID) -> tuple[list[int], list[Row]]:
    parts: dict[int, tuple[str, list[str]]] = {}
    chunks = DraftChunk.objects.filter(run=run_pk).order_by("ordinal")
    for part, kind, text in chunks.values_list("part", "kind", "text"):
        parts.setdefault(part, (kind, []))[1].append(text)
    if not parts:
        return [], []
    chunks.delete()
    text = "\n\n".join("".join(pieces) for kind, pieces in parts.values() if kind == "text")
    thinking = "\n\n".join("".join(pieces) for kind, pieces in parts.values() if kind == "thinking")
    unfinished = [
        "".join(pieces) for kind, pieces in parts.values() if kind not in ("text", "thinking")
    ]
    if not text and not thinking and not unfinished:
        return [], []
    metadata = {"thinking": thinking, "unfinished_calls": unfinished}
    appended = append(
        session_pk,
        session_uuid=session,
        turns=[
            NewTurn(
                role="assistant",
                content=text,
                token_count=estimate_tokens(text),
                complete=False,
                metadata=dump_json({name: value for name, value in metadata.items() if value}),
            )
        ],
        events=[NewEvent(payload=AssistantText(text=text, thinking=thinking, partial=True), new=0)]
        if text or thinking
        else [],
    )
    return appended.turns, appended.rows


INTERRUPTED_TEXT = (
    "The server stopped while this answer was being written. What had arrived is kept."
)


def interrupt_run(run_pk: int) -> list[Row]:
    """End a run whose process is gone: its draft becomes a partial turn, and a row
    offers to go on. Returns the rows; none when it had ended meanwhile."""
    with transaction.atomic():
        run = Run.objects.select_related("session").filter(pk=run_pk).first()
        if run is None:
            return []
        _lock_session(run.session_id)
        changed = Run.objects.filter(pk=run_pk, state__in=ACTIVE_STATES).update(
            state=states.INTERRUPTED, finished_at=timezone.now(), note=""
        )
        if not changed:
            return []
        _, rows = _keep_draft(run.pk, run.session_id, run.session.uuid)
        notice = Info(
            text=INTERRUPTED_TEXT,
            kind="interrupted",
            code="interrupted",
            action="continue",
            run=str(run.uuid),
        )
        footer = TurnSeparator(run=str(run.uuid), state=states.INTERRUPTED)
        appended = append(
            run.session_id,
            session_uuid=run.session.uuid,
            events=[NewEvent(payload=notice), NewEvent(payload=footer)],
        )
        ToolCall.objects.filter(run=run_pk, state="started").update(state="interrupted")
    return rows + appended.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRun:
    run_pk: int
    run: UUID
    session_pk: int
    session: UUID
    state: str
    owner: str
    note: str
    elapsed_ms: int
    is_stale: bool


def active_runs(
    *, stale_seconds: float, session_pks: Iterable[int] | None = None
) -> list[ActiveRun]:
    """Runs that are running or waiting for approval, in any process."""
    now = timezone.now()
    found = Run.objects.filter(state__in=ACTIVE_STATES).order_by("pk")
    if session_pks is not None:
        found = found.filter(session__in=session_pks)
    rows = found.values_list(
        "pk",
        "uuid",
        "session_id",
        "session__uuid",
        "state",
        "owner",
        "note",
        "started_at",
        "heartbeat_at",
    )
    return [
        ActiveRun(
            run_pk=pk,
            run=uuid,
            session_pk=session_pk,
            session=session,
            state=state,
            owner=owner,
            note=note,
            elapsed_ms=int((now - (started_at or now)).total_seconds() * 1000),
            is_stale=(heartbeat_at or now) < now - timedelta(seconds=stale_seconds),
        )
        for pk, uuid, session_pk, session, state, owner, note, started_at, heartbeat_at in rows
    ]


def sessions_with_queue() -> list[int]:
    """Sessions in which a run waits and none is active: somebody should claim it."""
    busy = Run.objects.filter(state__in=ACTIVE_STATES).values("session")
    waiting = Run.objects.filter(state=QUEUED).exclude(session__in=busy)
    return list(waiting.order_by("session_id").values_list("session_id", flat=True).distinct())


def get_run(uuid: UUID) -> Run:
    found = Run.objects.filter(uuid=uuid).first()
    if found is None:
        raise NotFound("There is no such run.")
    return found


def count_runs_by_state(wanted: Sequence[str]) -> dict[str, int]:
    """How many runs are in each of these (unfinished) states."""
    rows = Run.objects.filter(state__in=wanted).order_by().values_list("state")
    return dict(rows.annotate(count=Count("pk")))


def read_run_state(run_pk: int) -> str:
    return str(Run.objects.values_list("state", flat=True).get(pk=run_pk))


def read_run_events(run_pk: int) -> list[StoredEvent]:
    """The rows of a run: from its message, or where it was asked for, to its footer."""
    run = Run.objects.select_related("session").get(pk=run_pk)
    found: list[StoredEvent] = []
    after = (run.user_seq or 1) - 1
    while page := get_chat_events(run.session, after_seq=after, limit=MAX_PAGE):
        for event in page:
            found.append(event)
            if isinstance(event.payload, TurnSeparator) and event.payload.run == str(run.uuid):
                return found
        after = page[-1].seq
    return found
