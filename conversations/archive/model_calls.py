"""Model calls: appending their output to the archive, and their records."""

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
    walk_by_key,
)
from .runs import ClaimedRun
from .tool_calls import end_call
from .turns import count_active_before

MAX_RUN_CALLS = 100  # Maximum on a page

# The heading of a session's own instructions in a system prompt
OWN_INSTRUCTIONS = "Instructions of this session:"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMark:
    """The start and fill level of a session's window.

    ``floor`` is the window's first turn, and ``left_out`` is the number of active turns before it.
    ``tokens`` of ``limit`` are used; both are 0 while this is not known. ``cost_microusd`` is the
    cost of the whole session.
    """

    session: UUID
    floor: int
    left_out: int
    tokens: int
    limit: int
    cost_microusd: int

    @property
    def key(self) -> str:
        """Return a text for comparing two marks of a session."""
        cost = cost_text(self.cost_microusd)
        return f"{self.floor}.{self.left_out}.{self.tokens}.{self.limit}.{cost}"


def window_mark_of(session: Session | LockedSession) -> WindowMark:
    """Return the mark of a session's window, for the pages that show it."""
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
    """Lock the session for the run's output.

    Saving raises RunLost if the run has ended or belongs to another process.
    """
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
    """Commit one model call: its turn, rows, record and counters. Delete its draft.

    ``call`` is the record with the fields that the caller knows, and ``texts`` holds the texts to
    which the call's manifest refers by digest. ``tool_calls`` are the tool calls of the answer,
    each with the UUID for its record. ``has_draft`` says whether a part of the draft may be on
    disk. Raise RunLost if the run has ended or belongs to another process.
    """
    with _session_of(claimed) as session:
        appended = session.append(turns=[turn] if turn else [], events=events, call=call, size=size)
        number = appended.turns[0] if appended.turns else None
        # Save first, because features read the counters when the record is inserted.
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
    """Store the record of a call that produced no turn, and count its usage.

    ``texts`` holds the texts to which the call's manifest refers by digest. The session keeps its
    place in lists.
    """
    used = {name: F(name) + count for name, count in sums_of(call).items() if count}
    with joined_transaction():
        # Update first, because features read the counters when the record is inserted.
        if used:
            Session.objects.filter(pk=claimed.session_pk).update(**used)
        insert_call(claimed, call, texts=texts)


def save_title(session_pk: int, *, title: str) -> bool:
    """Set the title unless a person has chosen one. The session keeps its place in lists."""
    sessions = Session.objects.filter(pk=session_pk, title_is_chosen=False)
    return bool(sessions.update(title=title))


def insert_call(
    claimed: ClaimedRun,
    call: ModelCall,
    *,
    texts: Mapping[str, str],
    turn_number: int | None = None,
) -> None:
    """Store the record of a call, in the caller's transaction."""
    # Store the texts again: a purge may have deleted them during the call, because no record of
    # this session referred to them yet.
    _save_prompt_texts(texts)
    # Clear a primary key that a rolled-back transaction may have set, because another row may have
    # it now.
    call.pk = None
    call.session_id, call.run_id = claimed.session_pk, claimed.run_pk
    call.turn_number = turn_number
    call.created_at = timezone.now()  # the usage counts for the day of the record
    insert_row(call)
    for feature in features():
        feature.on_model_call(call, claimed.user_pk)


def append_tool_result(
    claimed: ClaimedRun, *, call_pk: int, ending: CallEnding, events: Sequence[PreparedEvent]
) -> AppendResult:
    """Commit a tool's result: its turn, its rows and the record of the call.

    Raise RunLost if the run has ended or belongs to another process, and Conflict if the call has
    already ended.
    """
    with _session_of(claimed) as session:
        appended = session.append(turns=[make_result_turn(ending)], events=events)
        session.save()  # first, because ending a run also ends its calls
        end_call(call_pk, ending=ending, result_turn=appended.turns[0])
    return appended


def check_model_call(session_pk: int, *, person_pk: int | None) -> list[Notices]:
    """Return the notices of features before a model call.

    Raise BudgetReached if a budget is used up.
    """
    notices = [feature.check_model_call(session_pk, person_pk) for feature in features()]
    return [notice for notice in notices if notice is not None]


def append_notices(session_pk: int, *, session: UUID, due: Sequence[Notices]) -> AppendResult:
    """Append the notices of features to a session.

    Notices that were shown meanwhile, in this session or elsewhere, are left out.
    """
    with joined_transaction():
        new = [NewEvent(payload=notice) for notices in due for notice in notices()]
        if not new:
            return AppendResult(turns=[], rows=[])
        return append(session_pk, session_uuid=session, events=new)


def read_call(pk: int) -> ModelCall:
    """Return a model call with its run. Raise NotFound if it does not exist."""
    calls = ModelCall.objects.filter(pk=pk).select_related("run")
    return require_first(calls, say("This model call does not exist."))


def find_newest_call(session_pk: int, *, turn: int | None = None) -> ModelCall | None:
    """Return the session's last call, or the call that produced the turn, with its run."""
    calls = ModelCall.objects.filter(session=session_pk)
    if turn is not None:
        calls = calls.filter(turn_number=turn)
    newest = calls.select_related("run").order_by("-pk")[:2]
    # Skip the call that generated the title, because it shows nothing of the window.
    return next((call for call in newest if '"kind":"title"' not in call.manifest), None)


def require_call(session_pk: int, *, run: UUID, ordinal: int) -> ModelCall:
    """Return a model call with its run. Raise NotFound if the session has no such call."""
    calls = ModelCall.objects.filter(session=session_pk, run__uuid=run, ordinal=ordinal)
    return require_first(calls.select_related("run"), say("This model call does not exist."))


def list_calls_of_run(run_pk: int) -> list[ModelCall]:
    """Return the first calls of a run in order, with their run and without their manifests."""
    return list(_listed(ModelCall.objects.filter(run=run_pk)).order_by("ordinal")[:MAX_RUN_CALLS])


def read_past_calls(run_pk: int) -> list[ModelCall]:
    """Return all calls that a run has made so far, in order."""
    return list(ModelCall.objects.filter(run=run_pk).defer("manifest").order_by("ordinal"))


def list_calls(session_pk: int, *, before: int | None, limit: int) -> list[ModelCall]:
    """Return calls of the session with their runs, newest first.

    ``before`` is the primary key of the previous page's last call.
    """
    calls = ModelCall.objects.filter(session=session_pk)
    if before is not None:
        calls = calls.filter(pk__lt=before)
    return list(_listed(calls).order_by("-pk")[:limit])


def _listed(calls: QuerySet[ModelCall]) -> QuerySet[ModelCall]:
    # Manifests and messages can have up to 100,000 characters.
    return calls.select_related("run").defer("manifest", "run__text", "run__choices")


def read_skill_names(session_pk: int, pks: tuple[int, ...]) -> list[str]:
    """Return the names of the skills to which a manifest refers."""
    if not pks:
        return []
    skills = SessionSkill.objects.filter(session=session_pk, pk__in=pks).order_by("pk")
    return list(skills.values_list("name", flat=True))


def read_summarised(session_pk: int, compaction: int | None) -> tuple[int, int] | None:
    """Return the first and the last turn that the summary replaces."""
    if compaction is None:
        return None
    compactions = Compaction.objects.filter(session=session_pk, pk=compaction)
    return compactions.values_list("from_turn", "to_turn").first()


def walk_calls(session: UUID | None) -> Iterator[tuple[int, UUID]]:
    """Yield the primary key and session of each model call, oldest first.

    If ``session`` is None, yield the calls of all sessions.
    """
    calls = ModelCall.objects.select_related("session").only("session__uuid")
    if session is not None:
        calls = calls.filter(session__uuid=session)
    for call in walk_by_key(calls):
        yield call.pk, call.session.uuid


def _save_prompt_texts(texts: Mapping[str, str]) -> None:
    """Store texts that model calls are given besides the turns, by digest.

    Texts that are already stored stay as they are.
    """
    if not texts:
        return
    # Wait for a purge that is deleting one of these texts. A later purge waits for this transaction
    # and then finds the call. On SQLite only one transaction can write at a time.
    lock = " FOR KEY SHARE" if connection.vendor == "postgresql" else ""
    condition = f"digest IN ({placeholders(texts)}) ORDER BY digest"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT digest FROM conversations_prompttext WHERE {condition}{lock}",  # noqa: S608 (ours)
            list(texts),
        )
        stored = {d for (d,) in cursor.fetchall()}
    # Insert in sorted order, so that two transactions cannot deadlock.
    new = [PromptText(digest=d, text=texts[d]) for d in sorted(texts.keys() - stored)]
    PromptText.objects.bulk_create(new, ignore_conflicts=True)


def read_prompt_texts(digests: Iterable[str]) -> dict[str, str]:
    """Return the stored texts by digest. Unknown digests are left out."""
    rows = PromptText.objects.filter(digest__in=list(digests)).order_by("pk")
    return dict(rows.values_list("digest", "text"))
