"""Content of the window other than turns: loaded skills, and summaries of turns.

A summary replaces turns in the window. The turns stay in the archive.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from conversations.domain import runs as states
from conversations.domain.active_path import Ranges, are_within
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.events import Info
from conversations.domain.messages import say
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.text import dump_json, load_json
from conversations.models import Compaction, Run, Session, SessionSkill

from .append import AppendResult, NewEvent, PreparedEvent, locked_session, require_first
from .messages import AcceptedMessage, accepted_run, create_run, last_user_turn, lock_for_run
from .runs import ClaimedRun
from .turns import read_rewound

UNDONE = "compaction_undone"
NO_SUMMARY = say("This summary does not exist.")


def read_loaded_skills(session_pk: int) -> list[SessionSkill]:
    """Return the loaded skills on the session's active path, in the order of loading.

    If a skill was loaded several times, only the newest load is returned.
    """
    loaded = list(SessionSkill.objects.filter(session=session_pk).order_by("pk"))
    if not loaded:
        return []
    gone = read_rewound(session_pk, "turn")
    active = [s for s in loaded if not are_within(s.turn_number, gone)]
    newest = {skill.name: skill for skill in active}
    return [skill for skill in active if newest[skill.name] is skill]


def read_skills(pks: Sequence[int]) -> list[SessionSkill]:
    """Return these loaded skills in the order of loading."""
    return list(SessionSkill.objects.filter(pk__in=pks).order_by("pk")) if pks else []


def append_loaded_skill(
    session_pk: int, *, name: str, path: str, content: str, turn: int
) -> SessionSkill | None:
    """Store a skill that the model loads.

    Return None if the same text of the skill is already loaded on the active path.
    """
    digest = digest_of(content)
    loaded = next((s for s in read_loaded_skills(session_pk) if s.name == name), None)
    if loaded is not None and loaded.digest == digest:
        return None
    return SessionSkill.objects.create(
        session_id=session_pk,
        name=name,
        path=path,
        content=content,
        digest=digest,
        turn_number=turn,
        loaded_at=timezone.now(),
    )


def digest_of(content: str) -> str:
    return sha256(content.encode("utf-8", "replace")).hexdigest()


def read_active_compaction(session_pk: int) -> Compaction | None:
    """Return the newest summary that is neither undone nor rewound."""
    compactions = Compaction.objects.filter(session=session_pk, undone_at=None).order_by("-pk")
    gone: Ranges | None = None
    for compaction in compactions.iterator(chunk_size=5):
        if gone is None:
            gone = read_rewound(session_pk, "turn")
        # A path that contains the last summarised turn contains all of them.
        if not are_within(compaction.to_turn, gone):
            return compaction
    return None


def read_compaction(pk: int) -> Compaction:
    """Return a summary, whether it is in force or not. Raise NotFound if it does not exist."""
    return require_first(Compaction.objects.filter(pk=pk), NO_SUMMARY)


def require_compaction(session: Session, uuid: UUID) -> Compaction:
    """Return the session's summary with that UUID. Raise NotFound if there is none."""
    return require_first(Compaction.objects.filter(session=session.pk, uuid=uuid), NO_SUMMARY)


def append_compaction(
    claimed: ClaimedRun, *, new: Compaction, event: PreparedEvent
) -> AppendResult:
    """Store a summary with its row and end its run, in one transaction.

    ``new`` says which turns are summarised. The other columns are set from the run.
    """
    with locked_session(claimed.session_pk) as session:
        appended = session.append(events=[event])
        # A transaction that was rolled back may have set a primary key.
        new.pk = None
        new.session_id, new.actor_id = claimed.session_pk, claimed.user_pk
        new.created_at = timezone.now()
        new.save(force_insert=True)
        # The window now starts after the summarised turns, and shrinks by the tokens that the
        # summary saves.
        session.floor_turn = max(session.floor_turn, new.to_turn + 1)
        saved = max(0, new.before_tokens - new.after_tokens)
        if session.context_tokens > saved:
            session.context_tokens -= saved
        changed = Run.objects.filter(pk=claimed.run_pk, state__in=ACTIVE_STATES).update(
            state=states.COMPLETED, finished_at=timezone.now(), note=""
        )
        if not changed:
            raise Conflict("This run has already ended.", code="run_ended")
    return appended


def undo_compaction(session: Session, *, uuid: UUID, user_pk: int | None) -> AppendResult:
    """Undo a summary, so that the model gets the turns themselves again, as far as they fit.

    Raise NotFound if the summary does not exist. Raise Conflict if it is already undone, or if a
    later summary that was made from it is in force.
    """
    with locked_session(session.pk) as locked:
        summary = require_compaction(session, uuid)
        if summary.undone_at is not None:
            raise Conflict("This summary is already undone.", code="compaction_undone")
        newest = read_active_compaction(session.pk)
        if newest is not None and newest.pk > summary.pk:
            raise Conflict(
                "A later summary was made from this one. Undo that first.",
                code="later_compaction",
            )
        Compaction.objects.filter(pk=summary.pk).update(undone_at=timezone.now(), undone_by=user_pk)
        # If the floor is right after an undone summary, move it back to the floor before that
        # summary. Repeat this while the new floor is again right after an undone summary.
        undone = Compaction.objects.filter(session=session.pk).exclude(undone_at=None)
        floors = {end + 1: low for end, low in undone.values_list("to_turn", "floor_before")}
        floor = locked.floor_turn
        while floors.get(floor, floor) < floor:
            floor = floors[floor]
        locked.floor_turn = floor
        text = say(
            "The summary of turns %(first)s–%(last)s is undone. The model gets the turns "
            "themselves again, as far as they fit.",
            first=summary.from_turn,
            last=summary.to_turn,
        )
        return locked.append(events=[NewEvent(payload=Info(text=text, code=UNDONE))])


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """The reason for a compaction, and the window's size and floor at that time (0: not known)."""

    reason: str
    tokens: int = 0
    floor: int = 0


def request_compaction(
    session: Session, *, client_id: str, request: CompactionRequest, user_pk: int | None
) -> AcceptedMessage:
    """Queue a run that writes a summary.

    Raise Conflict while another run is active or waiting, and if the session is archived or
    expired. Raise Rejected if the session has no message yet.
    """
    with transaction.atomic():
        # A summary at the end of a session is requested by archiving, which has just closed the
        # session.
        accepted = lock_for_run(session, client_id, even_closed=request.reason == "end")
        if accepted is not None:
            return accepted
        turn = last_user_turn(session.pk)
        if turn is None:
            raise Rejected("There is nothing to summarize yet.", code="nothing_to_compact")
        text = dump_json(asdict(request))
        return accepted_run(
            create_run(session, client_id, states.COMPACT, user_pk, user_turn=turn, text=text)
        )


def read_request(run_pk: int) -> CompactionRequest:
    text = Run.objects.values_list("text", flat=True).get(pk=run_pk)
    return CompactionRequest(**load_json(text))


def read_useless_attempt(session_pk: int) -> CompactionRequest | None:
    """Return the request of the last started compaction, or None.

    None means that the compaction succeeded and its summary was not undone, or that there was none.
    """
    runs = Run.objects.filter(session=session_pk, kind=states.COMPACT)
    newest = runs.exclude(state=states.QUEUED).order_by("-pk").first()
    if newest is None:
        return None
    summary = Compaction.objects.filter(session=session_pk).order_by("-pk").first()
    is_undone = summary is not None and summary.undone_at is not None
    if newest.state == states.COMPLETED and not newest.error_code and not is_undone:
        return None
    return read_request(newest.pk)
