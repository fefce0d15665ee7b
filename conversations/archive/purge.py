"""Removing a session from the archive, the one way there is.

All of it goes in one transaction, which leaves the receipt and an entry in the audit
log. The guards let rows go only under a permit, which the same transaction writes and
removes. :data:`ROWS` names every table that has something of a session; a test fails
when a new one is missing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import Any, NamedTuple
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Model, QuerySet

from conversations.domain.audit import PURGED
from conversations.domain.digest import instant, next_digest
from conversations.domain.errors import Conflict
from conversations.domain.text import dump_json, load_json
from conversations.feature import Rows, features
from conversations.models import (
    ApiAnswer,
    Attachment,
    ChatEvent,
    Compaction,
    DraftChunk,
    FileChange,
    Hold,
    JournalGap,
    ModelCall,
    PromptText,
    PurgedContent,
    PurgeOrder,
    PurgePermit,
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
    Workspace,
)
from conversations.models.search import entry_id

from .audit import AuditOrigin, note_of, record
from .messages import refuse_busy
from .sessions import lock_session

# What remains of a purged session, as its digest covers it.


class Received(NamedTuple):
    """The columns of a receipt that its digest covers, in this order."""

    uuid: str
    session: str
    workspace: str
    owner: str
    key: str
    channel: str
    created_at: datetime
    last_active_at: datetime
    purged_at: datetime
    ordered_by: int | None
    ordered_by_name: str
    reason: str
    by_policy: bool
    turns: int
    events: int
    counts: str
    turn_digest: str
    event_digest: str
    cold_name: str
    cold_digest: str


def receipt_digest(receipt: Received) -> str:
    """SHA-256 over the columns as compact JSON."""
    values = (instant(item) if isinstance(item, datetime) else item for item in receipt)
    return next_digest("loom:receipt", tuple(values))


CHUNK = 500


def _of_session(model: type[Model]) -> Callable[[int], QuerySet[Any]]:
    return lambda pk: model._default_manager.filter(session=pk)


def _draft_chunks(pk: int) -> QuerySet[DraftChunk]:
    return DraftChunk.objects.filter(run__in=Run.objects.filter(session=pk).values("pk"))


def _search_entries(pk: int) -> QuerySet[SearchEntry]:
    """By their keys, a range: they have no index by session."""
    return SearchEntry.objects.filter(pk__gt=entry_id(pk, 0), pk__lt=entry_id(pk + 1, 0))


def _summaries_given(pk: int) -> QuerySet[PromptText]:
    """Earlier summaries that the model was given to write the next one. The other
    texts, system prompts and tools, are shared and say nothing of the session."""
    manifests = ModelCall.objects.filter(session=pk, manifest__contains='"previous_digest"')
    digests = set()
    for manifest in manifests.order_by("pk").values_list("manifest", flat=True).iterator():
        digests.add(_previous_digest(manifest))
    return PromptText.objects.filter(digest__in=digests - {""})


def _previous_digest(manifest: str) -> str:
    try:
        value = load_json(manifest, default={})
    except ValueError:
        return ""
    return str(value.get("previous_digest") or "") if isinstance(value, dict) else ""


ROWS: dict[type[Model], Rows] = {
    PromptText: _summaries_given,
    FileChange: _of_session(FileChange),
    Revert: _of_session(Revert),
    ApiAnswer: _of_session(ApiAnswer),
    ToolCall: _of_session(ToolCall),
    ModelCall: _of_session(ModelCall),
    DraftChunk: _draft_chunks,
    Run: _of_session(Run),
    Attachment: _of_session(Attachment),
    Compaction: _of_session(Compaction),
    SessionSkill: _of_session(SessionSkill),
    StateCheckpoint: _of_session(StateCheckpoint),
    Rewind: _of_session(Rewind),
    JournalGap: _of_session(JournalGap),
    ChatEvent: _of_session(ChatEvent),
    Turn: _of_session(Turn),
    SearchEntry: _search_entries,
    SearchProgress: _of_session(SearchProgress),
    ReviewNote: _of_session(ReviewNote),
    ReviewFlag: _of_session(ReviewFlag),
    ReviewMark: _of_session(ReviewMark),
    Hold: _of_session(Hold),
    PurgeOrder: _of_session(PurgeOrder),
    Session: lambda pk: Session.objects.filter(pk=pk),
}
"""Table of the core → its rows of the session with this key, in the order in which they go.
Those of the features go before them."""


def removed_tables() -> dict[type[Model], Rows]:
    """All tables that have rows of a session, in the order in which these go."""
    tables: dict[type[Model], Rows] = {}
    for feature in features():
        tables |= feature.purged_tables().removed
    return tables | ROWS


def folded_tables() -> dict[type[Model], Callable[[int], int]]:
    """Table → what takes a session's rows together with others that name none."""
    tables: dict[type[Model], Callable[[int], int]] = {}
    for feature in features():
        tables |= feature.purged_tables().folded
    return tables


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan:
    """What a purge takes. ``counts`` are rows by table, those that have any; ``folded``
    are rows whose sums stay without naming the session.
    ``contents`` are digests of files, ``shared`` how many of these something else
    names too; ``forks`` are sessions that lose their parent."""

    counts: dict[str, int]
    folded: dict[str, int]
    contents: frozenset[str]
    shared: int
    forks: int

    @property
    def row_count(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdCopy:
    """A copy in cold storage, and the session's digests when it was made."""

    name: str
    digest: str
    turn_digest: str
    event_digest: str


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
    contents = frozenset(contents_of(session.pk))
    return PurgePlan(
        counts=count_rows(session.pk),
        folded={
            name_of(model): _of_session(model)(session.pk).count() for model in folded_tables()
        },
        contents=contents,
        shared=len(named_elsewhere(contents, session_pk=session.pk)),
        forks=Session.objects.filter(parent=session.pk).count(),
    )


def count_rows(session_pk: int) -> dict[str, int]:
    """The session's rows by table."""
    counted = {name_of(model): rows(session_pk).count() for model, rows in removed_tables().items()}
    return {name: count for name, count in counted.items() if count}


def purge(
    session: Session,
    *,
    order: PurgeRequest,
    origin: AuditOrigin,
    now: datetime,
    cold: ColdCopy | None = None,
) -> Receipt:
    """Remove a session and leave a receipt, all or nothing. Its contents are noted for
    removal (see ``features.retention.service``).

    Raises Conflict while it is on hold, while an answer is being written, where the order
    was called off, and where it has changed since the ``cold`` copy was made; NotFound
    when it is gone already.
    """
    with transaction.atomic():
        lock_session(session.pk)
        Workspace.objects.select_for_update(no_key=True).get(pk=session.workspace_id)
        session.refresh_from_db()
        for feature in features():
            feature.check_purge(session)
        refuse_busy(session.pk)
        _refuse_called_off(order)
        _refuse_changed(session, cold)
        _note_contents(contents_of(session.pk), now=now)
        Session.objects.filter(parent=session.pk).update(parent=None)
        for fold in folded_tables().values():
            fold(session.pk)
        receipt = _make_receipt(session, order=order, now=now, cold=cold)
        receipt.counts = dump_json(_remove_rows(session.pk, reason=order.reason, now=now))
        receipt.digest = digest_of_receipt(receipt)
        receipt.save(force_insert=True)
        known = {"receipt": str(receipt.uuid), "digest": receipt.digest}
        record(origin, note_of(session, PURGED, **known, reason=order.reason))
    return receipt


def _refuse_called_off(order: PurgeRequest) -> None:
    if order.pk is not None and not PurgeOrder.objects.filter(pk=order.pk).exists():
        raise Conflict("The purge was called off meanwhile.", code="no_purge_ordered")


def _refuse_changed(session: Session, cold: ColdCopy | None) -> None:
    if cold is None:
        return
    if (cold.turn_digest, cold.event_digest) != (session.turn_digest, session.event_digest):
        raise Conflict(
            "The session has changed since it was copied. Try again.", code="session_changed"
        )


def _remove_rows(session_pk: int, *, reason: str, now: datetime) -> dict[str, int]:
    permit = PurgePermit.objects.create(session_pk=session_pk, reason=reason, created_at=now)
    counts = {}
    for model, rows in removed_tables().items():
        found = rows(session_pk)
        counts[name_of(model)] = found._raw_delete(found.db)
    permit.delete()
    return {name: count for name, count in counts.items() if count}


_NAMES: dict[type[Model], str] = {
    ChatEvent: "events",
    SearchEntry: "search entries",
    SearchProgress: "places in the search index",
    PromptText: "summaries that the model was given",
    FileChange: "records of changed files",
    SessionSkill: "loaded skills",
    Compaction: "summaries",
    StateCheckpoint: "snapshots of the session state",
    PurgeOrder: "orders to purge",
}


def name_of(model: type[Model]) -> str:
    """What a table's rows are called in a plan and a receipt."""
    names = dict(_NAMES)
    for feature in features():
        names |= feature.purged_tables().names
    return names.get(model) or str(model._meta.verbose_name_plural)


def _make_receipt(
    session: Session, *, order: PurgeRequest, now: datetime, cold: ColdCopy | None
) -> Receipt:
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
        cold_name=cold.name if cold else "",
        cold_digest=cold.digest if cold else "",
    )


def digest_of_receipt(receipt: Receipt) -> str:
    """What the receipt's digest has to be."""
    values = {name: getattr(receipt, name) for name in Received._fields}
    values |= {
        "uuid": str(receipt.uuid),
        "session": str(receipt.session),
        "ordered_by": receipt.ordered_by_id,
    }
    return receipt_digest(Received(**values))


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
    """Those of the digests that a row names, of any session but this one."""
    return set(chain.from_iterable(_named(some, session_pk) for some in _in_chunks(digests)))


def _named(digests: list[str], session_pk: int | None) -> Iterator[str]:
    for model, column in _NAMING:
        rows = model._default_manager.filter(**{f"{column}__in": digests})
        if session_pk is not None:
            rows = rows.exclude(session=session_pk)
        yield from rows.order_by().values_list(column, flat=True).distinct()


def waiting_contents(*, after: str = "") -> dict[str, datetime]:
    """Digests that purged sessions named, in order, a page of them, and when the last of
    these was purged."""
    rows = PurgedContent.objects.filter(digest__gt=after).order_by("digest")
    return dict(rows.values_list("digest", "purged_at")[:CHUNK])


def forget_contents(noted: dict[str, datetime]) -> None:
    """These are gone, or stay for good, but for those that another purge has noted since."""
    for moment in set(noted.values()):
        digests = (digest for digest, at in noted.items() if at == moment)
        for some in _in_chunks(digests):
            PurgedContent.objects.filter(digest__in=some, purged_at=moment).delete()


def _note_contents(digests: Iterable[str], *, now: datetime) -> None:
    for some in _in_chunks(digests):
        rows = [PurgedContent(digest=digest, purged_at=now) for digest in some]
        PurgedContent.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["digest"], update_fields=["purged_at"]
        )


def _in_chunks(items: Iterable[str]) -> Iterator[list[str]]:
    left = iter(sorted(items))
    while some := list(islice(left, CHUNK)):
        yield some
