"""What a run has answered by now, for a program that asked for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import FilteredRelation, Min, Q

from conversations.domain.errors import NotFound
from conversations.domain.events import APPROVAL, INFO, TURN_SEPARATOR, USER_MESSAGE
from conversations.domain.run_transcript import SPOKEN, AnswerPart, StoryRow, parts_of_turn
from conversations.domain.runs import COMPACT, FINAL_STATES
from conversations.models import ChatEvent, Run, Session, Turn

from .journal import RawEvent, read_raw_events

# What a run has said so far, as it is on disk: its rows, its answers, its draft.


PAGE = 200
"""Rows that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run as it stands. ``from_seq`` is its first row, None before it has one."""

    pk: int
    uuid: UUID
    session_pk: int
    session: UUID
    client_id: str
    kind: str
    state: str
    error_code: str
    note: str
    user_turn: int | None
    user_seq: int | None
    from_seq: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_over(self) -> bool:
        return self.state in FINAL_STATES


_COLUMNS = (
    "pk",
    "uuid",
    "session_id",
    "session__uuid",
    "client_id",
    "kind",
    "state",
    "error_code",
    "note",
    "user_turn",
    "user_seq",
    "from_seq",
    "created_at",
    "started_at",
    "finished_at",
)


def find_run(session: Session, run: UUID) -> RunFacts:
    """Raises NotFound."""
    for row in Run.objects.filter(session=session.pk, uuid=run).values_list(*_COLUMNS):
        return _facts(row)
    raise NotFound("There is no such run in this session.")


def read_run(run_pk: int) -> RunFacts:
    return _facts(Run.objects.values_list(*_COLUMNS).get(pk=run_pk))


def list_runs(session_pk: int, *, from_pk: int | None, back: bool, limit: int) -> list[RunFacts]:
    """The newest first, before the run of that key; or, with ``back``, the oldest first,
    after it."""
    runs = Run.objects.filter(session=session_pk).order_by("pk" if back else "-pk")
    if from_pk is not None:
        runs = runs.filter(pk__gt=from_pk) if back else runs.filter(pk__lt=from_pk)
    return [_facts(row) for row in runs.values_list(*_COLUMNS)[:limit]]


def _facts(row: tuple[Any, ...]) -> RunFacts:
    pk, uuid, session_pk, session, client_id, kind, state, error_code, note, *rest = row
    user_turn, user_seq, from_seq, created_at, started_at, finished_at = rest
    return RunFacts(
        pk=pk,
        uuid=uuid,
        session_pk=session_pk,
        session=session,
        client_id=client_id,
        kind=kind,
        state=state,
        error_code=error_code,
        note=note,
        user_turn=user_turn,
        user_seq=user_seq,
        from_seq=from_seq or user_seq,
        created_at=created_at,
        started_at=started_at,
        finished_at=finished_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """One look at a run. ``last_seq`` is the session's last row; ``chunks`` are the
    draft's pieces after an ordinal: ``(ordinal, part, kind, text)``."""

    run: RunFacts
    last_seq: int
    chunks: list[tuple[int, int, str, str]]


def read_moment(run_pk: int, *, after_ordinal: int = -1) -> RunProgress:
    fresh = FilteredRelation("draft_chunks", condition=Q(draft_chunks__ordinal__gt=after_ordinal))
    rows = list(
        Run.objects.filter(pk=run_pk)
        .annotate(fresh=fresh)
        .order_by("fresh__ordinal")
        .values_list(
            *_COLUMNS,
            "session__next_seq",
            "fresh__ordinal",
            "fresh__part",
            "fresh__kind",
            "fresh__text",
        )
    )
    if not rows:
        raise NotFound("There is no such run.")
    *facts, next_seq, _, _, _, _ = rows[0]
    chunks = [row[-4:] for row in rows if row[-4] is not None]
    return RunProgress(run=_facts(tuple(facts)), last_seq=next_seq - 1, chunks=chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeRows:
    """Some rows of a run. ``reached`` is the last row of the session that was looked at.
    ``has_ended``: no more can come."""

    rows: list[StoryRow]
    reached: int
    has_ended: bool


def read_story_rows(run: RunFacts, *, after: int, reached: int, last_seq: int) -> SomeRows:
    """The rows of the run after the row ``after``, of those beyond ``reached`` and up to
    ``last_seq``: a few hundred at most."""
    if run.from_seq is None:
        return SomeRows(rows=[], reached=last_seq, has_ended=False)
    if _is_last_row(run, after):
        return SomeRows(rows=[], reached=last_seq, has_ended=True)
    low = max(after, reached, run.from_seq - 1)
    found = read_raw_events(run.session_pk, start=low, limit=PAGE)
    there = [event for event in found if event.seq <= last_seq]
    told = list(_told(run, there))
    own = [event for event in told if _belongs(run, event)]
    answers = _read_answers(run, own)
    return SomeRows(
        rows=[
            StoryRow(seq=event.seq, data=event.as_data(), answer=answers.get(event.seq, ()))
            for event in own
        ],
        reached=last_seq if len(there) < PAGE else there[-1].seq,
        has_ended=len(told) < len(there) or (bool(told) and _ends(run, told[-1])),
    )


def _is_last_row(run: RunFacts, seq: int) -> bool:
    found = read_raw_events(run.session_pk, start=seq - 1, limit=1) if seq else []
    return any(event.seq == seq and _ends(run, event) for event in found)


def _told(run: RunFacts, events: list[RawEvent]) -> Iterator[RawEvent]:
    """Up to the end of the run, or where another one's rows begin."""
    for event in events:
        ends = _ends(run, event)
        if event.event_type == USER_MESSAGE and event.seq != run.user_seq:
            return
        if event.event_type == TURN_SEPARATOR and not ends:
            return
        yield event
        if ends:
            return


def _ends(run: RunFacts, event: RawEvent) -> bool:
    """A summary ends with its notice, everything else with a footer."""
    last = INFO if run.kind == COMPACT else TURN_SEPARATOR
    return event.event_type == last and _names(event, run)


def _names(event: RawEvent, run: RunFacts) -> bool:
    return (event.payload or {}).get("run") == str(run.uuid)


def _belongs(run: RunFacts, event: RawEvent) -> bool:
    """Whether the run says this itself. Notices of others may come at any moment."""
    if event.event_type != INFO:
        return run.kind != COMPACT
    return _names(event, run) or (event.payload or {}).get("kind") == APPROVAL


def _read_answers(run: RunFacts, events: list[RawEvent]) -> dict[int, tuple[AnswerPart, ...]]:
    """The answers whose first row is among these, by that row."""
    numbers = sorted({event.turn for event in events if event.turn is not None})
    turns = Turn.objects.filter(session=run.session_pk, number__in=numbers, role="assistant")
    spoken = {
        turn.number: parts_of_turn(turn)
        for turn in turns.only("number", "content", "blocks", "complete", "metadata")
    }
    firsts = ChatEvent.objects.filter(session=run.session_pk, turn_number__in=list(spoken))
    numbered = firsts.order_by().values_list("turn_number").annotate(first=Min("seq"))
    return {first: spoken[turn] for turn, first in numbered}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTranscript:
    """What a run has said by now: its rows, and the parts of what is no row yet."""

    run: RunFacts
    rows: list[dict[str, Any]]
    draft: list[AnswerPart]


def read_said(run_pk: int) -> RunTranscript:
    """All of it, as of one moment."""
    moment = read_moment(run_pk)
    rows: list[StoryRow] = []
    reached = 0
    while reached < moment.last_seq:
        some = read_story_rows(moment.run, after=0, reached=reached, last_seq=moment.last_seq)
        rows += some.rows
        reached = moment.last_seq if some.has_ended else some.reached
    draft: Draft = {}
    add_chunks(draft, moment.chunks)
    return RunTranscript(run=moment.run, rows=[row.data for row in rows], draft=draft_parts(draft))


type Draft = dict[int, tuple[str, list[str]]]
"""The parts of a draft by their numbers: the kind of each, and its pieces."""


def add_chunks(draft: Draft, chunks: list[tuple[int, int, str, str]]) -> None:
    for _, part, kind, text in chunks:
        draft.setdefault(part, (kind, []))[1].append(text)


def draft_parts(draft: Draft) -> list[AnswerPart]:
    """The spoken parts of a draft, by the number of each part."""
    joined = [(kind, "".join(texts)) for _, (kind, texts) in sorted(draft.items())]
    return [AnswerPart(kind, text) for kind, text in joined if kind in SPOKEN and text]
