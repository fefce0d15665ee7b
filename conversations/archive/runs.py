"""Runs: claiming, keeping alive, finishing and recovering them.

The database allows only one active run for each session, whatever the number of processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.models import Count, F
from django.utils import timezone

from conversations.domain import runs as states
from conversations.domain.attachments import shown_attachment
from conversations.domain.events import AssistantText, Info, Payload, TurnSeparator, UserMessage
from conversations.domain.messages import say
from conversations.domain.run_transcript import SEPARATOR, SPOKEN, TEXT, THINKING
from conversations.domain.runs import (
    ACTIVE_STATES,
    QUEUED,
    RUNNING,
    RunChoices,
    read_choices,
)
from conversations.domain.text import dump_json, estimate_tokens, is_storable, load_json, storable
from conversations.domain.tool_calls import INTERRUPTED, OPEN_STATES, STOPPED, WAITING
from conversations.domain.tool_calls import RUNNING as CALL_RUNNING
from conversations.domain.turns import NewTurn
from conversations.feature import features
from conversations.models import DraftChunk, Run, ToolCall

from .append import (
    AppendResult,
    LockedSession,
    NewEvent,
    Row,
    RunLost,
    locked_session,
    moment_value,
    placeholders,
    read_moment,
)
from .asides import find_refused, make_marker
from .attachments import attachment_block, list_attachments, read_uuids, record_sent
from .journal import StoredEvent, append_draft_chunks, walk_events
from .run_transcript import Draft, add_chunks
from .tool_calls import close_open_calls
from .turns import MAX_PAGE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRun:
    """A run that this process may execute.

    ``rows`` are the rows that were appended when the run was claimed and its message became a turn.
    ``user_pk`` is the person who requested the run, ``owner`` is the process that owns it, and
    ``client_id`` is that of the request. If another process began the run, ``open_turn`` is the
    answer whose tool calls have not all been executed. For ``goes_first``, see
    :func:`conversations.archive.messages.put_first`.
    """

    run_pk: int
    run: UUID
    session_pk: int
    session: UUID
    kind: str
    user_turn: int
    user_pk: int | None
    rows: list[Row]
    title: str
    owner: str
    open_turn: int | None = None
    client_id: str
    choices: RunChoices
    goes_first: bool


# First runs whose message is already a turn, then messages that go first.
QUEUE_ORDER = (F("user_turn").asc(nulls_last=True), "-goes_first", "pk")


def has_message_to_go_first(session_pk: int) -> bool:
    """Return whether a message is to be sent before the running answer continues."""
    waiting = Run.objects.filter(session=session_pk, state=QUEUED, user_turn=None, goes_first=True)
    return waiting.exists()


def claim_next_run(session_pk: int, *, owner: str) -> ClaimedRun | None:
    """Claim the session's next queued run for this process, and make its message a turn if needed.

    Return None if no run is queued or another run is active.
    """
    if not Run.objects.filter(session=session_pk, state=QUEUED).exists():
        return None  # the usual case needs no lock
    try:
        with transaction.atomic(), locked_session(session_pk) as session:
            if Run.objects.filter(session=session_pk, state__in=ACTIVE_STATES).exists():
                return None
            queued = Run.objects.filter(session=session_pk, state=QUEUED)
            run = queued.order_by(*QUEUE_ORDER).first()
            if run is None:
                return None
            now = timezone.now()
            run.state, run.owner, run.started_at, run.heartbeat_at = RUNNING, owner, now, now
            appended = None
            if run.user_turn is None:
                appended = append_user_turn(run, session, message_text(run))
            elif run.from_seq is None:
                run.from_seq = session.next_seq
            run.save()
            return make_claimed(run, session.uuid, appended)
    except IntegrityError:
        return None


def make_claimed(run: Run, session: UUID, appended: AppendResult | None) -> ClaimedRun:
    assert run.user_turn is not None
    return ClaimedRun(
        run_pk=run.pk,
        run=run.uuid,
        session_pk=run.session_id,
        session=session,
        kind=run.kind,
        user_turn=run.user_turn,
        user_pk=run.requested_by_id,
        rows=appended.rows if appended else [],
        title=appended.title if appended else "",
        owner=run.owner,
        client_id=run.client_id,
        choices=read_choices(run.choices),
        goes_first=run.goes_first,
    )


def name_author(run: Run, *, owner_pk: int) -> str:
    """Return the author's name if the session belongs to another person, or an empty text."""
    if run.requested_by_id in (None, owner_pk):
        return ""
    assert run.requested_by is not None
    return run.requested_by.get_username()


def append_user_turn(run: Run, session: LockedSession, text: str) -> AppendResult:
    """Append the run's message as a turn and a row.

    The numbers of the turn and row are set on the run, which is not saved. If the message has
    attachments, or text that a database text column cannot store, the turn's blocks hold the
    attachments and then the exact text.
    """
    content = storable(text)
    has_files = run.attachments != "[]"
    attachments = list_attachments(session.pk, read_uuids(run)) if has_files else []
    references = [attachment_block(attachment) for attachment in attachments]
    blocks = None
    if references or not is_storable(text):
        text_blocks = [{"type": "text", "text": text}] if text.strip() or not references else []
        blocks = dump_json([*references, *text_blocks])
    message = UserMessage(
        text=content,
        client_id=run.client_id,
        by=name_author(run, owner_pk=session.owner_id),
        attachments=[shown_attachment(block) for block in references],
    )
    appended = session.append(
        turns=[
            NewTurn(
                role="user",
                content=content,
                blocks=blocks,
                token_count=estimate_tokens(content) + sum(a.tokens for a in attachments),
            )
        ],
        events=[NewEvent(payload=message, new=0)],
    )
    run.user_turn = appended.turns[0]
    run.user_seq = run.from_seq = appended.rows[0].seq if appended.rows else None
    if attachments:
        record_sent(attachments, turn=run.user_turn)
    return appended


def message_text(run: Run) -> str:
    """Return a run's message exactly as it was sent."""
    return str(load_json(run.text, default=""))


def choose_for_run(run_pk: int, *, choices: RunChoices) -> None:
    """Store the choices for the run's further answers, together with the first choices."""
    run = Run.objects.only("choices").get(pk=run_pk)
    if read_choices(run.choices) != choices:
        run.choices = choices.after(run.choices)
        run.save(update_fields=["choices"])


def record_run_note(run_pk: int, *, note: str) -> None:
    """Set the note of an active run, for example while it waits to retry. All pages show it."""
    Run.objects.filter(pk=run_pk, state__in=ACTIVE_STATES).update(note=note[:255])


def request_stop(session_pk: int, *, only: UUID | None = None) -> int:
    """Ask the active run to stop, whichever process executes it, and return how many were asked.

    If ``only`` is given, ask only that run.
    """
    active = Run.objects.filter(session=session_pk, state__in=ACTIVE_STATES, stop_requested_at=None)
    runs = active if only is None else active.filter(uuid=only)
    return runs.update(stop_requested_at=timezone.now())


def is_stop_requested(run_pk: int) -> bool:
    return Run.objects.filter(pk=run_pk).exclude(stop_requested_at=None).exists()


def record_heartbeat(run_pks: Sequence[int], *, owner: str) -> set[int]:
    """Record that these runs are alive, and return the runs that this process must end.

    Those are the runs that were asked to stop, and those that ended or were taken over by another
    process.
    """
    runs = Run.objects.filter(pk__in=run_pks, owner=owner, state__in=ACTIVE_STATES)
    runs.update(heartbeat_at=timezone.now())
    return set(run_pks) - set(runs.filter(stop_requested_at=None).values_list("pk", flat=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun(AppendResult):
    """The result of finishing a run. ``has_queued`` says whether another run waits."""

    has_queued: bool


def finish_run(
    claimed: ClaimedRun,
    *,
    state: str,
    payloads: Sequence[Payload],
    error_code: str = "",
    is_refused: bool = False,
    draft: Sequence[DraftChunk] = (),
    outputs: Mapping[int, str] | None = None,
) -> FinishedRun:
    """End a run with its last rows (footer, notice), in one transaction.

    A draft that is still stored becomes a partial turn first, so that no shown text is lost.
    ``draft`` holds the pieces of the draft that are not stored yet. Open tool calls end with the
    run; ``outputs`` holds the output that each has shown, by primary key. If ``is_refused``, the
    new turns of the last request are set aside. Raise RunLost if the run has ended or belongs to
    another process.
    """
    with locked_session(claimed.session_pk) as session:
        session.cursor.execute(
            _END_RUN,
            [
                *(state, moment_value(timezone.now()), error_code),
                *(claimed.run_pk, claimed.owner, *ACTIVE_STATES),
                *(claimed.run_pk, claimed.run_pk, *OPEN_STATES),
                *(session.pk, QUEUED),
            ],
        )
        ended = session.cursor.fetchone()
        if ended is None:
            raise RunLost
        has_draft, has_calls, has_queued = ended
        turns: list[int] = []
        rows: list[Row] = []
        if draft or has_draft:
            append_draft_chunks(draft)
            partial = _append_draft(session, claimed.run_pk)
            turns, rows = partial.turns, partial.rows
        if has_calls:
            call_state = INTERRUPTED if state == states.INTERRUPTED else STOPPED
            rows += close_open_calls(session, claimed.run_pk, state=call_state, outputs=outputs)
        events = [NewEvent(payload=payload) for payload in payloads]
        refused = find_refused(session.pk) if is_refused else None
        if refused is not None:
            marker, notice = make_marker(*refused, is_aside=True)
            events.insert(0, notice)  # the last two rows must be those that offer the next step
        rows += session.append(turns=[marker] if refused else [], events=events).rows
        session.save()
        for feature in features():
            feature.on_run_finished(claimed.run_pk, claimed.session_pk)
    return FinishedRun(turns=turns, rows=rows, has_queued=bool(has_queued))


# One statement, so that a run without a draft, open calls and queued runs needs no further queries.
_END_RUN = f"""
UPDATE conversations_run SET state = %s, finished_at = %s, error_code = %s, note = ''
WHERE id = %s AND owner = %s AND state IN ({placeholders(ACTIVE_STATES)})
RETURNING EXISTS(SELECT 1 FROM conversations_draftchunk WHERE run_id = %s),
 EXISTS(SELECT 1 FROM conversations_toolcall
        WHERE run_id = %s AND state IN ({placeholders(OPEN_STATES)})),
 EXISTS(SELECT 1 FROM conversations_run q WHERE q.session_id = %s AND q.state = %s)
"""  # noqa: S608 (nothing but placeholders)


def _append_draft(session: LockedSession, run_pk: int) -> AppendResult:
    chunks = DraftChunk.objects.filter(run=run_pk).order_by("ordinal")
    draft: Draft = {}
    add_chunks(draft, list(chunks.values_list("ordinal", "part", "kind", "text")))
    chunks.delete()
    parts = [(kind, "".join(pieces)) for kind, pieces in draft.values()]
    text, thinking = (
        SEPARATOR.join(piece for kind, piece in parts if kind == part_kind)
        for part_kind in (TEXT, THINKING)
    )
    unfinished = [piece for kind, piece in parts if kind not in SPOKEN]
    if not text and not thinking and not unfinished:
        return AppendResult(turns=[], rows=[])
    spoken = [(kind, len(piece)) for kind, piece in parts if kind in SPOKEN]
    metadata = {
        "thinking": thinking,
        "unfinished_calls": unfinished,
        "parts": spoken if len(spoken) > 1 else None,
    }
    turn = NewTurn(
        role="assistant",
        content=text,
        token_count=estimate_tokens(text),
        complete=False,
        metadata=dump_json({name: value for name, value in metadata.items() if value}),
    )
    row = AssistantText(text=text, thinking=thinking, partial=True)
    events = [NewEvent(payload=row, new=0)] if text or thinking else []
    return session.append(turns=[turn], events=events)


# The causes why a run could not be finished. The text of the run's notice begins with the cause.
SERVER_STOPPED = say("The server stopped")
SERVER_FAILED = say("The server failed")
DATABASE_AWAY = say("The database could not be reached")


def make_interrupted_notice(run: UUID, *, cause: str = SERVER_STOPPED) -> Info:
    return Info(
        text=say("%(cause)s during this answer. Everything above is saved.", cause=cause),
        kind="interrupted",
        code="interrupted",
        action="continue",
        run=str(run),
    )


def make_interrupted_summary_notice(*, cause: str = SERVER_STOPPED) -> Info:
    text = say("%(cause)s while a summary was being written. Nothing has changed.", cause=cause)
    return Info(text=text, code="compaction_interrupted")


def interrupt_run(
    run_pk: int,
    *,
    owner: str,
    draft: Sequence[DraftChunk] = (),
    cause: str = SERVER_STOPPED,
) -> list[Row]:
    """End a run that its process could not finish.

    The run's draft becomes a partial turn, and a row offers to continue. ``draft`` holds the pieces
    of the draft that are not stored yet. Return the appended rows, or an empty list if the run has
    ended or no longer belongs to ``owner``.
    """
    run = Run.objects.filter(pk=run_pk).first()
    if run is None:
        return []
    with locked_session(run.session_id) as session:
        # Another process that recovers runs at the same time may have adopted this run.
        owned = Run.objects.filter(pk=run_pk, owner=owner, state__in=ACTIVE_STATES)
        if not owned.update(state=states.INTERRUPTED, finished_at=timezone.now(), note=""):
            return []
        append_draft_chunks(draft)
        rows = _append_draft(session, run_pk).rows
        rows += close_open_calls(session, run_pk, state=INTERRUPTED)
        payloads: list[Payload] = []
        if run.kind == states.COMPACT:
            payloads.append(make_interrupted_summary_notice(cause=cause))
        else:
            footer = TurnSeparator(run=str(run.uuid), state=states.INTERRUPTED)
            payloads += [make_interrupted_notice(run.uuid, cause=cause), footer]
        rows += session.append(events=[NewEvent(payload=payload) for payload in payloads]).rows
        session.save()
        for feature in features():
            feature.on_run_finished(run_pk, run.session_id)
    return rows


def adopt_run(run_pk: int, *, owner: str, new_owner: str) -> ClaimedRun | None:
    """Take over a run that waits for a person and whose process is gone.

    A tool call that was running is interrupted, because it must not be executed twice. Return None
    if nothing in the run waits for a person, or if the run no longer belongs to ``owner``.
    """
    run = Run.objects.filter(pk=run_pk).first()
    if run is None:
        return None
    with locked_session(run.session_id) as session:
        waiting = ToolCall.objects.filter(run=run_pk, state=WAITING).order_by("-turn_number")
        turn = waiting.values_list("turn_number", flat=True).first()
        owned = Run.objects.filter(pk=run_pk, owner=owner, state__in=ACTIVE_STATES)
        if turn is None or not owned.update(
            owner=new_owner, heartbeat_at=timezone.now(), state=states.WAITING_APPROVAL
        ):
            return None
        run.refresh_from_db()
        rows = close_open_calls(session, run_pk, state=INTERRUPTED, only=(CALL_RUNNING,))
    return replace(make_claimed(run, session.uuid, None), rows=rows, open_turn=turn)


def release_run(claimed: ClaimedRun, *, outputs: Mapping[int, str]) -> list[Row] | None:
    """Release a run that waits for a person, so that another process can adopt it.

    Its running tool calls are interrupted. Return None if nothing waits. Raise RunLost if the run
    has ended or belongs to another process.
    """
    with locked_session(claimed.session_pk) as session:
        owned = Run.objects.filter(pk=claimed.run_pk, owner=claimed.owner, state__in=ACTIVE_STATES)
        if not owned.exists():
            raise RunLost
        if not ToolCall.objects.filter(run=claimed.run_pk, state=WAITING).exists():
            return None
        rows = close_open_calls(
            session, claimed.run_pk, state=INTERRUPTED, only=(CALL_RUNNING,), outputs=outputs
        )
        owned.update(owner="", state=states.WAITING_APPROVAL)
    return rows


def drop_draft_of_ended(run_pk: int) -> None:
    """Delete draft pieces that were stored after another process had ended the run."""
    DraftChunk.objects.filter(run=run_pk, run__state__in=states.FINAL_STATES).delete()


def unclaim_run(claimed: ClaimedRun) -> None:
    """Release a run that was claimed but not begun, so that another process can claim it.

    The run waits as before, in the queue or for a person.
    """
    state = QUEUED if claimed.open_turn is None else states.WAITING_APPROVAL
    owned = Run.objects.filter(pk=claimed.run_pk, owner=claimed.owner, state__in=ACTIVE_STATES)
    owned.update(owner="", state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRun:
    run_pk: int
    run: UUID
    session_pk: int
    state: str
    owner: str
    note: str
    elapsed_ms: int
    is_stale: bool


# These frequent queries use raw SQL, because Django takes ten times as long to build the statement
# as the database takes to answer it. The states are literals, as in the conditions of the indexes.
_ACTIVE = ", ".join(f"'{state}'" for state in ACTIVE_STATES)
_ACTIVE_RUNS = (
    "SELECT r.id, r.uuid, r.session_id, r.state, r.owner, r.note, r.started_at,"  # noqa: S608
    f" r.heartbeat_at FROM conversations_run r WHERE r.state IN ({_ACTIVE})"
)
_SESSIONS_WITH_QUEUE = (
    "SELECT DISTINCT session_id FROM conversations_run q"  # noqa: S608 (constants)
    f" WHERE state = '{QUEUED}' AND NOT EXISTS (SELECT 1 FROM conversations_run r"
    f" WHERE r.session_id = q.session_id AND r.state IN ({_ACTIVE})) ORDER BY session_id"
)


def active_runs(
    *, stale_seconds: float, session_pks: Sequence[int] | None = None
) -> list[ActiveRun]:
    """Return the runs that are running or waiting for approval, in any process."""
    now, condition = timezone.now(), ""
    if session_pks is not None:
        condition = f" AND r.session_id IN ({placeholders(session_pks)})"
    with connection.cursor() as cursor:
        cursor.execute(f"{_ACTIVE_RUNS}{condition}", session_pks or ())
        rows = sorted(cursor.fetchall())  # SQLite would read all runs to sort them
    return [
        ActiveRun(
            run_pk=pk,
            run=UUID(str(run)),
            session_pk=session_pk,
            state=state,
            owner=owner,
            note=note,
            elapsed_ms=int((now - read_moment(started_at or now)).total_seconds() * 1000),
            is_stale=read_moment(heartbeat_at or now) < now - timedelta(seconds=stale_seconds),
        )
        for pk, run, session_pk, state, owner, note, started_at, heartbeat_at in rows
    ]


def sessions_with_queue() -> list[int]:
    """Return the sessions in which a run is queued and none is active."""
    with connection.cursor() as cursor:
        cursor.execute(_SESSIONS_WITH_QUEUE)
        return [pk for (pk,) in cursor.fetchall()]


def count_runs_by_state(states_to_count: Sequence[str]) -> dict[str, int]:
    """Return the number of runs in each of these states, which must not be final."""
    rows = Run.objects.filter(state__in=states_to_count).order_by().values_list("state")
    return dict(rows.annotate(count=Count("pk")))


def read_run_state(run_pk: int) -> str:
    return str(Run.objects.values_list("state", flat=True).get(pk=run_pk))


def read_run_events(run_pk: int) -> list[StoredEvent]:
    """Return the rows of a run from its message, or from where it was requested, to its footer."""
    run = Run.objects.get(pk=run_pk)
    events: list[StoredEvent] = []
    after = (run.first_seq or 1) - 1
    while page := walk_events(run.session_id, start=after, limit=MAX_PAGE_ROWS):
        for event in page:
            events.append(event)
            if isinstance(event.payload, TurnSeparator) and event.payload.run == str(run.uuid):
                return events
        after = page[-1].seq
    return events
