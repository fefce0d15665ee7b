"""Purging: the rows that are deleted, the receipt that remains, and refusals."""

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, transaction
from django.db.models import ForeignKey, Model
from django.utils import timezone

from conversations.archive import purge as purging
from conversations.archive.append import NewEvent, append
from conversations.archive.attachments import save_attachment
from conversations.archive.audit import AuditOrigin, record, session_event, verify_audit
from conversations.archive.blobs import put_blob
from conversations.archive.context import digest_of
from conversations.archive.messages import accept_message
from conversations.archive.purge import (
    PurgeRequest,
    count_rows,
    digest_of_receipt,
    name_of,
    plan_purge,
    purge,
    purged_tables,
)
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import create_session, get_session
from conversations.archive.verify import verify_sessions
from conversations.domain.audit import PURGED, TRANSCRIPT
from conversations.domain.errors import Conflict, NotFound
from conversations.domain.events import UserMessage
from conversations.domain.text import dump_json, load_json
from conversations.domain.turns import NewTurn
from conversations.models import (
    ApiAnswer,
    AuditEntry,
    AuditHead,
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
    Run,
    Session,
    SessionSkill,
    StateCheckpoint,
    ToolCall,
    Turn,
    TurnEmbedding,
    Workspace,
)
from conversations.models.guards import GUARDED
from conversations.models.search import INDEX, entry_id
from conversations.search.indexing import index_session
from tests.archive.files import image_bytes
from tests.conftest import ARCHIVED
from tests.features import collect

pytestmark = pytest.mark.django_db

SHARED = b"the same file in two sessions"


def stock(session: Session, user: User) -> None:
    """Store a row in every table that has rows of sessions."""
    now = timezone.now()
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(role="user", content="Plant the beans")],
        events=[NewEvent(payload=UserMessage(text="Plant the beans"), new=0)],
    )
    append_rewind(
        get_session(session.uuid), from_turn=1, from_seq=1, reason="edit", actor_pk=user.pk
    )
    index_session(session.pk)
    TurnEmbedding.objects.create(pk=entry_id(session.pk, 1), session=session, vector=bytes(384))
    of = {"session": session}
    JournalGap.objects.create(**of, from_turn=1, to_turn=1, after_seq=0)
    SessionSkill.objects.create(
        **of, name="s", content="c", digest=digest_of("c"), turn_number=1, loaded_at=now
    )
    sizes = dict.fromkeys(("before_turns", "after_turns", "before_tokens", "after_tokens"), 1)
    Compaction.objects.create(
        **of, from_turn=1, to_turn=1, summary="s", reason="manual", created_at=now, **sizes
    )
    StateCheckpoint.objects.create(**of, turn=50, seq=0, rewinds=0, state="{}")
    run = Run.objects.create(**of, client_id="c", state="completed", created_at=now)
    DraftChunk.objects.create(run=run, ordinal=0, part=0, kind="text", text="x")
    earlier = PromptText.objects.create(digest=uuid4().hex * 2, text="Summary of earlier turns")
    manifest = dump_json({"previous_digest": earlier.digest, "system_digest": "0" * 64})
    ModelCall.objects.create(**of, run=run, ordinal=0, manifest=manifest, created_at=now)
    call = ToolCall.objects.create(
        **of, run=run, call_id="c", name="ls", state="completed", turn_number=1, created_at=now
    )
    revert = Revert.objects.create(**of, run=run, call=call, created_at=now)
    FileChange.objects.create(
        **of,
        run=run,
        call=call,
        path="a",
        before=put_blob(SHARED),
        after=put_blob(f"only in {session.uuid}".encode()),
        created_at=now,
        reverted_by=revert,
    )
    ApiAnswer.objects.create(**of, user=user, key=str(session.uuid), fingerprint="", created_at=now)
    save_attachment(session.pk, data=image_bytes(), name="bed.png", user_pk=user.pk, turn=1)
    review = {**of, "author": user, "created_at": now}
    ReviewNote.objects.create(**review, turn=1, text="Look at this")
    ReviewFlag.objects.create(**review, turn=1, label="other")
    ReviewMark.objects.create(**review, through_turn=1)
    ReadingPosition.objects.create(**of, user=user, turn=1)
    PurgeOrder.objects.create(**of, reason="r", ordered_at=now, due_at=now)
    for stock_feature in collect("stock"):
        stock_feature(session, run)


def remove(session: Session, user: User) -> Receipt:
    return purge(
        get_session(session.uuid),
        order=PurgeRequest(reason="They asked for it.", by=user),
        origin=AuditOrigin(name="purge_session"),
        now=timezone.now(),
    )


def every_table() -> Iterator[type[Model]]:
    return iter(apps.get_app_config("conversations").get_models())


def count_all() -> dict[str, int]:
    counts = {
        name_of(model, purged_tables()): model._default_manager.count() for model in every_table()
    }
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {INDEX} WHERE {INDEX} MATCH 'bean'")
            counts["words in the index"] = cursor.fetchone()[0]
    return counts


def leads_to_session(model: type[Model], seen: frozenset[type[Model]] = frozenset()) -> bool:
    """Return whether rows of the model belong to a session, directly or through other models."""
    targets = [f.related_model for f in model._meta.concrete_fields if isinstance(f, ForeignKey)]
    return any(
        target is Session
        or (
            target not in (model, *seen)
            and target is not Workspace
            and leads_to_session(target, seen | {model})
        )
        for target in targets
        if isinstance(target, type)
    )


def test_every_table_that_leads_to_a_session_is_covered() -> None:
    leading = {model for model in every_table() if leads_to_session(model)}
    assert {Run, DraftChunk, FileChange, PurgeOrder} <= leading  # checks the search itself
    tables = purged_tables()
    assert leading == tables.removed.keys() - {PromptText} | tables.folded.keys()


def test_purge_removes_exactly_the_rows_of_its_plan(
    workspace: Workspace, session: Session, user: User
) -> None:
    record(
        AuditOrigin(user=user), session_event(session, TRANSCRIPT)
    )  # otherwise the purge's audit entry would be the first
    other = create_session(workspace, owner=user)
    stock(session, user)
    stock(other, user)
    plan, before = plan_purge(get_session(session.uuid)), count_all()
    assert set(plan.counts) == {
        name_of(model, purged_tables()) for model in purged_tables().removed
    }
    receipt = remove(session, user)
    after = count_all()
    assert load_json(receipt.counts) == plan.counts
    added = {"audit entries": 1, "receipts": 1}
    added["purged contents"] = len(plan.contents)
    words = {"words in the index": -1} if connection.vendor == "sqlite" else {}
    expected = {name: -count for name, count in plan.counts.items()} | added | words
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert changed == expected
    assert plan.shared >= 2  # the file and the picture that the other session has too
    assert [verified.problem for verified in verify_sessions()] == [""]


def test_purge_does_not_touch_another_session(
    workspace: Workspace, session: Session, user: User
) -> None:
    other = create_session(workspace, owner=user)
    stock(session, user)
    stock(other, user)
    tables = purged_tables().removed
    before = {model: list(rows(other.pk).values()) for model, rows in tables.items()}
    assert all(before.values())
    remove(session, user)
    assert {model: list(rows(other.pk).values()) for model, rows in tables.items()} == before


def test_receipt_records_the_counts_digests_person_and_reason(session: Session, user: User) -> None:
    stock(session, user)
    kept = get_session(session.uuid)
    receipt = remove(session, user)
    assert (receipt.session, receipt.workspace, receipt.owner) == (session.uuid, "garden", "ann")
    assert (receipt.turns, receipt.events) == (kept.turn_count, kept.last_seq)
    assert (receipt.turn_digest, receipt.event_digest) == (kept.turn_digest, kept.event_digest)
    assert (receipt.ordered_by_name, receipt.reason) == ("ann", "They asked for it.")
    assert receipt.digest == digest_of_receipt(Receipt.objects.get())
    entry = AuditEntry.objects.filter(action=PURGED).get()
    assert (entry.session, entry.actor_name) == (session.uuid, "purge_session")
    assert load_json(entry.metadata)["digest"] == receipt.digest
    assert verify_audit()[1] == ""


CHANGEABLE: dict[type[Model], set[str]] = {
    Turn: {"html", "render_version"},
    ChatEvent: {"html", "render_version"},
    Compaction: {"undone_at", "undone_by_id"},
    ReviewNote: {"withdrawn_at", "withdrawn_by_id"},
    ReviewFlag: {"resolved_at", "resolved_by_id"},
}
"""The columns of archived rows that may change. All others, and all of other models, may not."""


def test_database_refuses_to_change_or_delete_any_archived_row(
    workspace: Workspace, session: Session, user: User
) -> None:
    stock(session, user)
    remove(create_session(workspace, owner=user), user)  # leaves a receipt and an audit entry
    models: tuple[type[Model], ...] = (*ARCHIVED, AuditEntry, Receipt)
    assert {model._meta.db_table for model in models} == GUARDED.keys()
    for model in models:
        table, row = model._meta.db_table, model._default_manager.values().first()
        assert row is not None, table
        statements = [f"DELETE FROM {table}"] + [
            f"UPDATE {table} SET {column} = {0 if column == 'id' else 'NULL'}"
            for column in row.keys() - CHANGEABLE.get(model, set())
            # The trigger of PostgreSQL compares the values.
            if row[column] is not None or connection.vendor == "sqlite"
        ]
        for statement in statements:
            refused = pytest.raises(DatabaseError, match=f"{table} is append-only")
            with refused, transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(statement)


def test_rows_are_deleted_only_under_a_permit_that_is_removed_after(
    session: Session, user: User
) -> None:
    stock(session, user)
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        Turn.objects.filter(session=session.pk)._raw_delete("default")
    remove(session, user)
    assert not PurgePermit.objects.exists()


def test_failed_purge_changes_nothing(
    session: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock(session, user)
    before = count_all()

    def fail(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(purging, "digest_of_receipt", fail)
    with pytest.raises(ZeroDivisionError):
        remove(session, user)
    assert count_all() == before


def test_session_with_a_running_answer_cannot_be_purged(session: Session, user: User) -> None:
    accept_message(session, client_id="client-1", text="Hello", user_pk=user.pk, max_queued=5)
    with pytest.raises(Conflict, match="An answer is still running"):
        remove(session, user)


def test_forks_lose_only_their_parent(workspace: Workspace, session: Session, user: User) -> None:
    fork = create_session(workspace, owner=user, continues=session)
    assert plan_purge(session).forks == 1
    remove(session, user)
    fork.refresh_from_db()
    assert fork.parent is None


def test_kept_memory_entries_stay_without_their_source(
    workspace: Workspace, session: Session, user: User
) -> None:
    now = timezone.now()
    kept = {"workspace": workspace, "session": session, "kind": "rule", "turn": 1, "item": "r1.0"}
    MemoryEntry.objects.create(**kept, text="Use tabs", created_at=now)
    MemoryEntry.objects.create(**kept, text="No", owner=user, is_declined=True, created_at=now)
    plan = plan_purge(get_session(session.uuid))
    assert plan.folded["links from the workspace memory"] == 2
    remove(session, user)
    [entry] = MemoryEntry.objects.order_by("pk")
    assert (entry.text, entry.session, entry.turn, entry.item) == ("Use tabs", None, None, "")


def test_purged_session_is_not_found(session: Session, user: User) -> None:
    remove(session, user)
    with pytest.raises(NotFound):
        get_session(session.uuid)
    with pytest.raises(NotFound):
        purge(
            session,
            order=PurgeRequest(reason="again"),
            origin=AuditOrigin(),
            now=timezone.now() + timedelta(days=1),
        )
    assert Receipt.objects.count() == 1
    assert AuditHead.objects.get().number == AuditEntry.objects.count()


def test_shared_contents_are_recorded_once(
    workspace: Workspace, session: Session, user: User
) -> None:
    other = create_session(workspace, owner=user)
    stock(session, user)
    stock(other, user)
    both = purging.contents_of(session.pk) | purging.contents_of(other.pk)
    remove(session, user)
    remove(other, user)
    noted = set(PurgedContent.objects.values_list("digest", flat=True))
    assert noted - purging.named_by_features(noted) == both


def test_purge_of_an_empty_session_counts_only_the_session(session: Session, user: User) -> None:
    assert count_rows(session.pk) == {"sessions": 1}
    assert load_json(remove(session, user).counts) == {"sessions": 1}
