"""Messages of a person: accepted once, queued, withdrawn, edited, answered again.

A message is on disk before it is acknowledged. If the session is idle its turn
and row are committed with it; otherwise it waits as a queued run, and becomes a
turn when it is claimed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db import connection
from django.utils import timezone

from conversations.domain import runs as states
from conversations.domain.attachments import list_references, shown_attachment
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.runs import (
    ACTIVE_STATES,
    NO_CHOICES,
    QUEUED,
    RUNNING,
    RunChoices,
    read_first_choices,
)
from conversations.domain.text import dump_json, load_json
from conversations.models import Rewind, Run, Session, Turn

from .append import (
    ARCHIVED,
    EXPIRED,
    Appended,
    Row,
    joined_transaction,
    lock_session,
    locked_session,
)
from .attachments import attachment_block, check_attachments, list_attachments, read_uuids
from .rewinds import (
    Rewound,
    append_rewind,
    first_seq_from_turn,
    first_seq_of_answer,
    is_rewound,
)
from .runs import Claimed, append_user_turn, make_claimed, message_text


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """``attachments`` are shown as in a person's row (``domain.attachments``)."""

    run: UUID
    text: str
    client_id: str
    attachments: list[dict[str, Any]] = field(default_factory=list)


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
class Restarted:
    """A run that answers an earlier message again, and the rows it replaced."""

    accepted: Accepted
    rewound: Rewound


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
) -> Accepted:
    """Commit a person's message, once for each ``client_id``; in an idle session
    claim its run for ``owner`` in the same transaction. ``attachments`` are uuids,
    ``choices`` what is asked of the answers.

    Raises Rejected for an empty message or an attachment that is not there, Conflict
    for a session that is archived or expired and when too many messages wait already.
    Raw SQL where a first word waits for it.
    """
    if not text.strip() and not attachments:
        raise Rejected("The message is empty.", code="message_empty")
    with locked_session(session.pk) as locked:
        locked.cursor.execute(_KNOWN_AND_BUSY, [session.pk, client_id, session.pk, *_NOT_OVER])
        known_pk, busy = locked.cursor.fetchone()
        if known_pk is not None:
            return _accepted_before(Run.objects.get(pk=known_pk))
        refuse_closed(locked.closed)
        if busy > max_queued:
            raise Conflict(
                f"{busy - 1} messages wait already. Withdraw one, or wait for an answer.",
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
            requested_by_id=user_pk,
            created_at=timezone.now(),
        )
        appended = None if busy else append_user_turn(run, locked, text)
        if not busy and owner:
            run.state, run.owner = RUNNING, owner
            run.started_at = run.heartbeat_at = run.created_at
        values = [
            one.get_db_prep_save(getattr(run, one.attname), connection) for one in _RUN_FIELDS
        ]
        locked.cursor.execute(_INSERT_RUN, values)
        run.pk = locked.cursor.fetchone()[0]
        claimed = make_claimed(run, session.uuid, appended) if run.state == RUNNING else None
        return _accepted(run, appended, claimed=claimed)


_NOT_OVER = (*ACTIVE_STATES, QUEUED)

# The run of this client_id, if any, and how many runs are not over.
_KNOWN_AND_BUSY = (
    "SELECT (SELECT id FROM conversations_run WHERE session_id = %s AND client_id = %s),"
    " (SELECT COUNT(*) FROM conversations_run WHERE session_id = %s AND state IN (%s, %s, %s))"
)

_RUN_FIELDS = [field for field in Run._meta.concrete_fields if not field.primary_key]

_INSERT_RUN = (
    f"INSERT INTO conversations_run ({', '.join(str(one.column) for one in _RUN_FIELDS)})"  # noqa: S608 (columns of the model)
    f" VALUES ({', '.join(['%s'] * len(_RUN_FIELDS))}) RETURNING id"
)


def refuse_closed(closed: str) -> None:
    """Raises Conflict for a session that nobody goes on with. ``closed`` is what
    :func:`lock_session` said."""
    refuse_archived(closed)
    if closed == EXPIRED:
        raise Conflict(
            "This session has expired. Start a new one; this one stays readable.",
            code="session_expired",
        )


def refuse_archived(closed: str) -> None:
    """Raises Conflict for a session that is archived."""
    if closed == ARCHIVED:
        raise Conflict(
            "This session is archived. Unarchive it to continue.", code="session_archived"
        )


def find_accepted(session: Session, client_id: str) -> Accepted | None:
    """What became of the request with this ``client_id``, if there was one."""
    run = Run.objects.filter(session=session.pk, client_id=client_id).first()
    return None if run is None else _accepted_before(run)


def _accepted_before(run: Run) -> Accepted:
    return replace(_accepted(run, None), is_new=False)


def was_sent_before(run_pk: int, *, text: str, attachments: Sequence[str]) -> bool:
    """Whether that run is of the same message: of the same text and files, even if those
    were kept once more meanwhile."""
    run = Run.objects.get(pk=run_pk)
    if run.kind != states.MESSAGE or message_text(run) != text:
        return False
    known = read_uuids(run)
    return known == list(attachments) or _digests(run, known) == _digests(run, attachments)


def _digests(run: Run, attachments: Sequence[str]) -> list[str]:
    return [one.digest for one in list_attachments(run.session_id, attachments)]


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
    return queued_messages_of([session_pk]).get(session_pk, [])


def queued_messages_of(session_pks: Sequence[int]) -> dict[int, list[QueuedMessage]]:
    """The same for many sessions at once; those without any are left out."""
    waiting: dict[int, list[QueuedMessage]] = {}
    runs = Run.objects.filter(
        session__in=session_pks, state=QUEUED, user_turn=None, kind=states.MESSAGE
    )
    for run in runs.order_by("pk"):
        message = QueuedMessage(
            run=run.uuid,
            text=message_text(run),
            client_id=run.client_id,
            attachments=_shown_attachments(run),
        )
        waiting.setdefault(run.session_id, []).append(message)
    return waiting


def _shown_attachments(run: Run) -> list[dict[str, Any]]:
    uuids = read_uuids(run)
    found = list_attachments(run.session_id, uuids) if uuids else []
    return [shown_attachment(attachment_block(attachment)) for attachment in found]


def edit_message(
    session: Session, *, client_id: str, turn: int, text: str, user_pk: int | None
) -> Restarted:
    """Replace a person's message and all that follows: a rewind, then a new turn. What
    was attached stays attached.

    Raises Rejected when the turn is not a message of the person on the active
    path, Conflict while a run is active.
    """
    with joined_transaction():
        closed = lock_session(session.pk)
        known = find_accepted(session, client_id)
        if known is not None:
            return Restarted(accepted=known, rewound=Rewound(from_seq=1, to_seq=0))
        refuse_closed(closed)
        refuse_busy(session.pk)
        attached = _attached_to(session, turn)
        if not text.strip() and not attached:
            raise Rejected("The message is empty.", code="message_empty")
        _require_active_user_turn(session, turn)
        rewound = append_rewind(
            session,
            from_turn=turn,
            from_seq=first_seq_from_turn(session.pk, turn),
            reason=Rewind.Reason.EDIT,
            actor_pk=user_pk,
        )
        run = _create_run(
            session,
            client_id,
            states.MESSAGE,
            user_pk,
            text=dump_json(text),
            attachments=dump_json(attached),
        )
        with locked_session(session.pk) as locked:  # as the rewind has left it
            appended = append_user_turn(run, locked, text)
        run.save(update_fields=["user_turn", "user_seq", "from_seq"])
        return Restarted(accepted=_accepted(run, appended), rewound=rewound)


def regenerate(
    session: Session,
    *,
    client_id: str,
    turn: int | None,
    user_pk: int | None,
    choices: RunChoices | None = None,
) -> Restarted:
    """Answer a message of the person anew; what followed it is rewound.

    ``turn`` None means the last message, ``choices`` None what it came with.
    Raises as :func:`edit_message`.
    """
    with joined_transaction():
        closed = lock_session(session.pk)
        known = find_accepted(session, client_id)
        if known is not None:
            return Restarted(accepted=known, rewound=Rewound(from_seq=1, to_seq=0))
        refuse_closed(closed)
        refuse_busy(session.pk)
        chosen = turn if turn is not None else last_user_turn(session.pk)
        if chosen is None:
            raise Rejected("There is no message to answer yet.", code="nothing_to_answer")
        _require_active_user_turn(session, chosen)
        rewound = append_rewind(
            session,
            from_turn=chosen + 1,
            from_seq=first_seq_of_answer(session.pk, chosen),
            reason=Rewind.Reason.REGENERATE,
            actor_pk=user_pk,
        )
        asked = choices or read_first_choices(_choices_for(session.pk, chosen))
        run = _create_run(
            session,
            client_id,
            states.REGENERATE,
            user_pk,
            user_turn=chosen,
            choices=asked.as_text(),
        )
        return Restarted(accepted=_accepted(run, None), rewound=rewound)


def create_run(
    session: Session, client_id: str, kind: str, user_pk: int | None, **fields: Any
) -> Accepted:
    """Queue a run that belongs to a message which is a turn already."""
    return _accepted(_create_run(session, client_id, kind, user_pk, **fields), None)


def continue_run(session: Session, *, client_id: str, user_pk: int | None) -> Accepted:
    """Go on after an answer that was cut off. Raises Conflict while a run is active,
    Rejected when there is nothing to go on from."""
    with joined_transaction():
        closed = lock_session(session.pk)
        known = find_accepted(session, client_id)
        if known is not None:
            return known
        refuse_closed(closed)
        refuse_busy(session.pk)
        turn = last_user_turn(session.pk)
        if turn is None:
            raise Rejected("There is nothing to go on from yet.", code="nothing_to_answer")
        asked = _choices_for(session.pk, turn)
        return create_run(
            session, client_id, states.CONTINUE, user_pk, user_turn=turn, choices=asked
        )


def _choices_for(session_pk: int, turn: int) -> str | None:
    """What was asked of the answers to a message, as the run keeps it."""
    runs = Run.objects.filter(session=session_pk, user_turn=turn, choices__isnull=False)
    return runs.order_by("-pk").values_list("choices", flat=True).first()


def rewind_session(session: Session, *, from_turn: int, actor_pk: int | None) -> Rewound:
    """Take everything from a turn on off the active path: from 1 on all, else from a
    message of the person on. The archive keeps it.

    Raises Rejected for any other turn, Conflict while a run is active and for a session
    that is archived or expired.
    """
    with joined_transaction():
        _refuse_closed_or_busy(session)
        if from_turn != 1:
            _require_active_user_turn(session, from_turn)
        return _rewind(session, from_turn, actor_pk)


def reset_session(session: Session, *, keeps_instructions: bool, actor_pk: int | None) -> Rewound:
    """Begin from the start in the same session: all its turns leave the active path, but
    for the system messages in front where ``keeps_instructions``; else its own instructions
    go too. Where nothing is to be reset, no marker is added. Raises Conflict as
    :func:`rewind_session`."""
    with joined_transaction():
        _refuse_closed_or_busy(session)
        if keeps_instructions:
            return _rewind(session, _first_after_system(session), actor_pk)
        Session.objects.filter(pk=session.pk).update(instructions="")
        return _rewind(session, 1, actor_pk)


def _refuse_closed_or_busy(session: Session) -> None:
    refuse_closed(lock_session(session.pk))
    refuse_busy(session.pk)


def _rewind(session: Session, from_turn: int, actor_pk: int | None) -> Rewound:
    return append_rewind(
        session,
        from_turn=from_turn,
        from_seq=first_seq_from_turn(session.pk, from_turn) if from_turn > 1 else 1,
        reason=Rewind.Reason.RESET,
        actor_pk=actor_pk,
    )


def _first_after_system(session: Session) -> int:
    """The turn behind the system messages in front, whether it is there yet or not."""
    others = Turn.objects.filter(session=session.pk).exclude(role="system").order_by("number")
    first = others.values_list("number", flat=True).first()
    return first or Session.objects.values_list("next_turn", flat=True).get(pk=session.pk)


def refuse_busy(session_pk: int) -> None:
    """Raises Conflict while a run is active or waits."""
    runs = Run.objects.filter(session=session_pk, state__in=(*ACTIVE_STATES, QUEUED))
    found = runs.order_by("pk").values_list("state", flat=True)[:1]
    for state in found:
        raise Conflict(
            "A call of a tool waits for your approval. Answer it, or stop the run first."
            if state == states.WAITING_APPROVAL
            else "An answer is being written. Stop it first.",
            code="session_busy",
        )


def _require_active_user_turn(session: Session, number: int) -> None:
    is_user = Turn.objects.filter(session=session.pk, number=number, role="user").exists()
    if not is_user or is_rewound(session.pk, number):
        raise Rejected(
            "This is not a message of the conversation as it stands.", code="not_a_message"
        )


def _attached_to(session: Session, number: int) -> list[str]:
    """The uuids of what is attached to a turn."""
    turns = Turn.objects.filter(session=session.pk, number=number)
    blocks = _read_list(turns.values_list("blocks", flat=True).first())
    return [str(block.get("attachment", "")) for block in list_references(blocks)]


def _read_list(text: str | None) -> list[Any]:
    try:
        value = load_json(text, default=[])
    except ValueError:
        return []
    return value if isinstance(value, list) else []


def last_user_turn(session_pk: int) -> int | None:
    """The person's last message on the active path."""
    numbers = (
        Turn.objects.filter(session=session_pk, role="user")
        .order_by("-number")
        .values_list("number", flat=True)
    )
    return next((n for n in numbers.iterator(chunk_size=50) if not is_rewound(session_pk, n)), None)
