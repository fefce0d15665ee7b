"""Purging: the only code that removes a session from the archive.

A purge runs in one transaction, which leaves a receipt and an entry in the audit log. :data:`ROWS`
lists every core table with rows of a session. A test fails if a new table is missing from it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import batched, chain
from uuid import UUID, uuid4

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Model, Q, QuerySet

from conversations.domain.audit import PURGED
from conversations.domain.errors import Conflict
from conversations.domain.messages import say
from conversations.domain.text import dump_json, instant, next_digest
from conversations.feature import PurgedTables, Rows, features
from conversations.models import (
    ApiAnswer,
    Attachment,
    ChatEvent,
    Compaction,
    DraftChunk,
    FileChange,
    JournalGap,
    MemoryEntry,
    ModelCall,
    PromptText,
    PurgedContent,
    PurgeOrder,
    PurgePermit,
    ReadingPosition,
    Receipt,
    Revert,
    ReviewFlag,
    ReviewMark,
    ReviewNote,
    Rewind,
    Run,
    SearchEntry,
    SearchProgress,
    Session,
    SessionSkill,
    StateCheckpoint,
    ToolCall,
    Turn,
    TurnEmbedding,
    Workspace,
)
from conversations.models.search import session_rows

from .append import lock_session, remove_in_pieces
from .audit import AuditOrigin, record, session_event
from .messages import refuse_busy
from .model_calls import OWN_INSTRUCTIONS

BATCH_ROWS = 500

# The number of other sessions' calls that are searched for a prompt of the purged session, at some
# kilobytes each. The limit is needed because the purge blocks all writers.
MAX_COMPARED_CALLS = 10_000


# Selects the calls of sessions that have instructions of their own, or may have had some.
_INSTRUCTED = ~Q(session__instructions="") | Q(session__rewind_count__gt=0)


def rows_of_session(model: type[Model]) -> Rows:
    return lambda pk: model._default_manager.filter(session=pk)


def _own_prompt_texts(pk: int) -> QuerySet[PromptText]:
    """Return the texts that the model was given only in this session.

    These are earlier summaries that were given for writing the next one, and system prompts with
    the session's own instructions. Other system prompts and texts about tools are shared and say
    nothing about the session.
    """
    own = ModelCall.objects.filter(session=pk)
    prompts = PromptText.objects.filter(
        digest__in=_digests_in(own.filter(_INSTRUCTED), "system_digest")
    )
    prompts = prompts.filter(text__contains=f"{OWN_INSTRUCTIONS}\n").order_by("digest")
    if connection.in_atomic_block:
        # In a purge, wait for transactions that are storing calls with one of these texts.
        prompts = prompts.select_for_update()
    digests = _used_only_by(pk, set(prompts.values_list("digest", flat=True)))
    summarised = own.filter(manifest__contains='"previous_digest"')
    return PromptText.objects.filter(
        digest__in=digests | _digests_in(summarised, "previous_digest")
    )


def _used_only_by(pk: int, digests: set[str]) -> set[str]:
    """Return those of the system prompt digests to which no call of another session refers.

    Return an empty set if there are too many calls to check.
    """
    # Another session can have the same prompt only if its workspace has the same name.
    name = Session.objects.filter(pk=pk).values("workspace__name")
    others = ModelCall.objects.filter(_INSTRUCTED, session__workspace__name__in=name)
    others = others.exclude(session=pk).order_by("-pk")
    if not digests or others[MAX_COMPARED_CALLS : MAX_COMPARED_CALLS + 1].exists():
        return set()
    return digests - _digests_in(others, "system_digest")


def _digests_in(calls: QuerySet[ModelCall], key: str) -> set[str]:
    """Return the digests that the calls' manifests have under this key."""
    pattern = re.compile(rf'"{key}":"([0-9a-f]{{64}})"')
    digests = set[str]()
    for manifest in calls.order_by("pk").values_list("manifest", flat=True).iterator():
        digests.update(pattern.findall(manifest))
    return digests


_DELETION_ORDER: tuple[type[Model], ...] = (
    *(PromptText, FileChange, Revert, ApiAnswer, ToolCall, ModelCall, DraftChunk, Run),
    *(Attachment, Compaction, SessionSkill, StateCheckpoint, Rewind, JournalGap, ChatEvent),
    *(Turn, TurnEmbedding, SearchEntry, SearchProgress),
    *(ReadingPosition, ReviewNote, ReviewFlag, ReviewMark, PurgeOrder),
)
_SPECIAL_ROWS: dict[type[Model], Rows] = {
    PromptText: _own_prompt_texts,
    DraftChunk: lambda pk: DraftChunk.objects.filter(
        run__in=Run.objects.filter(session=pk).values("pk")
    ),
    # These tables have no index by session, so the rows are selected by a range of keys.
    SearchEntry: partial(session_rows, SearchEntry),
    TurnEmbedding: partial(session_rows, TurnEmbedding),
}
# The core tables, each with a function from a session's primary key to its rows, in the order of
# deletion. The tables of features are deleted before them.
ROWS: dict[type[Model], Rows] = {
    **{model: _SPECIAL_ROWS.get(model) or rows_of_session(model) for model in _DELETION_ORDER},
    Session: lambda pk: Session.objects.filter(pk=pk),
}


def _forget_source(session_pk: int) -> int:
    """Unlink the workspace memory from a session, and return the number of entries that stay.

    Entries that were kept belong to the workspace and stay, without their source. Declined items
    are deleted.
    """
    entries = MemoryEntry.objects.filter(session=session_pk)
    entries.filter(is_declined=True).delete()
    return entries.update(session=None, turn=None, item="")


# The names of the tables in a plan and a receipt; callers translate them for display.
_NAMES: dict[type[Model], str] = {
    Session: say("sessions"),
    Turn: say("turns"),
    Run: say("runs"),
    ToolCall: say("tool calls"),
    ModelCall: say("model calls"),
    DraftChunk: say("draft chunks"),
    ApiAnswer: say("api answers"),
    Attachment: say("attachments"),
    Revert: say("reverts"),
    Rewind: say("rewinds"),
    JournalGap: say("journal gaps"),
    ReviewNote: say("review notes"),
    ReviewFlag: say("review flags"),
    ReviewMark: say("review marks"),
    MemoryEntry: say("links from the workspace memory"),
    ChatEvent: say("events"),
    SearchEntry: say("search entries"),
    SearchProgress: say("positions in the search index"),
    TurnEmbedding: say("vectors of turns"),
    PromptText: say("texts for the model"),
    FileChange: say("file changes"),
    SessionSkill: say("loaded skills"),
    Compaction: say("summaries"),
    StateCheckpoint: say("snapshots of the session state"),
    PurgeOrder: say("scheduled deletions"),
    ReadingPosition: say("reading positions"),
}


def purged_tables() -> PurgedTables:
    """Return the tables of the features and of the core, in the order of deletion."""
    tables = PurgedTables()
    for feature in features():
        own = feature.purged_tables()
        tables.removed.update(own.removed)
        tables.folded.update(own.folded)
        tables.names.update(own.names)
    tables.folded[MemoryEntry] = _forget_source
    tables.removed.update(ROWS)
    tables.names.update(_NAMES)
    return tables


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan:
    """The rows that a purge would remove.

    ``counts`` are the numbers of rows by table, without empty tables. ``folded`` are the numbers of
    rows whose totals are kept without naming the session. ``contents`` are the digests of the
    session's files, and ``shared`` is the number of those that are also used elsewhere. ``forks``
    is the number of sessions that lose their parent.
    """

    counts: dict[str, int]
    folded: dict[str, int]
    contents: frozenset[str]
    shared: int
    forks: int

    @property
    def row_count(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRequest:
    """The decision for a purge: who made it, and why.

    ``pk`` is the primary key of the PurgeOrder that is executed, or None if there was no order. An
    order can be cancelled until it is executed.
    """

    reason: str
    pk: int | None = None
    by: User | None = None
    by_name: str = ""
    by_policy: bool = False


def plan_purge(session: Session) -> PurgePlan:
    """Return the plan of a purge at this moment, without changing anything."""
    tables, contents = purged_tables(), frozenset(contents_of(session.pk))
    return PurgePlan(
        counts=count_rows(session.pk),
        folded={
            name_of(model, tables): rows_of_session(model)(session.pk).count()
            for model in tables.folded
        },
        contents=contents,
        shared=len(named_elsewhere(contents, session_pk=session.pk)),
        forks=Session.objects.filter(parent=session.pk).count(),
    )


def count_rows(session_pk: int) -> dict[str, int]:
    """Return the numbers of the session's rows by table, without empty tables."""
    tables = purged_tables()
    counts = {
        name_of(model, tables): rows(session_pk).count() for model, rows in tables.removed.items()
    }
    return {name: count for name, count in counts.items() if count}


def name_of(model: type[Model], tables: PurgedTables) -> str:
    """Return the name of a table's rows in a plan and a receipt."""
    return tables.names.get(model) or str(model._meta.verbose_name_plural)


def purge(session: Session, *, order: PurgeRequest, origin: AuditOrigin, now: datetime) -> Receipt:
    """Remove a session in one transaction and return its receipt.

    The session's blobs are recorded for removal. They are removed after the commit, because
    removing files cannot be rolled back. Raise Conflict while a feature keeps the session (a hold),
    while a run is active or waiting, and if the order was cancelled. Raise NotFound if the session
    is already gone.
    """
    tables = purged_tables()
    with transaction.atomic():
        lock_session(session.pk)
        Workspace.objects.select_for_update(no_key=True).get(pk=session.workspace_id)
        session.refresh_from_db()
        for feature in features():
            feature.check_purge(session)
        refuse_busy(session.pk)
        if order.pk is not None and not PurgeOrder.objects.filter(pk=order.pk).exists():
            raise Conflict("The deletion was cancelled in the meantime.", code="no_purge_ordered")
        record_purged_contents(contents_of(session.pk), now=now)
        Session.objects.filter(parent=session.pk).update(parent=None)
        for fold in tables.folded.values():
            fold(session.pk)
        receipt = _make_receipt(session, order=order, now=now)
        # The database triggers allow the deletion of archived rows while this row exists. Other
        # transactions never see the row.
        permit = PurgePermit.objects.create(
            session_pk=session.pk, reason=order.reason, created_at=now
        )
        counts = {}
        for model, rows in tables.removed.items():
            queryset = rows(session.pk)
            counts[name_of(model, tables)] = queryset._raw_delete(queryset.db)
        permit.delete()
        receipt.counts = dump_json({name: count for name, count in counts.items() if count})
        receipt.digest = digest_of_receipt(receipt)
        receipt.save(force_insert=True)
        facts = {"receipt": str(receipt.uuid), "digest": receipt.digest, "reason": order.reason}
        record(origin, session_event(session, PURGED, **facts))
    return receipt


def _make_receipt(session: Session, *, order: PurgeRequest, now: datetime) -> Receipt:
    return Receipt(
        uuid=uuid4(),
        session=session.uuid,
        workspace=session.workspace.slug,
        owner=session.owner.get_username(),
        key=session.key or session.former_key or "",
        channel=session.channel,
        created_at=session.created_at,
        last_active_at=session.last_active_at,
        purged_at=now,
        ordered_by=order.by,
        ordered_by_name=order.by.get_username() if order.by else order.by_name,
        reason=order.reason,
        by_policy=order.by_policy,
        turns=session.turn_count,
        events=session.last_seq,
        turn_digest=session.turn_digest,
        event_digest=session.event_digest,
    )


# The columns of a receipt that its digest covers, in this order
DIGESTED = (
    *("uuid", "session", "workspace", "owner", "key", "channel", "created_at", "last_active_at"),
    *("purged_at", "ordered_by_id", "ordered_by_name", "reason", "by_policy", "turns", "events"),
    *("counts", "turn_digest", "event_digest", "cold_name", "cold_digest"),
)


def digest_of_receipt(receipt: Receipt) -> str:
    """Return the receipt's digest: SHA-256 over the columns as compact JSON."""
    values = []
    for name in DIGESTED:
        value = getattr(receipt, name)
        if isinstance(value, UUID):
            value = str(value)
        elif isinstance(value, datetime):
            value = instant(value)
        values.append(value)
    return next_digest("loom:receipt", tuple(values))


def contents_of(session_pk: int) -> set[str]:
    """Return the digests of all blobs to which the session refers."""
    changes = FileChange.objects.filter(session=session_pk).values_list("before", "after")
    files = Attachment.objects.filter(session=session_pk).values_list(*_FILE_COLUMNS)
    trees = ToolCall.objects.filter(session=session_pk).values_list("tree")
    rows = chain(changes.iterator(), files.iterator(), trees.iterator())
    return {digest for row in rows for digest in row} - {""}


_FILE_COLUMNS = ("digest", "sent", "thumbnail")

_REFERRING_COLUMNS: tuple[tuple[type[Model], str], ...] = (
    (FileChange, "before"),
    (FileChange, "after"),
    *((Attachment, column) for column in _FILE_COLUMNS),
    (ToolCall, "tree"),
)


def named_elsewhere(digests: Iterable[str], *, session_pk: int | None = None) -> set[str]:
    """Return those of the digests to which a row of another session or a feature refers."""
    distinct = set(digests)
    return named_by_sessions(distinct, session_pk=session_pk) | named_by_features(distinct)


def named_by_features(digests: Iterable[str]) -> set[str]:
    return set(digests) & {blob for feature in features() for blob in feature.named_blobs()}


def named_by_sessions(digests: Iterable[str], *, session_pk: int | None = None) -> set[str]:
    """Return those of the digests to which a row of any session except ``session_pk`` refers."""
    found: set[str] = set()
    for chunk in batched(sorted(digests), BATCH_ROWS, strict=False):
        for model, column in _REFERRING_COLUMNS:
            rows = model._default_manager.filter(**{f"{column}__in": chunk})
            if session_pk is not None:
                rows = rows.exclude(session=session_pk)
            found.update(rows.order_by().values_list(column, flat=True).distinct())
    return found


def record_purged_contents(digests: Iterable[str], *, now: datetime) -> None:
    """Record that these blobs are to be removed once nothing refers to them."""
    for chunk in batched(sorted(digests), BATCH_ROWS, strict=False):
        PurgedContent.objects.bulk_create(
            [PurgedContent(digest=digest, purged_at=now) for digest in chunk],
            update_conflicts=True,
            unique_fields=["digest"],
            update_fields=["purged_at"],
        )


def waiting_contents(*, after: str) -> dict[str, datetime]:
    """Return a page of the digests to be removed, in order, with the time of their last record."""
    rows = PurgedContent.objects.filter(digest__gt=after).order_by("digest")
    return dict(rows.values_list("digest", "purged_at")[:BATCH_ROWS])


def forget_purged_contents(recorded: dict[str, datetime]) -> None:
    """Delete the records of these blobs, except the records that were renewed meanwhile.

    The blobs are removed, or another session still uses them and its purge will record them again.
    """
    for moment in set(recorded.values()):
        digests = [digest for digest, recorded_at in recorded.items() if recorded_at == moment]
        PurgedContent.objects.filter(digest__in=digests, purged_at=moment).delete()


def oldest_answer(now: datetime) -> datetime:
    """Return the oldest time of an answer that is repeated for the same idempotency key."""
    return now - timedelta(hours=settings.LOOM.idempotency_hours)


def forget_answers(now: datetime) -> int:
    """Delete stored answers that are too old to be repeated. Return how many were deleted."""
    old = ApiAnswer.objects.filter(created_at__lt=oldest_answer(now))
    return remove_in_pieces(old.order_by("pk"))
