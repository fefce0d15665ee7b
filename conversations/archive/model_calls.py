"""Reading the records of model calls: of a turn, of a run, of a session."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from conversations.domain.errors import NotFound
from conversations.domain.stream import Usage
from conversations.domain.text import cost_text, dump_json, storable
from conversations.domain.tool_calls import STARTED, CallEnding, make_result_turn
from conversations.domain.turns import NewTurn
from conversations.feature import CallUsage, Notices, features
from conversations.models import (
    Compaction,
    DraftChunk,
    ModelCall,
    PromptText,
    Session,
    SessionSkill,
    ToolCall,
)

from .append import (
    Appended,
    ContextSize,
    Counted,
    LockedSession,
    NewEvent,
    PreparedEvent,
    append,
    joined_transaction,
    locked_session,
)
from .runs import Claimed
from .tool_calls import end_call
from .turns import count_active_before

MAX_OF_RUN = 100  # Calls of one run that a page lists.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCall:
    """What a manifest needs to be read: its text, the digest and the session."""

    session_pk: int
    manifest: str
    request_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """A model call as a list shows it. ``turn`` is the one that it produced. Tokens
    None: not reported; ``input_tokens`` is the whole prompt."""

    pk: int
    run: UUID
    ordinal: int
    turn: int | None
    model: str
    error_code: str
    stop_reason: str
    input_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    cost_microusd: int | None
    first_token_ms: int | None
    duration_ms: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDetail:
    """One model call with its manifest, and all calls of its run."""

    line: CallLine
    manifest: str
    request_digest: str
    of_run: list[CallLine]


def read_call(pk: int) -> StoredCall:
    """Raises NotFound."""
    found = ModelCall.objects.filter(pk=pk).values_list("session_id", "manifest", "request_digest")
    for session_pk, manifest, digest in found:
        return StoredCall(session_pk=session_pk, manifest=manifest, request_digest=digest)
    raise NotFound("There is no such model call.")


def find_call_of_turn(session_pk: int, turn: int) -> CallDetail | None:
    """The call that produced the turn."""
    return _detail(ModelCall.objects.filter(session=session_pk, turn_number=turn))


def find_newest_call(session_pk: int) -> CallDetail | None:
    return _detail(ModelCall.objects.filter(session=session_pk))


def require_call(session_pk: int, *, run: UUID, ordinal: int) -> CallDetail:
    """Raises NotFound, also for a call of another session."""
    found = _detail(ModelCall.objects.filter(session=session_pk, run__uuid=run, ordinal=ordinal))
    if found is None:
        raise NotFound("There is no such model call.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTotals:
    """A call that a run has made, as its totals need it. ``failed``: it gave no answer."""

    usage: Usage
    cost_microusd: int | None
    first_token_ms: int | None
    model: str
    failed: bool


def read_past_calls(run_pk: int) -> list[CallTotals]:
    """All calls that a run has made so far, in order."""
    return [
        CallTotals(
            usage=Usage(
                input_tokens=call.input_tokens,
                output_tokens=call.output_tokens,
                cache_read_tokens=call.cache_read_tokens,
                cache_write_tokens=call.cache_write_tokens,
            ),
            cost_microusd=call.cost_microusd,
            first_token_ms=call.first_token_ms,
            model=call.model,
            failed=bool(call.error_code),
        )
        for call in ModelCall.objects.filter(run=run_pk).defer("manifest").order_by("ordinal")
    ]


def list_calls(session_pk: int, *, before: int | None = None, limit: int) -> list[CallLine]:
    """Calls of the session, newest first; ``before`` is the key of the last one."""
    calls = ModelCall.objects.filter(session=session_pk)
    if before is not None:
        calls = calls.filter(pk__lt=before)
    return _lines(calls.order_by("-pk")[:limit])


def read_skill_names(session_pk: int, pks: tuple[int, ...]) -> list[str]:
    """Of the skills that a manifest names."""
    if not pks:
        return []
    found = SessionSkill.objects.filter(session=session_pk, pk__in=pks).order_by("pk")
    return list(found.values_list("name", flat=True))


def read_summarised(session_pk: int, compaction: int | None) -> tuple[int, int] | None:
    """The first and the last turn for which that summary stands."""
    if compaction is None:
        return None
    found = Compaction.objects.filter(session=session_pk, pk=compaction)
    return found.values_list("from_turn", "to_turn").first()


_COLUMNS = (
    *("pk", "run__uuid", "ordinal", "turn_number", "model", "error_code", "stop_reason"),
    *("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens"),
    *("cost_microusd", "first_token_ms", "duration_ms", "created_at"),
)


def _detail(calls: QuerySet[ModelCall]) -> CallDetail | None:
    newest = calls.order_by("-pk")[:1]
    for row in newest.values(*_COLUMNS, "run_id", "manifest", "request_digest"):
        run_pk, manifest, digest = (row.pop(n) for n in ("run_id", "manifest", "request_digest"))
        of_run = ModelCall.objects.filter(run=run_pk).order_by("ordinal")[:MAX_OF_RUN]
        return CallDetail(
            line=_line(row), manifest=manifest, request_digest=digest, of_run=_lines(of_run)
        )
    return None


def _lines(calls: QuerySet[ModelCall]) -> list[CallLine]:
    return [_line(row) for row in calls.values(*_COLUMNS)]


def _line(row: dict[str, Any]) -> CallLine:
    uncached = row["input_tokens"]
    cached = (row["cache_read_tokens"] or 0) + (row["cache_write_tokens"] or 0)
    return CallLine(
        run=row.pop("run__uuid"),
        turn=row.pop("turn_number"),
        **row | {"input_tokens": None if uncached is None else uncached + cached},
    )


CHUNK = 500


def walk_calls(session: UUID | None = None) -> Iterator[tuple[int, UUID]]:
    """Keys of model calls with their session, oldest first: of one session or of all."""
    last = 0
    while True:
        rows = ModelCall.objects.filter(pk__gt=last).order_by("pk")
        if session is not None:
            rows = rows.filter(session__uuid=session)
        found = list(rows.values_list("pk", "session__uuid")[:CHUNK])
        yield from found
        if len(found) < CHUNK:
            return
        last = found[-1][0]


# Texts that model calls were given beside the turns, kept once by their digest.


def save_prompt_texts(texts: Mapping[str, str]) -> None:
    """Keep these texts, by digest; those that are there already stay."""
    rows = [PromptText(digest=digest, text=text) for digest, text in texts.items()]
    PromptText.objects.bulk_create(rows, ignore_conflicts=True)


def read_prompt_texts(digests: Iterable[str]) -> dict[str, str]:
    """The texts that are known of these, by digest."""
    rows = PromptText.objects.filter(digest__in=list(digests)).order_by("pk")
    return dict(rows.values_list("digest", "text"))


# What a run adds to the archive: answers of the model, results of tools.


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One model call as it is kept. Token figures None: not reported."""

    ordinal: int
    model: str
    manifest: str
    request_digest: str
    message_id: str = ""
    stop_reason: str = ""
    stop_sequence: str | None = None
    error_code: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_microusd: int | None = None
    first_token_ms: int | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMark:
    """``floor`` is the window's first turn, ``left_out`` counts the active turns below
    it. ``tokens`` of ``limit`` are used, both 0 while that is not known. The cost is
    that of the whole session."""

    session: UUID
    floor: int
    left_out: int
    tokens: int
    limit: int
    cost_microusd: int

    @property
    def key(self) -> str:
        """The same for the same mark."""
        cost = cost_text(self.cost_microusd)
        return f"{self.floor}.{self.left_out}.{self.tokens}.{self.limit}.{cost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedAnswer(Appended):
    window: WindowMark


def append_answer(
    claimed: Claimed,
    *,
    turn: NewTurn | None,
    events: Sequence[PreparedEvent],
    call: CallRecord,
    tool_calls: Sequence[tuple[UUID, dict[str, Any]]] = (),
    size: ContextSize | None = None,
    has_draft: bool = True,
) -> AppendedAnswer:
    """Commit one model call: its turn, rows, record and counters; its draft goes.
    ``tool_calls`` are its calls, each with the uuid that its record gets. ``has_draft``:
    something of it may be on disk."""
    with locked_session(claimed.session_pk) as session:
        appended = session.append(
            turns=[turn] if turn else [], events=events, counted=_counted(call, size)
        )
        number = appended.turns[0] if appended.turns else None
        session.save()
        _insert_call(claimed, call, turn_number=number)
        now = timezone.now()
        for uuid, tool_call in tool_calls:
            ToolCall.objects.create(
                uuid=uuid,
                session_id=claimed.session_pk,
                run_id=claimed.run_pk,
                call_id=storable(str(tool_call.get("id", "")))[:255],
                name=storable(str(tool_call.get("name", "")))[:255],
                arguments=dump_json(tool_call.get("input", {})),
                state=STARTED,
                turn_number=number or 0,
                created_at=now,
            )
        if has_draft:
            DraftChunk.objects.filter(run=claimed.run_pk).delete()
        return AppendedAnswer(
            turns=appended.turns, rows=appended.rows, window=window_mark_of(session)
        )


def append_call(
    claimed: Claimed, *, call: CallRecord, events: Sequence[PreparedEvent] = ()
) -> Appended:
    """Commit a model call that gave no turn: its record, its counters, and rows."""
    with locked_session(claimed.session_pk) as session:
        appended = session.append(events=events, counted=_counted(call, None))
        session.save()
        _insert_call(claimed, call, turn_number=None)
    return appended


def append_failed_call(claimed: Claimed, *, call: CallRecord) -> None:
    """Keep the record of a call that gave no answer."""
    with joined_transaction():
        _insert_call(claimed, call, turn_number=None)


def check_model_call(session_pk: int, *, person_pk: int | None) -> list[Notices]:
    """What features have to say before the model is called. Raises BudgetReached."""
    given = [feature.check_model_call(session_pk, person_pk) for feature in features()]
    return [notices for notices in given if notices is not None]


def append_notices(session_pk: int, *, session: UUID, due: Sequence[Notices]) -> Appended:
    """Say in a session what features have to say, as far as nobody has said it meanwhile,
    there or elsewhere."""
    with joined_transaction():
        new = [NewEvent(payload=notice) for notices in due for notice in notices()]
        if not new:
            return Appended(turns=[], rows=[])
        return append(session_pk, session_uuid=session, events=new)


def _insert_call(claimed: Claimed, call: CallRecord, *, turn_number: int | None) -> None:
    now = timezone.now()  # what it used belongs to the day of the record
    ModelCall.objects.create(
        session_id=claimed.session_pk,
        run_id=claimed.run_pk,
        created_at=now,
        turn_number=turn_number,
        **asdict(call),
    )
    usage = CallUsage(
        session_pk=claimed.session_pk,
        person_pk=claimed.user_pk,
        model=call.model,
        failed=bool(call.error_code),
        input_tokens=call.input_tokens,
        cache_read_tokens=call.cache_read_tokens,
        cache_write_tokens=call.cache_write_tokens,
        output_tokens=call.output_tokens,
        cost_microusd=call.cost_microusd,
        first_token_ms=call.first_token_ms,
        at=now,
    )
    for feature in features():
        feature.on_model_call(usage)


def _counted(call: CallRecord, size: ContextSize | None) -> Counted:
    cached = call.cache_read_tokens or 0
    return Counted(
        input_tokens=(call.input_tokens or 0) + cached + (call.cache_write_tokens or 0),
        output_tokens=call.output_tokens or 0,
        cached_tokens=cached,
        cost_microusd=call.cost_microusd or 0,
        size=size,
    )


def append_tool_result(
    claimed: Claimed, *, call_pk: int, ending: CallEnding, events: Sequence[PreparedEvent]
) -> Appended:
    """Commit a tool's result: its turn, its rows and the record of the call. Raises
    Conflict when the call has ended already."""
    with locked_session(claimed.session_pk) as session:
        appended = session.append(turns=[make_result_turn(ending)], events=events)
        end_call(call_pk, ending=ending, result_turn=appended.turns[0])
    return appended


# Where a session's window starts and how full it is, for the pages that show it.


def read_window_mark(session_pk: int) -> WindowMark:
    return window_mark_of(Session.objects.get(pk=session_pk))


def window_mark_of(session: Session | LockedSession) -> WindowMark:
    floor = session.floor_turn
    has_rewinds = session.rewind_count > 0 and floor > 1
    return WindowMark(
        session=session.uuid,
        floor=floor,
        left_out=count_active_before(session.pk, floor, has_rewinds=has_rewinds),
        tokens=session.context_tokens,
        limit=session.context_limit,
        cost_microusd=session.cost_microusd,
    )
