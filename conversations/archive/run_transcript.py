"""Run transcripts: the rows, answers and draft of a run as they are on disk, for API clients."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import F, FilteredRelation, Min, Q

from conversations.domain.errors import NotFound
from conversations.domain.events import APPROVAL, INFO, TURN_SEPARATOR, USER_MESSAGE
from conversations.domain.messages import say
from conversations.domain.run_transcript import SPOKEN, AnswerPart, StreamRow, parts_of_turn
from conversations.domain.runs import COMPACT
from conversations.domain.tool_questions import QUESTION
from conversations.models import ChatEvent, Run, Session, Turn

from .append import require_first
from .journal import StoredEvent, walk_events

PAGE_ROWS = 200

# The runs with their sessions; only the columns that this module needs are read.
_RUNS = (
    Run.objects.select_related("session")
    .only(
        *("uuid", "client_id", "kind", "state", "error_code", "note", "user_turn", "user_seq"),
        *("from_seq", "created_at", "started_at", "finished_at"),
        *("session", "session__uuid", "session__next_seq"),
    )
    .order_by()
)


def find_run(session: Session, run: UUID) -> Run:
    """Return a run of the session. Raise NotFound if there is none."""
    runs = _RUNS.filter(session=session.pk, uuid=run)
    return require_first(runs, say("This run does not exist in this session."))


def read_run(run_pk: int) -> Run:
    return _RUNS.get(pk=run_pk)


def list_runs(session_pk: int, *, from_pk: int | None, back: bool, limit: int) -> list[Run]:
    """Return runs before the run ``from_pk``, newest first.

    With ``back``, return runs after the run ``from_pk``, oldest first.
    """
    runs = _RUNS.filter(session=session_pk).order_by("pk" if back else "-pk")
    if from_pk is not None:
        runs = runs.filter(pk__gt=from_pk) if back else runs.filter(pk__lt=from_pk)
    return list(runs[:limit])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """The state of a run at one moment.

    ``last_seq`` is the session's last row. ``chunks`` are the pieces of the draft after an ordinal,
    as ``(ordinal, part, kind, text)``.
    """

    run: Run
    last_seq: int
    chunks: list[tuple[int, int, str, str]]


def read_run_progress(run_pk: int, *, after_ordinal: int = -1) -> RunProgress:
    # Use one statement, so that all data are of the same moment: a draft is deleted when its row is
    # appended.
    rows = list(
        _RUNS.filter(pk=run_pk)
        .annotate(
            fresh=FilteredRelation(
                "draft_chunks", condition=Q(draft_chunks__ordinal__gt=after_ordinal)
            ),
            ordinal=F("fresh__ordinal"),
            part=F("fresh__part"),
            spoken=F("fresh__kind"),
            piece=F("fresh__text"),
        )
        .order_by("ordinal")
    )
    if not rows:
        raise NotFound("This run does not exist.")
    chunks = [(r.ordinal, r.part, r.spoken, r.piece) for r in rows if r.ordinal is not None]
    return RunProgress(run=rows[0], last_seq=rows[0].session.last_seq, chunks=chunks)


def read_stream_rows(
    run: Run, *, after: int, reached: int, last_seq: int
) -> tuple[list[StreamRow], int, bool]:
    """Return the rows of the run after ``after`` and ``reached`` and up to ``last_seq``.

    At most one page of the session's rows is read. Also return the last row of the session that was
    read, and whether the run can have no more rows.
    """
    if run.first_seq is None:
        return [], last_seq, False
    already_read = walk_events(run.session_id, start=after - 1, limit=1) if after else []
    if any(event.seq == after and _is_last_event(run, event) for event in already_read):
        return [], last_seq, True
    low = max(after, reached, run.first_seq - 1)
    page = walk_events(run.session_id, start=low, limit=PAGE_ROWS)
    events = [event for event in page if event.seq <= last_seq]
    run_events, has_ended = [], False
    for event in events:
        is_end = _is_last_event(run, event)
        is_message = event.event_type == USER_MESSAGE and event.seq != run.user_seq
        is_of_another = is_message or (event.event_type == TURN_SEPARATOR and not is_end)
        if not is_of_another:
            run_events.append(event)
        if has_ended := is_end or is_of_another:
            break
    shown = [event for event in run_events if _is_shown_for(run, event)]
    answers = _read_answers(run, shown)
    rows = [
        StreamRow(seq=event.seq, data=event.as_data(), answer=answers.get(event.seq, ()))
        for event in shown
    ]
    return rows, last_seq if len(events) < PAGE_ROWS else events[-1].seq, has_ended


def _is_last_event(run: Run, event: StoredEvent) -> bool:
    """Return whether this is the run's last event.

    The last event of a compaction is its notice. All other runs end with a footer.
    """
    last = INFO if run.kind == COMPACT else TURN_SEPARATOR
    return event.event_type == last and getattr(event.payload, "run", "") == str(run.uuid)


def _is_shown_for(run: Run, event: StoredEvent) -> bool:
    # Notices that do not belong to the run can be appended at any time.
    if event.event_type != INFO:
        return run.kind != COMPACT
    event_run, kind = (getattr(event.payload, name, "") for name in ("run", "kind"))
    return event_run == str(run.uuid) or kind in (APPROVAL, QUESTION)


def _read_answers(run: Run, shown: list[StoredEvent]) -> dict[int, tuple[AnswerPart, ...]]:
    numbers = sorted({event.turn for event in shown if event.turn is not None})
    turns = Turn.objects.filter(session=run.session_id, number__in=numbers, role="assistant")
    parts_by_turn = {
        turn.number: parts_of_turn(turn)
        for turn in turns.only("number", "content", "blocks", "complete", "metadata")
    }
    events = ChatEvent.objects.filter(session=run.session_id, turn_number__in=list(parts_by_turn))
    first_seqs = events.order_by().values_list("turn_number").annotate(first=Min("seq"))
    return {first: parts_by_turn[turn] for turn, first in first_seqs}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTranscript:
    """The output of a run so far: its rows, and the parts of the draft that is not a row yet."""

    run: Run
    rows: list[dict[str, Any]]
    draft: list[AnswerPart]


def read_run_transcript(run_pk: int) -> RunTranscript:
    """Return the run's whole output as of one moment."""
    progress = read_run_progress(run_pk)
    rows: list[StreamRow] = []
    reached = 0
    while reached < progress.last_seq:
        page, reached, has_ended = read_stream_rows(
            progress.run, after=0, reached=reached, last_seq=progress.last_seq
        )
        rows += page
        if has_ended:
            break
    draft: Draft = {}
    add_chunks(draft, progress.chunks)
    return RunTranscript(
        run=progress.run, rows=[row.data for row in rows], draft=draft_parts(draft)
    )


# The parts of a draft by their numbers. Each has its kind and its pieces.
type Draft = dict[int, tuple[str, list[str]]]


def add_chunks(draft: Draft, chunks: list[tuple[int, int, str, str]]) -> None:
    for _, part, kind, text in chunks:
        draft.setdefault(part, (kind, []))[1].append(text)


def draft_parts(draft: Draft) -> list[AnswerPart]:
    """Return the text and thinking parts of a draft, in order."""
    joined = [(kind, "".join(texts)) for _, (kind, texts) in sorted(draft.items())]
    return [AnswerPart(kind, text) for kind, text in joined if kind in SPOKEN and text]
