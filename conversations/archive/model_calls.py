"""Model calls: what each adds to the archive, and the records of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import F, QuerySet
from django.utils import timezone

from conversations.domain.messages import say
from conversations.domain.text import cost_text, dump_json, storable
from conversations.domain.tool_calls import STARTED, CallEnding, make_result_turn
from conversations.domain.turns import NewTurn
from conversations.feature import Notices, features
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
    AppendResult,
    ContextSize,
    LockedSession,
    NewEvent,
    PreparedEvent,
    append,
    insert_row,
    joined_transaction,
    locked_session,
    placeholders,
    require_first,
    sums_of,
    walk_by_pk,
)
from .runs import ClaimedRun
from .tool_calls import end_call
from .turns import count_active_before

MAX_RUN_CALLS = 100  # That a page lists.

OWN_INSTRUCTIONS = "Instructions of this session:"  # In a system prompt, in front of them.


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


def window_mark_of(session: Session | LockedSession) -> WindowMark:
    """Where a session's window starts and how full it is, for the pages that show it."""
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


def read_window_mark(session_pk: int) -> WindowMark:
    return window_mark_of(Session.objects.get(pk=session_pk))


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedAnswer(AppendResult):
    window: WindowMark


def _session_of(claimed: ClaimedRun) -> AbstractContextManager[LockedSession]:
    """For what the run adds: nothing, where another process has taken it over or ended it."""
    return locked_session(claimed.session_pk, run=claimed.run_pk, owner=claimed.owner)


def append_answer(
    claimed: ClaimedRun,
    *,
    turn: NewTurn | None,
    events: Sequence[PreparedEvent],
    call: ModelCall,
    texts: Mapping[str, str] = {},
    tool_calls: Sequence[tuple[UUID, dict[str, Any]]] = (),
    size: ContextSize | None = None,
    has_draft: bool = True,
) -> AppendedAnswer:
    """Commit one model call: its turn, rows, record and counters; its draft goes.
    ``call`` is the record as far as the caller knows it, ``texts`` are those that its manifest
    names by digest. ``tool_calls`` are its calls, each with the uuid that its record gets.
    ``has_draft``: something of it may be on disk.
    Raises RunLost."""
    with _session_of(claimed) as session:
        appended = session.append(turns=[turn] if turn else [], events=events, call=call, size=size)
        number = appended.turns[0] if appended.turns else None
        # Features read the counters, so they are written before the record is.
        session.save()
        insert_call(claimed, call, texts=texts, turn_number=number)
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


def append_call(claimed: ClaimedRun, *, call: ModelCall, texts: Mapping[str, str] = {}) -> None:
    """Keep the record of a call that gave no turn, with the texts that its manifest names by
    digest, and count what it used. The session stays where it is in lists."""
    used = {name: F(name) + count for name, count in sums_of(call).items() if count}
    with joined_transaction():
        # Features read the counters, so they are written before the record is.
        if used:
            Session.objects.filter(pk=claimed.session_pk).update(**used)
        insert_call(claimed, call, texts=texts)


def save_title(session_pk: int, *, title: str) -> bool:
    """Unless a person has chosen one. The session stays where it is in lists."""
    found = Session.objects.filter(pk=session_pk, title_is_chosen=False)
    return bool(found.update(title=title))


def insert_call(
    claimed: ClaimedRun,
    call: ModelCall,
    *,
    texts: Mapping[str, str] = {},
    turn_number: int | None = None,
) -> None:
    """Keep the record of a call, in the caller's transaction."""
    # A purge may have taken them while the call ran: no record of this session named them yet.
    _save_prompt_texts(texts)
    # A transaction that came to nothing may have given it a key, which is another's by now.
    call.pk = None
    call.session_id, call.run_id = claimed.session_pk, claimed.run_pk
    call.turn_number = turn_number
    call.created_at = timezone.now()  # what it used belongs to the day of the record
    insert_row(call)
    for feature in features():
        feature.on_model_call(call, claimed.user_pk)


def append_tool_result(
    claimed: ClaimedRun, *, call_pk: int, ending: CallEnding, events: Sequence[PreparedEvent]
) -> AppendResult:
    """Commit a tool's result: its turn, its rows and the record of the call. Raises RunLost,
    and Conflict when the call has ended already."""
    with _session_of(claimed) as session:
        appended = session.append(turns=[make_result_turn(ending)], events=events)
        session.save()  # whoever ended the run has ended the call, too
        end_call(call_pk, ending=ending, result_turn=appended.turns[0])
    return appended


def check_model_call(session_pk: int, *, person_pk: int | None) -> list[Notices]:
    """What features have to say before the model is called. Raises BudgetReached."""
    given = [feature.check_model_call(session_pk, person_pk) for feature in features()]
    return [notices for notices in given if notices is not None]


def append_notices(session_pk: int, *, session: UUID, due: Sequence[Notices]) -> AppendResult:
    """Say in a session what features have to say, as far as nobody has said it meanwhile,
    there or elsewhere."""
    with joined_transaction():
        new = [NewEvent(payload=notice) for notices in due for notice in notices()]
        if not new:
            return AppendResult(turns=[], rows=[])
        return append(session_pk, session_uuid=session, events=new)


def read_call(pk: int) -> ModelCall:
    """With its run. Raises NotFound."""
    calls = ModelCall.objects.filter(pk=pk).select_related("run")
    return require_first(calls, say("This model call does not exist."))


def find_newest_call(session_pk: int, *, turn: int | None = None) -> ModelCall | None:
    """The session's last call, or that which produced the turn; with its run."""
    calls = ModelCall.objects.filter(session=session_pk)
    if turn is not None:
        calls = calls.filter(turn_number=turn)
    newest = calls.select_related("run").order_by("-pk")[:2]
    # The one for the title shows nothing of the window.
    return next((call for call in newest if '"kind":"title"' not in call.manifest), None)


def require_call(session_pk: int, *, run: UUID, ordinal: int) -> ModelCall:
    """With its run. Raises NotFound, also for a call of another session."""
    calls = ModelCall.objects.filter(session=session_pk, run__uuid=run, ordinal=ordinal)
    return require_first(calls.select_related("run"), say("This model call does not exist."))


def list_calls_of_run(run_pk: int) -> list[ModelCall]:
    """The first of them, in order; with their run and without their manifests."""
    return list(_listed(ModelCall.objects.filter(run=run_pk)).order_by("ordinal")[:MAX_RUN_CALLS])


def read_past_calls(run_pk: int) -> list[ModelCall]:
    """All calls that a run has made so far, in order."""
    return list(ModelCall.objects.filter(run=run_pk).defer("manifest").order_by("ordinal"))


def list_calls(session_pk: int, *, before: int | None = None, limit: int) -> list[ModelCall]:
    """Calls of the session, newest first, with their runs; ``before`` is the key of the
    last one."""
    calls = ModelCall.objects.filter(session=session_pk)
    if before is not None:
        calls = calls.filter(pk__lt=before)
    return list(_listed(calls).order_by("-pk")[:limit])


def _listed(calls: QuerySet[ModelCall]) -> QuerySet[ModelCall]:
    # Manifests and messages have up to 100,000 characters.
    return calls.select_related("run").defer("manifest", "run__text", "run__choices")


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


def walk_calls(session: UUID | None = None) -> Iterator[tuple[int, UUID]]:
    """Keys of model calls with their session, oldest first: of one session or of all."""
    calls = ModelCall.objects.select_related("session").only("session__uuid")
    if session is not None:
        calls = calls.filter(session__uuid=session)
    for call in walk_by_pk(calls):
        yield call.pk, call.session.uuid


def _save_prompt_texts(texts: Mapping[str, str]) -> None:
    """Keep texts that model calls are given beside the turns, by digest; those that are
    there already stay."""
    if not texts:
        return
    # A purge that is taking one of them is waited for; one that comes now waits, and then finds
    # the call. On SQLite there is one transaction at a time.
    lock = " FOR KEY SHARE" if connection.vendor == "postgresql" else ""
    among = f"digest IN ({placeholders(texts)}) ORDER BY digest"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT digest FROM conversations_prompttext WHERE {among}{lock}",  # noqa: S608 (ours)
            list(texts),
        )
        known = {digest for (digest,) in cursor.fetchall()}
    # In order, so that two transactions never wait for each other.
    new = [PromptText(digest=one, text=texts[one]) for one in sorted(texts.keys() - known)]
    PromptText.objects.bulk_create(new, ignore_conflicts=True)


def read_prompt_texts(digests: Iterable[str]) -> dict[str, str]:
    """The texts that are known of these, by digest."""
    rows = PromptText.objects.filter(digest__in=list(digests)).order_by("pk")
    return dict(rows.values_list("digest", "text"))
