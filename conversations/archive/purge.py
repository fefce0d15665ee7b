"""Removing a session from the archive, the one way there is.

All of it goes in one transaction, which leaves the receipt and an entry in the audit
log. :data:`ROWS` names every table of the core that has something of a session; a test
fails when a new one is missing.
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
from conversations.domain.text import dump_json, instant, load_json, next_digest
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

from .append import lock_session, remove_in_pieces, walk_by_pk
from .audit import AuditOrigin, record, session_event
from .messages import refuse_busy
from .model_calls import OWN_INSTRUCTIONS

BATCH_ROWS = 500

# Of other sessions, which are looked through for a prompt of the purged one, some kilobytes each:
# the purge holds up all writers.
MAX_COMPARED_CALLS = 10_000


# Of calls in sessions that have instructions of their own, or may have had.
_INSTRUCTED = ~Q(session__instructions="") | Q(session__rewind_count__gt=0)


def rows_of_session(model: type[Model]) -> Rows:
    return lambda pk: model._default_manager.filter(session=pk)


def _own_prompt_texts(pk: int) -> QuerySet[PromptText]:
    """What the model was given in this session alone: earlier summaries, to write the next one, and
    system prompts with instructions of its own. The other texts, system prompts and tools, are
    shared and say nothing of the session."""
    own = ModelCall.objects.filter(session=pk)
    prompts = PromptText.objects.filter(digest__in=_named(own.filter(_INSTRUCTED), "system_digest"))
    prompts = prompts.filter(text__contains=f"{OWN_INSTRUCTIONS}\n").order_by("digest")
    if connection.in_atomic_block:
        # The purge of it: calls that are being stored with one of them are waited for.
        prompts = prompts.select_for_update()
    digests = _used_by_no_other(pk, set(prompts.values_list("digest", flat=True)))
    summarised = own.filter(manifest__contains='"previous_digest"')
    return PromptText.objects.filter(digest__in=digests | _named(summarised, "previous_digest"))


def _used_by_no_other(pk: int, digests: set[str]) -> set[str]:
    """Those of the digests of system prompts that no other session's call names; none of them
    where there are too many calls to tell."""
    # Another session had the same prompt only in a workspace of the same name.
    name = Session.objects.filter(pk=pk).values("workspace__name")
    others = ModelCall.objects.filter(_INSTRUCTED, session__workspace__name__in=name)
    others = others.exclude(session=pk).order_by("-pk")
    if not digests or others[MAX_COMPARED_CALLS : MAX_COMPARED_CALLS + 1].exists():
        return set()
    return digests - _named(others, "system_digest")


def _named(calls: QuerySet[ModelCall], key: str) -> set[str]:
    """The digests that manifests have under this key."""
    pattern = re.compile(rf'"{key}":"([0-9a-f]{{64}})"')
    digests = set[str]()
    for manifest in calls.order_by("pk").values_list("manifest", flat=True).iterator():
        digests.update(pattern.findall(manifest))
    return digests


_ORDER: tuple[type[Model], ...] = (
    *(PromptText, FileChange, Revert, ApiAnswer, ToolCall, ModelCall, DraftChunk, Run),
    *(Attachment, Compaction, SessionSkill, StateCheckpoint, Rewind, JournalGap, ChatEvent),
    *(Turn, TurnEmbedding, SearchEntry, SearchProgress),
    *(ReadingPosition, ReviewNote, ReviewFlag, ReviewMark, PurgeOrder),
)
_FOUND_OTHERWISE: dict[type[Model], Rows] = {
    PromptText: _own_prompt_texts,
    DraftChunk: lambda pk: DraftChunk.objects.filter(
        run__in=Run.objects.filter(session=pk).values("pk")
    ),
    # By their keys, a range: they have no index by session.
    SearchEntry: partial(session_rows, SearchEntry),
    TurnEmbedding: partial(session_rows, TurnEmbedding),
}
# Table of the core → its rows of the session with this key, in the order in which they go.
# Those of the features go before them.
ROWS: dict[type[Model], Rows] = {
    **{model: _FOUND_OTHERWISE.get(model) or rows_of_session(model) for model in _ORDER},
    Session: lambda pk: Session.objects.filter(pk=pk),
}


def _forget_source(session_pk: int) -> int:
    """What was kept of a session is the workspace's own and stays, without its source."""
    found = MemoryEntry.objects.filter(session=session_pk)
    found.filter(is_declined=True).delete()
    return found.update(session=None, turn=None, item="")


def _remove_title_beside(session_pk: int) -> None:
    """Earlier versions wrote a session's title into the records of the calls that were given an
    account of it, in sessions that continue it."""
    calls = ModelCall.objects.filter(session__parent=session_pk, manifest__contains='"parent":{')
    for call in walk_by_pk(calls.filter(manifest__contains='"title":')):
        manifest = load_json(call.manifest)
        manifest["parent"].pop("title", None)
        call.manifest = dump_json(manifest)
        call.save(update_fields=["manifest"])


# What a plan and a receipt call the tables, for whoever reads them to translate.
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
    """Those of the features and of the core."""
    found = PurgedTables()
    for feature in features():
        own = feature.purged_tables()
        found.removed.update(own.removed)
        found.folded.update(own.folded)
        found.names.update(own.names)
    found.folded[MemoryEntry] = _forget_source
    found.removed.update(ROWS)
    found.names.update(_NAMES)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan:
    """What a purge takes. ``counts`` are rows by table, those that have any; ``folded`` are rows
    whose sums stay without naming the session. ``contents`` are digests of files, ``shared`` how
    many of these something else names too; ``forks`` are sessions that lose their parent."""

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
    """Who decided on a purge, and why. ``pk`` is that of the order that is carried out,
    which can be called off until then; None: nothing was ordered before."""

    reason: str
    pk: int | None = None
    by: User | None = None
    by_name: str = ""
    by_policy: bool = False


def plan_purge(session: Session) -> PurgePlan:
    """What a purge would take now. Changes nothing."""
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
    """The session's rows by table, of tables that have any."""
    tables = purged_tables()
    counts = {
        name_of(model, tables): rows(session_pk).count() for model, rows in tables.removed.items()
    }
    return {name: count for name, count in counts.items() if count}


def name_of(model: type[Model], tables: PurgedTables) -> str:
    """What a table's rows are called in a plan and a receipt."""
    return tables.names.get(model) or str(model._meta.verbose_name_plural)


def purge(session: Session, *, order: PurgeRequest, origin: AuditOrigin, now: datetime) -> Receipt:
    """Remove a session and leave a receipt, all or nothing. Its contents are noted for removal:
    files cannot be rolled back, so they go after the commit. Raises Conflict while a feature keeps
    it (a hold), while an answer is being written, and where the order was called off; NotFound when
    it is gone already."""
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
        _remove_title_beside(session.pk)
        Session.objects.filter(parent=session.pk).update(parent=None)
        for fold in tables.folded.values():
            fold(session.pk)
        receipt = _make_receipt(session, order=order, now=now)
        # The triggers let archived rows go while this row is there; nobody else ever sees it.
        permit = PurgePermit.objects.create(
            session_pk=session.pk, reason=order.reason, created_at=now
        )
        counts = {}
        for model, rows in tables.removed.items():
            found = rows(session.pk)
            counts[name_of(model, tables)] = found._raw_delete(found.db)
        permit.delete()
        receipt.counts = dump_json({name: count for name, count in counts.items() if count})
        receipt.digest = digest_of_receipt(receipt)
        receipt.save(force_insert=True)
        known = {"receipt": str(receipt.uuid), "digest": receipt.digest}
        record(origin, session_event(session, PURGED, **known, reason=order.reason))
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


# The columns of a receipt that its digest covers, in this order.
DIGESTED = (
    *("uuid", "session", "workspace", "owner", "key", "channel", "created_at", "last_active_at"),
    *("purged_at", "ordered_by_id", "ordered_by_name", "reason", "by_policy", "turns", "events"),
    *("counts", "turn_digest", "event_digest", "cold_name", "cold_digest"),
)


def digest_of_receipt(receipt: Receipt) -> str:
    """What the receipt's digest has to be: SHA-256 over the columns as compact JSON."""
    found = (getattr(receipt, name) for name in DIGESTED)
    texts = (str(value) if isinstance(value, UUID) else value for value in found)
    values = (instant(value) if isinstance(value, datetime) else value for value in texts)
    return next_digest("loom:receipt", tuple(values))


def contents_of(session_pk: int) -> set[str]:
    """The digests of all contents that the session names."""
    changes = FileChange.objects.filter(session=session_pk).values_list("before", "after")
    files = Attachment.objects.filter(session=session_pk).values_list(*_FILE_COLUMNS)
    trees = ToolCall.objects.filter(session=session_pk).values_list("tree")
    rows = chain(changes.iterator(), files.iterator(), trees.iterator())
    return {digest for row in rows for digest in row} - {""}


_FILE_COLUMNS = ("digest", "sent", "thumbnail")

_NAMING: tuple[tuple[type[Model], str], ...] = (
    (FileChange, "before"),
    (FileChange, "after"),
    *((Attachment, column) for column in _FILE_COLUMNS),
    (ToolCall, "tree"),
)


def named_elsewhere(digests: Iterable[str], *, session_pk: int | None = None) -> set[str]:
    """Those of the digests that a row names, of any session but this one, or a feature."""
    wanted = set(digests)
    return named_by_sessions(wanted, session_pk=session_pk) | named_by_features(wanted)


def named_by_features(digests: Iterable[str]) -> set[str]:
    return set(digests) & {blob for feature in features() for blob in feature.named_blobs()}


def named_by_sessions(digests: Iterable[str], *, session_pk: int | None = None) -> set[str]:
    """Those of the digests that a row of any session but this one names."""
    found: set[str] = set()
    for some in batched(sorted(digests), BATCH_ROWS, strict=False):
        for model, column in _NAMING:
            rows = model._default_manager.filter(**{f"{column}__in": some})
            if session_pk is not None:
                rows = rows.exclude(session=session_pk)
            found.update(rows.order_by().values_list(column, flat=True).distinct())
    return found


def record_purged_contents(digests: Iterable[str], *, now: datetime) -> None:
    """These are to go as soon as nothing names them any more."""
    for some in batched(sorted(digests), BATCH_ROWS, strict=False):
        PurgedContent.objects.bulk_create(
            [PurgedContent(digest=digest, purged_at=now) for digest in some],
            update_conflicts=True,
            unique_fields=["digest"],
            update_fields=["purged_at"],
        )


def waiting_contents(*, after: str = "") -> dict[str, datetime]:
    """Digests of contents that are to go, in order, a page of them, and when they were noted
    last."""
    rows = PurgedContent.objects.filter(digest__gt=after).order_by("digest")
    return dict(rows.values_list("digest", "purged_at")[:BATCH_ROWS])


def forget_purged_contents(noted: dict[str, datetime]) -> None:
    """These are gone, or the purge of another session notes them again, but for those that were
    noted since."""
    for moment in set(noted.values()):
        digests = [digest for digest, at in noted.items() if at == moment]
        PurgedContent.objects.filter(digest__in=digests, purged_at=moment).delete()


def oldest_answer(now: datetime) -> datetime:
    """From when on an answer to a request with an idempotency key is given again."""
    return now - timedelta(hours=settings.LOOM.idempotency_hours)


def forget_answers(now: datetime) -> int:
    """Remove the answers that are given no more. Returns how many."""
    old = ApiAnswer.objects.filter(created_at__lt=oldest_answer(now))
    return remove_in_pieces(old.order_by("pk"))
