"""Messages of a person: accepting, queueing, withdrawing, editing and answering them again.

A message is on disk before it is acknowledged. If the session is idle, the message's turn and row
are committed with it. Otherwise the message waits as a queued run and becomes a turn when the run
is claimed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db.models import F
from django.utils import timezone

from conversations.domain import runs as states
from conversations.domain.active_path import are_within
from conversations.domain.attachments import read_references, shown_attachment
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.events import WITHDRAWN, Info
from conversations.domain.messages import say
from conversations.domain.runs import (
    ACTIVE_STATES,
    NO_CHOICES,
    QUEUED,
    RUNNING,
    RunChoices,
    read_first_choices,
)
from conversations.domain.text import dump_json, storable
from conversations.models import Rewind, Run, Session, Turn

from .append import (
    ARCHIVED,
    EXPIRED,
    AppendResult,
    NewEvent,
    Row,
    has_row,
    insert_row,
    joined_transaction,
    lock_session,
    locked_session,
    placeholders,
)
from .asides import make_marker, read_aside, require_aside
from .attachments import attachment_block, check_attachments, list_attachments, read_uuids
from .rewinds import (
    NOTHING_REWOUND,
    RewindResult,
    append_rewind,
    first_seq_from_turn,
    first_seq_of_answer,
    is_rewound,
)
from .runs import (
    QUEUE_ORDER,
    ClaimedRun,
    append_user_turn,
    make_claimed,
    message_text,
    name_author,
)
from .turns import read_rewound
from .workspaces import read_username


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedMessage:
    """The result of accepting a message or another request for a run.

    ``turn`` and ``seq`` are None while the message waits. ``is_new`` is False if the same
    ``client_id`` had been accepted before. ``claimed`` is set if the session was idle and the run
    was claimed; the caller must then execute the run. ``rewound`` says which rows were replaced.
    """

    run: UUID
    run_pk: int
    client_id: str
    state: str
    turn: int | None
    seq: int | None
    is_new: bool
    rows: list[Row]
    title: str
    claimed: ClaimedRun | None
    rewound: RewindResult


def accept_message(
    session: Session,
    *,
    client_id: str,
    text: str,
    user_pk: int | None,
    max_queued: int,
    owner: str = "",
    attachments: Sequence[str] = (),
    choices: RunChoices = NO_CHOICES,
    goes_first: bool = False,
) -> AcceptedMessage:
    """Commit a person's message, once for each ``client_id``.

    If the session is idle, claim the message's run for ``owner`` in the same transaction.
    ``attachments`` are UUIDs, and ``choices`` are options for the answers. For ``goes_first``, see
    :func:`put_first`. Raise Rejected if the message is empty or an attachment does not exist. Raise
    Conflict if the session is archived or expired, or if too many messages are waiting.

    The queries that delay the first word of the answer use raw SQL.
    """
    if not text.strip() and not attachments:
        raise Rejected("The message is empty.", code="message_empty")
    with locked_session(session.pk) as locked:
        locked.cursor.execute(_ACCEPTED_AND_BUSY, [session.pk, client_id, session.pk, *_NOT_OVER])
        accepted_pk, busy = locked.cursor.fetchone()
        if accepted_pk is not None:
            return replace(accepted_run(Run.objects.get(pk=accepted_pk)), is_new=False)
        refuse_closed(locked.closed)
        if busy > max_queued:
            raise Conflict(
                "Too many messages are already queued (%(count)s). Withdraw one, or wait for "
                "an answer.",
                count=busy - 1,
                code="queue_full",
            )
        if attachments:
            check_attachments(session.pk, attachments, user_pk=user_pk)
        run = Run(
            session=session,
            client_id=client_id,
            kind=states.MESSAGE,
            state=QUEUED,
            text=dump_json(text),
            attachments=dump_json(list(dict.fromkeys(attachments))),
            choices=choices.as_text(),
            goes_first=goes_first,
            requested_by_id=user_pk,
            created_at=timezone.now(),
        )
        appended = None if busy else append_user_turn(run, locked, text)
        if not busy and owner:
            run.state, run.owner = RUNNING, owner
            run.started_at = run.heartbeat_at = run.created_at
        insert_row(run)
        claimed = make_claimed(run, session.uuid, appended) if run.state == RUNNING else None
        return accepted_run(run, appended, claimed=claimed)


_NOT_OVER = (*ACTIVE_STATES, QUEUED)

# The run with this client_id, if there is one, and the number of active and queued runs.
_ACCEPTED_AND_BUSY = (
    "SELECT (SELECT id FROM conversations_run WHERE session_id = %s AND client_id = %s),"
    " (SELECT COUNT(*) FROM conversations_run WHERE session_id = %s AND state IN (%s, %s, %s))"
)


def refuse_closed(closed: Collection[str]) -> None:
    """Raise Conflict if the session cannot be continued.

    ``closed`` is the result of :func:`lock_session`.
    """
    if EXPIRED in closed:  # check this first, because unarchiving would not help
        raise Conflict(
            "This session has expired and is read-only. Start a new one.",
            code="session_expired",
        )
    refuse_archived(closed)


def refuse_archived(closed: Collection[str]) -> None:
    """Raise Conflict if the session is archived."""
    if ARCHIVED in closed:
        raise Conflict(
            "This session is archived. Unarchive it to continue.", code="session_archived"
        )


def find_accepted(session: Session, client_id: str) -> AcceptedMessage | None:
    """Return the earlier result of the request with this ``client_id``, or None."""
    run = Run.objects.filter(session=session.pk, client_id=client_id).first()
    return None if run is None else replace(accepted_run(run), is_new=False)


def lock_for_run(
    session: Session, client_id: str, *, even_closed: bool = False
) -> AcceptedMessage | None:
    """Lock a session for a new run.

    If the same request was accepted before, return its result. Otherwise raise Conflict if a run is
    active or waiting, or if the session is archived or expired (unless ``even_closed``).
    """
    closed = lock_session(session.pk)
    accepted = find_accepted(session, client_id)
    if accepted is None:
        if not even_closed:
            refuse_closed(closed)
        refuse_busy(session.pk)
    return accepted


def was_sent_before(run_pk: int, *, text: str, attachments: Sequence[str]) -> bool:
    """Return whether the run is of a message with the same text and files.

    Files are compared by content, because the same files may have been uploaded again.
    """
    run = Run.objects.get(pk=run_pk)
    if run.kind != states.MESSAGE or message_text(run) != text or _edited_turn(run) is not None:
        return False
    uuids = read_uuids(run)
    if uuids == list(attachments):
        return True
    sent = list_attachments(run.session_id, uuids)
    repeated = list_attachments(run.session_id, attachments)
    return [file.digest for file in sent] == [file.digest for file in repeated]


def was_begun_before(run_pk: int, *, kind: str, turn: int | None, text: str) -> bool:
    """Return whether the run was started by the same request.

    For the kind ``message``, the request is an edit of ``turn`` to ``text``. For the kind
    ``regenerate``, it is a new answer to ``turn``, where None means the last message.
    """
    run = Run.objects.get(pk=run_pk)
    if run.kind == kind == states.MESSAGE:
        return _edited_turn(run) == turn and message_text(run) == text
    return run.kind == kind and (kind != states.REGENERATE or turn in (None, run.user_turn))


def _edited_turn(run: Run) -> int | None:
    """Return the turn that the run's message replaced, or None if it did not replace one."""
    if run.user_turn is None:
        return None
    edits = Rewind.objects.filter(
        session=run.session_id, reason=Rewind.Reason.EDIT, to_turn=run.user_turn - 1
    )
    return edits.order_by("-pk").values_list("from_turn", flat=True).first()


def create_run(
    session: Session, client_id: str, kind: str, user_pk: int | None, **fields: Any
) -> Run:
    """Queue a run for a message that is already a turn or becomes one."""
    return Run.objects.create(
        session=session,
        client_id=client_id,
        kind=kind,
        state=QUEUED,
        requested_by_id=user_pk,
        created_at=timezone.now(),
        **fields,
    )


def accepted_run(
    run: Run,
    appended: AppendResult | None = None,
    *,
    claimed: ClaimedRun | None = None,
    rewound: RewindResult = NOTHING_REWOUND,
) -> AcceptedMessage:
    """Return the result for a run that was just queued."""
    return AcceptedMessage(
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
        rewound=rewound,
    )


def withdraw_message(session: Session, *, run: UUID, user_pk: int) -> tuple[str, list[Row]]:
    """Withdraw a waiting message on behalf of this person.

    Return the message's ``client_id``. If another person wrote the message, also return the row
    that keeps its text. Raise Conflict if the message no longer waits. The message stays in the
    archive as a run that was stopped before it began.
    """
    # Lock the session, because another process that has just read the message as waiting would
    # otherwise execute it.
    with locked_session(session.pk) as locked:
        queued = Run.objects.filter(session=session.pk, uuid=run, state=QUEUED, user_turn=None)
        waiting = queued.select_related("requested_by").first()
        if waiting is None:
            raise Conflict("This message is no longer queued.", code="not_queued")
        queued.update(state=states.STOPPED, finished_at=timezone.now(), note="withdrawn")
        if waiting.requested_by_id in (None, user_pk):
            return waiting.client_id, []
        notice = NewEvent(payload=_make_withdrawn_notice(waiting, by=read_username(user_pk)))
        return waiting.client_id, locked.append(events=[notice]).rows


def _make_withdrawn_notice(run: Run, *, by: str) -> Info:
    assert run.requested_by is not None
    author = run.requested_by.get_username()
    names = ", ".join(file.name for file in list_attachments(run.session_id, read_uuids(run)))
    return Info(
        text=say(
            "%(name)s withdrew a message by %(author)s before it was sent.", name=by, author=author
        ),
        code=WITHDRAWN,
        detail="\n\n".join(filter(None, (storable(message_text(run)), names))),
        data={"run": str(run.uuid)},
    )


def put_first(session: Session, *, run: UUID) -> UUID | None:
    """Move a waiting message to the front of the queue.

    The message is then sent at the next tool call of the running answer, or when the answer ends.
    Return the active run, or None if there is none. Raise Conflict if the message no longer waits.
    """
    with joined_transaction():
        waiting = Run.objects.filter(session=session.pk, uuid=run, state=QUEUED, user_turn=None)
        if not waiting.filter(kind=states.MESSAGE).update(goes_first=True):
            raise Conflict("This message is no longer queued.", code="not_queued")
        active = Run.objects.filter(session=session.pk, state__in=ACTIVE_STATES)
        return active.values_list("uuid", flat=True).first()


_QUEUED_IN = f"SELECT 1 FROM conversations_run WHERE state = '{QUEUED}' AND session_id IN"  # noqa: S608


def queued_messages(session_pk: int) -> list[dict[str, Any]]:
    """Return the messages that wait for a run to end, in order.

    Each dict has ``run`` (the run's UUID), ``text``, ``client_id``, ``now`` (whether the message
    goes first), ``author`` (the author's id, or empty if there is none) and ``by`` (the author's
    name if the session belongs to another person). If the message has attachments, ``attachments``
    has the shape that a person's row has (``domain.attachments``).
    """
    return queued_messages_of([session_pk]).get(session_pk, [])


def queued_messages_of(session_pks: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """Return the waiting messages of many sessions; sessions without any are left out."""
    if not has_row(f"{_QUEUED_IN} ({placeholders(session_pks)}) LIMIT 1", session_pks):
        return {}  # the usual case
    messages: dict[int, list[dict[str, Any]]] = {}
    runs = Run.objects.filter(
        session__in=session_pks, state=QUEUED, user_turn=None, kind=states.MESSAGE
    )
    runs = runs.select_related("requested_by").annotate(owner_pk=F("session__owner"))
    for run in runs.order_by(*QUEUE_ORDER):
        message = dict[str, Any](
            run=str(run.uuid),
            text=message_text(run),
            client_id=run.client_id,
            now=run.goes_first,
            author=str(run.requested_by_id or ""),
            by=name_author(run, owner_pk=run.owner_pk),
        )
        uuids = read_uuids(run)
        files = list_attachments(run.session_id, uuids) if uuids else []
        if files:
            message["attachments"] = [shown_attachment(attachment_block(file)) for file in files]
        messages.setdefault(run.session_id, []).append(message)
    return messages


def edit_message(
    session: Session, *, client_id: str, turn: int, text: str, user_pk: int | None
) -> AcceptedMessage:
    """Replace a person's message and everything after it by a rewind and a new turn.

    The message's attachments stay attached. Raise Rejected if the turn is not a message of the
    person on the active path. Raise Conflict if a run is active or waiting, or if the session is
    archived or expired.
    """
    with joined_transaction():
        accepted = lock_for_run(session, client_id)
        if accepted is not None:
            return accepted
        turns = Turn.objects.filter(session=session.pk, number=turn)
        references = read_references(turns.values_list("blocks", flat=True).first())
        uuids = [str(block.get("attachment", "")) for block in references]
        if not text.strip() and not uuids:
            raise Rejected("The message is empty.", code="message_empty")
        _require_active_user_turn(session, turn)
        rewound = _rewind(session, turn, user_pk, reason=Rewind.Reason.EDIT)
        run = create_run(
            session,
            client_id,
            states.MESSAGE,
            user_pk,
            text=dump_json(text),
            attachments=dump_json(uuids),
        )
        with locked_session(session.pk) as locked:  # reads the session as the rewind left it
            appended = append_user_turn(run, locked, text)
        run.save(update_fields=["user_turn", "user_seq", "from_seq"])
        return accepted_run(run, appended, rewound=rewound)


def regenerate(
    session: Session,
    *,
    client_id: str,
    turn: int | None,
    user_pk: int | None,
    choices: RunChoices | None = None,
) -> AcceptedMessage:
    """Answer a message of the person again, and rewind everything after the message.

    If ``turn`` is None, use the last message. If ``choices`` is None, use the message's choices.
    Raise the errors of :func:`edit_message`.
    """
    with joined_transaction():
        accepted = lock_for_run(session, client_id)
        if accepted is not None:
            return accepted
        answered = turn if turn is not None else last_user_turn(session.pk)
        if answered is None:
            raise Rejected("There is no message to answer yet.", code="nothing_to_answer")
        _require_active_user_turn(session, answered)
        rewound = append_rewind(
            session,
            from_turn=answered + 1,
            from_seq=first_seq_of_answer(session.pk, answered),
            reason=Rewind.Reason.REGENERATE,
            actor_pk=user_pk,
        )
        chosen = choices or read_first_choices(_choices_for(session.pk, answered))
        run = create_run(
            session,
            client_id,
            states.REGENERATE,
            user_pk,
            user_turn=answered,
            choices=chosen.as_text(),
        )
        return accepted_run(run, rewound=rewound)


def continue_run(
    session: Session, *, client_id: str, user_pk: int | None, choices: RunChoices | None = None
) -> AcceptedMessage:
    """Continue after an answer that was cut off.

    If ``choices`` is None, use the choices of the earlier request. Raise Rejected if there is
    nothing to continue. Raise Conflict if a run is active or waiting, or if the session is archived
    or expired.
    """
    with joined_transaction():
        accepted = lock_for_run(session, client_id)
        if accepted is not None:
            return accepted
        turn = last_user_turn(session.pk)
        if turn is None:
            raise Rejected("There is nothing to continue yet.", code="nothing_to_answer")
        if are_within(turn, read_aside(session.pk)):
            text = say("The last message was refused. Retry it, edit it, or send another.")
            raise Rejected(text, code="nothing_to_answer")
        chosen = _choices_for(session.pk, turn)
        if choices is not None:
            chosen = choices.after(chosen)
        return accepted_run(
            create_run(session, client_id, states.CONTINUE, user_pk, user_turn=turn, choices=chosen)
        )


def _choices_for(session_pk: int, turn: int) -> str | None:
    runs = Run.objects.filter(session=session_pk, user_turn=turn, choices__isnull=False)
    return runs.order_by("-pk").values_list("choices", flat=True).first()


def rewind_session(session: Session, *, from_turn: int, actor_pk: int | None) -> RewindResult:
    """Take all turns from ``from_turn`` on off the active path; they stay in the archive.

    ``from_turn`` is 1 or a message of the person. Raise Rejected for any other turn. Raise Conflict
    if a run is active or waiting, or if the session is archived or expired.
    """
    with joined_transaction():
        refuse_closed(lock_session(session.pk))
        refuse_busy(session.pk)
        if from_turn != 1:
            _require_active_user_turn(session, from_turn)
        return _rewind(session, from_turn, actor_pk)


def reset_session(
    session: Session, *, keeps_instructions: bool, actor_pk: int | None
) -> RewindResult:
    """Take all turns of the session off the active path, so that the session starts again.

    If ``keeps_instructions``, system messages at the beginning stay. Otherwise the session's own
    instructions are deleted too. If there is nothing to reset, no marker is added. Raise Conflict
    in the same cases as :func:`rewind_session`.
    """
    with joined_transaction():
        refuse_closed(lock_session(session.pk))
        refuse_busy(session.pk)
        if not keeps_instructions:
            Session.objects.filter(pk=session.pk).update(instructions="")
            return _rewind(session, 1, actor_pk)
        others = Turn.objects.filter(session=session.pk).exclude(role="system").order_by("number")
        first = others.values_list("number", flat=True).first()
        if first is None:  # all turns are system messages, so rewind only later ones
            first = Session.objects.values_list("next_turn", flat=True).get(pk=session.pk)
        return _rewind(session, first, actor_pk)


def include_turn(session: Session, *, turn: int) -> AppendResult:
    """Send the turn to the model again, together with the other turns of its aside.

    Raise Rejected if the turn is not in an aside. Raise Conflict if a run is active or waiting, or
    if the session is archived or expired.
    """
    with locked_session(session.pk) as locked:
        refuse_closed(locked.closed)
        refuse_busy(session.pk)
        marker, notice = make_marker(*require_aside(session.pk, turn), is_aside=False)
        return locked.append(turns=[marker], events=[notice])


def _rewind(
    session: Session, from_turn: int, actor_pk: int | None, *, reason: str = Rewind.Reason.RESET
) -> RewindResult:
    # If all turns are rewound, also rewind the rows before the first turn's row.
    from_seq = first_seq_from_turn(session.pk, from_turn) if from_turn > 1 else 1
    return append_rewind(
        session, from_turn=from_turn, from_seq=from_seq, reason=reason, actor_pk=actor_pk
    )


def refuse_busy(session_pk: int) -> None:
    """Raise Conflict if a run is active or waiting."""
    runs = Run.objects.filter(session=session_pk, state__in=_NOT_OVER)
    state = runs.order_by("pk").values_list("state", flat=True).first()
    if state is None:
        return
    if state == states.WAITING_APPROVAL:
        text = say("A tool call needs your approval. Answer it, or stop the run first.")
    else:
        text = say("An answer is still running. Stop it first.")
    raise Conflict(text, code="session_busy")


def _require_active_user_turn(session: Session, number: int) -> None:
    is_user = Turn.objects.filter(session=session.pk, number=number, role="user").exists()
    if not is_user or is_rewound(session.pk, number):
        raise Rejected(
            "This message is not part of the current conversation.", code="not_a_message"
        )


def last_user_turn(session_pk: int) -> int | None:
    """Return the number of the person's last message on the active path, or None."""
    numbers = (
        Turn.objects.filter(session=session_pk, role="user")
        .order_by("-number")
        .values_list("number", flat=True)
    )
    gone = read_rewound(session_pk, "turn")
    return next((n for n in numbers.iterator(chunk_size=50) if not are_within(n, gone)), None)
