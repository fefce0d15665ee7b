"""Reading the records of model calls: of a turn, of a run, of a session."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from conversations.domain.errors import NotFound
from conversations.models import Compaction, ModelCall, PromptText, SessionSkill

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


def read_past_calls(run_pk: int) -> list[ModelCall]:
    """All calls that a run has made so far, in order, without their manifests."""
    return list(ModelCall.objects.filter(run=run_pk).defer("manifest").order_by("ordinal"))


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
