"""Review: the lists that reviewers see, and their notes, flags and marks."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from conversations.archive.audit import AuditOrigin, readings_of
from conversations.archive.sessions import archive_session, create_session
from conversations.archive.workspaces import add_member, create_workspace
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.turns import NewTurn
from conversations.models import AuditEntry, Run, Session, ToolCall, Workspace
from conversations.models.review import MAX_TEXT_CHARS
from conversations.review.queue import QueueFilters, draw_sample, next_unreviewed, read_queue
from conversations.review.remarks import (
    mark_reviewed,
    read_remarks,
    resolve_flag,
    set_flag,
    withdraw_note,
    write_note,
)
from conversations.search.indexing import index_session
from tests.archive.turns import append_turn

pytestmark = pytest.mark.django_db

NOW = timezone.now()

type Talk = Callable[..., Session]


@pytest.fixture
def reviewer(db: None) -> AuditOrigin:
    return AuditOrigin(
        user=User.objects.create_user("rita"), place="/review/", reason="a complaint"
    )


@pytest.fixture
def talk(workspace: Workspace, user: User) -> Talk:
    """Return a function that makes a session of ``turns`` turns, last used ``age`` hours ago."""

    def make(*, turns: int = 2, age: float = 0, **columns: Any) -> Session:
        columns = {"workspace": workspace, "owner": user} | columns
        session = create_session(columns.pop("workspace"), owner=columns.pop("owner"))
        for number in range(turns):
            append_turn(session, NewTurn(role="assistant" if number % 2 else "user", content="x"))
        moment = NOW - timedelta(hours=age)
        Session.objects.filter(pk=session.pk).update(last_active_at=moment, **columns)
        session.refresh_from_db()
        return session

    return make


def walk(filters: QueueFilters, *, limit: int = 2) -> Iterator[Session]:
    """Yield all sessions of the list, page by page."""
    before = ""
    while True:
        items, before = read_queue(filters, before=before, limit=limit)
        yield from items
        if not before:
            return


def queue_of(**filters: Any) -> list[Session]:
    return list(walk(QueueFilters(**filters)))


def entries_of(session: Session) -> list[str]:
    entries = AuditEntry.objects.filter(session=session.uuid).order_by("number")
    return list(entries.values_list("action", flat=True))


def test_unreviewed_sessions_are_listed_with_the_last_used_first(
    talk: Talk, reviewer: AuditOrigin
) -> None:
    sessions = [talk(age=age) for age in (1, 3, 2, 0, 4)]
    talk(turns=0)
    mark_reviewed(sessions[1], reviewer, through=2)
    assert queue_of() == [sessions[place] for place in (3, 0, 2, 4)]


def test_pages_are_complete_if_sessions_share_their_last_use(talk: Talk) -> None:
    sessions = [talk(age=1) for _ in range(5)]
    assert queue_of() == sessions[::-1]


def test_reviewed_session_is_listed_again_after_a_new_turn(
    talk: Talk, reviewer: AuditOrigin
) -> None:
    session = talk()
    mark_reviewed(session, reviewer, through=2)
    assert queue_of() == []
    append_turn(session, NewTurn(role="user", content="One more thing"))
    assert queue_of() == [session]
    [item], _ = read_queue(QueueFilters(), limit=9)
    assert (item.reviewed_turn, item.new_turns, item.reviewed_by) == (2, 1, "rita")


def test_list_of_all_includes_every_kind_of_session(
    talk: Talk, other_user: User, tmp_path: Path
) -> None:
    """Archived, expired, empty, of a closed account, and of another workspace."""
    elsewhere = create_workspace(root=tmp_path, name="Shed", owner=other_user)
    other_user.is_active = False
    other_user.save()
    sessions = [
        talk(age=1),
        talk(age=2, archived_at=NOW),
        talk(age=3, expires_at=NOW - timedelta(days=1)),
        talk(age=4, turns=0),
        talk(age=5, workspace=elsewhere, owner=other_user, channel="import"),
    ]
    assert queue_of(queue="all") == sessions
    items, _ = read_queue(QueueFilters(queue="all"), limit=9)
    assert [item.is_archived for item in items] == [False, True, False, False, False]
    assert [item.is_expired for item in items] == [False, False, True, False, False]
    assert items[4].channel == "import"


def test_list_can_be_filtered(talk: Talk, other_user: User, tmp_path: Path) -> None:
    elsewhere = create_workspace(root=tmp_path, name="Shed", owner=other_user)
    own = talk(age=30, created_at=NOW - timedelta(hours=40))
    shed = talk(age=1, workspace=elsewhere, owner=other_user, channel="api")
    assert queue_of(person=other_user.pk) == [shed]
    assert queue_of(workspace="garden") == [own]
    assert queue_of(channel="api") == [shed]
    assert queue_of(since=NOW - timedelta(hours=9)) == [shed]
    assert queue_of(until=NOW - timedelta(hours=9)) == [own]
    assert queue_of(since=NOW - timedelta(hours=35), until=NOW - timedelta(hours=32)) == [own]
    assert queue_of(until=NOW - timedelta(hours=41)) == []


def test_filter_by_person_finds_sessions_in_which_they_wrote(
    talk: Talk, workspace: Workspace, other_user: User
) -> None:
    add_member(workspace, user_pk=other_user.pk, role="member")
    session = talk()
    talk(age=1)
    ask(session, state="completed", requested_by=other_user)
    assert queue_of(person=other_user.pk) == [session]


def ask(session: Session, *, state: str, requested_by: User | None = None) -> Run:
    return Run.objects.create(
        session=session,
        client_id=uuid4().hex,
        state=state,
        requested_by=requested_by,
        created_at=NOW,
    )


def test_error_filter_finds_failed_runs_and_failed_tool_calls(talk: Talk) -> None:
    fine, failed, cut_off, refused = (talk(age=age) for age in range(4))
    calls = ((ask(fine, state="completed"), True), (ask(refused, state="completed"), False))
    ask(failed, state="failed")
    ask(cut_off, state="interrupted")
    for run, ok in calls:
        ToolCall.objects.create(
            session_id=run.session_id,
            run=run,
            call_id="c",
            name="ls",
            state="completed",
            ok=ok,
            turn_number=1,
            created_at=NOW,
        )
    assert queue_of(with_errors=True) == [failed, cut_off, refused]
    # An imported session has neither runs nor tool calls. Only its turns show an error.
    fine, half, broken = (talk(age=age, channel="import") for age in (4, 5, 6))
    append_turn(half, NewTurn(role="assistant", content="It is", complete=False))
    output = {"content": "No such file", "tool_call_id": "c", "tool_name": "ls"}
    append_turn(broken, NewTurn(role="tool", metadata='{"ok": false}', **output))
    append_turn(fine, NewTurn(role="tool", metadata='{"ok": true}', **output))
    stopped = talk(age=7)
    ask(stopped, state="stopped")
    append_turn(stopped, NewTurn(role="assistant", content="It is", complete=False))
    for session in (fine, half, broken, stopped):
        index_session(session.pk)
    assert queue_of(with_errors=True, channel="import") == [broken, half]
    assert queue_of(with_errors=True) == [broken, half, failed, cut_off, refused]


def test_next_session_follows_the_current_one_and_wraps_around(
    talk: Talk, reviewer: AuditOrigin
) -> None:
    first, second, third = (talk(age=age) for age in range(3))
    filters = QueueFilters()
    assert next_unreviewed(filters) == first
    assert next_unreviewed(filters, after=first) == second
    assert next_unreviewed(filters, after=third) == first
    set_flag(third, reviewer, label="safety", turn=None)
    assert next_unreviewed(QueueFilters(queue="flagged"), after=first) == third
    assert next_unreviewed(QueueFilters(queue="flagged"), after=third) is None
    for session in (first, second):
        mark_reviewed(session, reviewer, through=2)
    assert next_unreviewed(filters, after=third) is None
    assert next_unreviewed(filters, after=first) == third


def test_list_needs_the_same_queries_for_any_number_of_sessions(
    talk: Talk, reviewer: AuditOrigin
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            read_queue(QueueFilters(), limit=50)
        return len(queries)

    talk()
    few = count()
    for age in range(10):
        set_flag(talk(age=age), reviewer, label="other", turn=1)
    assert count() == few == 2


@pytest.mark.parametrize(
    ("queue", "index"), [("unreviewed", "session_unreviewed"), ("all", "session_by_time")]
)
def test_list_page_is_read_from_one_range_of_an_index(
    talk: Talk, reviewer: AuditOrigin, queue: str, index: str
) -> None:
    for age in range(3):
        mark_reviewed(talk(age=age), reviewer, through=2)
    first = talk()
    before = f"{first.last_active_at.isoformat()}~{first.pk}"
    plan = plan_of(lambda: read_queue(QueueFilters(queue=queue), before=before, limit=50))
    assert index in plan


def test_errors_are_looked_up_in_indexes_of_errors_only(talk: Talk) -> None:
    talk()
    plan = plan_of(lambda: read_queue(QueueFilters(with_errors=True), limit=50))
    assert "run_broken_of_session" in plan
    assert "tool_call_failed" in plan
    assert "searchindex" in plan


def plan_of(read: Callable[[], Any]) -> str:
    """Return the database's plan for the first statement of ``read``, with its values bound."""
    statements: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        read()
    sql, params = statements[0]
    keyword = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":  # which would rather sort so few rows
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute("SET LOCAL enable_sort = off")
            cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute(f"{keyword} {sql}", params)
        return "\n".join(str(row) for row in cursor.fetchall())


def test_note_stays_with_its_turn(talk: Talk, reviewer: AuditOrigin) -> None:
    session = talk()
    write_note(session, reviewer, text="  Check this.\0 ", turn=2)
    write_note(session, reviewer, text="All of it.", turn=None)
    notes = read_remarks(session).notes
    assert [(note.turn, note.text, note.author) for note in notes] == [
        (2, "Check this.\ufffd", reviewer.user),
        (None, "All of it.", reviewer.user),
    ]


def test_withdrawn_note_keeps_its_text(talk: Talk, reviewer: AuditOrigin) -> None:
    session = talk()
    note = write_note(session, reviewer, text="Wrong.", turn=1)
    withdraw_note(session, reviewer, uuid=note.uuid)
    [kept] = read_remarks(session).notes
    assert (kept.text, kept.withdrawn_by) == ("Wrong.", reviewer.user)
    with pytest.raises(Conflict):
        withdraw_note(session, reviewer, uuid=note.uuid)
    with pytest.raises(NotFound):
        withdraw_note(talk(), reviewer, uuid=note.uuid)


def test_flagged_session_is_listed_until_its_flags_are_resolved(
    talk: Talk, reviewer: AuditOrigin
) -> None:
    session, _ = talk(), talk()
    flags = [set_flag(session, reviewer, label=label, turn=1) for label in ("safety", "privacy")]
    assert queue_of(queue="flagged") == [session]
    resolve_flag(session, reviewer, uuid=flags[0].uuid)
    assert read_queue(QueueFilters(queue="flagged"), limit=9)[0][0].flags == 1
    resolve_flag(session, reviewer, uuid=flags[1].uuid)
    assert queue_of(queue="flagged") == []
    with pytest.raises(Conflict):
        resolve_flag(session, reviewer, uuid=flags[1].uuid)
    with pytest.raises(NotFound):
        resolve_flag(talk(), reviewer, uuid=flags[1].uuid)


def test_review_mark_covers_only_the_turns_that_were_seen(
    talk: Talk, reviewer: AuditOrigin
) -> None:
    session = talk(turns=4)
    mark_reviewed(session, reviewer, through=3)
    assert queue_of() == [session]
    with pytest.raises(Conflict):  # from a page that was opened earlier
        mark_reviewed(session, reviewer, through=2)
    with pytest.raises(Rejected):
        mark_reviewed(session, reviewer, through=5)
    mark_reviewed(session, reviewer, through=4)
    mark_reviewed(session, reviewer, through=0)
    with pytest.raises(Conflict):
        mark_reviewed(session, reviewer, through=0)
    assert queue_of() == [session]
    assert [mark.through_turn for mark in read_remarks(session).marks] == [0, 4, 3]


def test_each_review_action_leaves_one_entry_and_is_no_reading(
    talk: Talk, reviewer: AuditOrigin
) -> None:
    session = talk()
    note = write_note(session, reviewer, text="x", turn=1)
    withdraw_note(session, reviewer, uuid=note.uuid)
    flag = set_flag(session, reviewer, label="other", text="x", turn=None)
    resolve_flag(session, reviewer, uuid=flag.uuid)
    mark_reviewed(session, reviewer, through=2)
    mark_reviewed(session, reviewer, through=0)
    acts = ["note", "unnote", "flag", "unflag", "reviewed", "unreviewed"]
    assert entries_of(session) == acts
    assert not readings_of(session.uuid)
    entry = AuditEntry.objects.get(action="flag")
    assert entry.reason == "a complaint"
    assert entry.metadata == f'{{"flag":"{flag.uuid}","label":"other"}}'


def test_invalid_remark_is_refused_and_leaves_no_trace(talk: Talk, reviewer: AuditOrigin) -> None:
    session = talk()
    with pytest.raises(Rejected):
        write_note(session, reviewer, text=" ", turn=1)
    with pytest.raises(Rejected):
        write_note(session, reviewer, text="x" * (MAX_TEXT_CHARS + 1), turn=1)
    with pytest.raises(Rejected):
        write_note(session, reviewer, text="x", turn=3)
    with pytest.raises(Rejected):
        set_flag(session, reviewer, label="funny", turn=1)
    with pytest.raises(Rejected):
        set_flag(session, reviewer, label="other", turn=0)
    assert entries_of(session) == []
    remarks = read_remarks(session)
    assert (remarks.notes, remarks.flags, remarks.marks) == ([], [], [])


def test_review_of_an_archived_session_changes_only_its_mark(
    talk: Talk, reviewer: AuditOrigin
) -> None:
    session = talk()
    archive_session(session, archived=True)
    session.refresh_from_db()
    before = Session.objects.filter(pk=session.pk).values().get()
    write_note(session, reviewer, text="x", turn=1)
    set_flag(session, reviewer, label="other", turn=1)
    mark_reviewed(session, reviewer, through=2)
    after = Session.objects.filter(pk=session.pk).values().get()
    assert after == before | {"reviewed_turn": 2}


def test_sample_needs_the_same_queries_for_any_number_of_sessions(talk: Talk) -> None:
    filters = QueueFilters(
        queue="all", since=NOW - timedelta(hours=1), until=timezone.now() + timedelta(hours=1)
    )

    def draw() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert draw_sample(filters, seed="s", count=9) == [said.pk]
        return len(queries)

    said = talk()
    few = draw()
    for _ in range(8):
        talk(turns=0)
    assert draw() == few
