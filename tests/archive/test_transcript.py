"""Pages of the transcript: complete, in order, from every cursor, at constant cost."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from conversations.archive.append import NewEvent, append
from conversations.archive.journal import (
    synthesise_events,
    walk_events,
)
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import create_session, get_session
from conversations.archive.transcript import TranscriptPage, live_seq_of, read_live_rows, read_page
from conversations.archive.transcript_plan import PlanSegment, locate, next_position, split_plan
from conversations.domain.errors import Rejected
from conversations.domain.events import (
    Fallback,
    Info,
    ToolCallCompleted,
    UserMessage,
    event_type_of,
)
from conversations.domain.keyset import TranscriptCursor, parse_cursor
from conversations.domain.turns import NewTurn
from conversations.models import ChatEvent, Session, Turn, Workspace
from tests.archive.turns import read_turns
from tests.properties import costly

pytestmark = pytest.mark.django_db


def add(session: Session, text: str, *, role: str = "user", covered: bool = True) -> int:
    events = [NewEvent(payload=UserMessage(text=text), new=0)] if covered else []
    return append(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(role=role, content=text)],
        events=events,
    ).turns[0]


def reload(session: Session) -> Session:
    return get_session(session.uuid)


def texts(page: TranscriptPage) -> list[str]:
    found = []
    for row in page.rows:
        match = re.search(r"«(\w+)»", row.html)
        found.append(match.group(1) if match else "?")
    return found


def walk_back(session: Session, *, limit: int, **options: Any) -> list[str]:
    """Return the texts of all rows, read page by page from the newest."""
    page = read_page(session, limit=limit, **options)
    rows = texts(page)
    while page.older is not None:
        page = read_page(session, limit=limit, before=parse_cursor(page.older), **options)
        assert page.rows
        rows = texts(page) + rows
    return rows


def walk_on(session: Session, *, limit: int) -> list[str]:
    """Return the texts of all rows, read page by page from the oldest."""
    page = read_page(session, limit=limit, after=TranscriptCursor("seq", 0))
    rows = texts(page)
    while page.newer is not None:
        page = read_page(session, limit=limit, after=parse_cursor(page.newer))
        assert page.rows
        rows += texts(page)
    return rows


def test_newest_page_comes_first_and_older_pages_follow(session: Session) -> None:
    for number in range(25):
        add(session, f"«{number}»")
    page = read_page(reload(session), limit=10)
    assert texts(page) == [str(n) for n in range(15, 25)]
    assert (page.older, page.newer) == ("seq:16", None)
    older = read_page(reload(session), limit=10, before=parse_cursor("seq:16"))
    assert texts(older) == [str(n) for n in range(5, 15)]
    assert older.newer == "seq:15"


def test_session_without_a_journal_is_synthesised_with_same_paging(session: Session) -> None:
    for number in range(25):
        add(session, f"«{number}»", covered=False)
    page = read_page(reload(session), limit=10)
    assert texts(page) == [str(n) for n in range(15, 25)]
    assert page.source == "turns"
    assert page.older == "turn:16.0"
    assert walk_back(reload(session), limit=7) == [str(n) for n in range(25)]
    assert 'data-seq="turn:25.0"' in page.rows[-1].html


def test_incomplete_journal_does_not_hide_newer_turns(session: Session) -> None:
    for number in range(6):
        add(session, f"«{number}»", covered=number < 3)
    assert walk_back(reload(session), limit=2) == [str(n) for n in range(6)]
    add(session, "«6»")
    add(session, "«7»")
    assert walk_back(reload(session), limit=3) == [str(n) for n in range(8)]
    assert walk_on(reload(session), limit=3) == [str(n) for n in range(8)]


@costly
@given(
    steps=st.lists(
        st.one_of(st.booleans(), st.tuples(st.integers(0, 30), st.just("rewind"))), max_size=25
    ),
    limit=st.integers(1, 7),
)
def test_paging_any_mixture_in_either_direction_gives_each_row_once(
    workspace: Workspace, steps: list[Any], limit: int
) -> None:
    session = create_session(workspace, owner=workspace.memberships.get().user)
    shown: list[tuple[str, int]] = []
    for number, step in enumerate(steps):
        if isinstance(step, bool):
            turn = add(session, f"«{number}»", covered=step)
            shown.append((str(number), turn))
        elif shown:
            from_turn = shown[step[0] % len(shown)][1]
            first = ChatEvent.objects.filter(session=session, turn_number__gte=from_turn)
            seq = first.order_by("seq").values_list("seq", flat=True).first()
            append_rewind(session, from_turn=from_turn, from_seq=seq, reason="undo", actor_pk=None)
            shown = [pair for pair in shown if pair[1] < from_turn]
    found = reload(session)
    expected = [text for text, _ in shown]
    assert [text for text in walk_back(found, limit=limit) if text != "?"] == expected
    assert [text for text in walk_on(found, limit=limit) if text != "?"] == expected
    everything = walk_back(found, limit=limit, include_rewound=True)
    assert everything == [str(n) for n, step in enumerate(steps) if isinstance(step, bool)]


def test_plan_of_many_gaps_is_walked_at_most_twice_for_a_cut(session: Session) -> None:
    class Counted(list[PlanSegment]):
        walks = 0

        def __iter__(self) -> Iterator[PlanSegment]:
            self.walks += 1
            return super().__iter__()

    plan = Counted()
    for number in range(1, 100):
        plan.append(PlanSegment("seq", number, number))
        plan.append(PlanSegment("turn", 2 * number, 2 * number, after_seq=number))
    position = locate(session, plan, TranscriptCursor("turn", 100))
    earlier, later = split_plan(plan, position)
    assert plan.walks <= 2
    assert (len(earlier), len(later)) == (99, 99)
    _, later = split_plan(plan, next_position(position))
    assert later[0] == PlanSegment("turn", 100, 100, after_seq=50, skip=1)


def test_page_around_a_turn_reaches_both_ways(session: Session) -> None:
    for number in range(60):
        add(session, f"«{number}»", covered=number % 20 != 7)
    for turn in (1, 8, 30, 60):
        page = read_page(reload(session), limit=10, around_turn=turn)
        assert str(turn - 1) in texts(page)
        assert (page.older is None) == ("0" in texts(page))
        assert (page.newer is None) == ("59" in texts(page))
        first = int(texts(page)[0])
        assert texts(page) == [str(n) for n in range(first, first + 10)]


def test_replaced_rows_leave_a_marker_that_links_to_them(session: Session) -> None:
    for number in range(5):
        add(session, f"«{number}»")
    append_rewind(session, from_turn=3, from_seq=3, reason="edit", actor_pk=None)
    add(session, "«new»")
    page = read_page(reload(session), limit=10)
    assert texts(page) == ["0", "1", "?", "new"]
    assert "Earlier version" in page.rows[2].html
    assert "all=1" in page.rows[2].html


def test_marker_for_a_turn_without_rows_is_on_a_page(session: Session) -> None:
    add(session, "«0»")
    add(session, "an internal hint", role="system", covered=False)
    append_rewind(session, from_turn=2, from_seq=None, reason="undo", actor_pk=None)
    assert walk_back(reload(session), limit=1) == ["0", "?"]
    assert walk_on(reload(session), limit=1) == ["0", "?"]


def test_transcript_without_the_journal_is_synthesised(session: Session) -> None:
    for number in range(5):
        add(session, f"«{number}»")
    notice = NewEvent(payload=Info(text="only in the journal"))
    append(session.pk, session_uuid=session.uuid, events=[notice])
    page = read_page(reload(session), limit=10, use_journal=False)
    assert texts(page) == ["0", "1", "2", "3", "4"]


def test_transcript_without_synthesis_shows_only_the_journal(session: Session) -> None:
    add(session, "«0»", covered=False)
    add(session, "«1»")
    assert texts(read_page(reload(session), limit=10, synthesise=False)) == ["1"]


@pytest.mark.parametrize(
    ("event_type", "payload"),
    [
        ("user_message", "{broken"),
        ("user_message", "[]"),
        ("user_message", '{"text": null}'),
        ("user_message", '{"text": 7}'),
        ("assistant_text", ""),
        ("tool_call_started", "{}"),
        ("hologram", '{"text": "x"}'),
        ("info", "[" * 100_000),
    ],
)
def test_malformed_event_gives_one_fallback_row_and_one_log_entry(
    session: Session, caplog: pytest.LogCaptureFixture, event_type: str, payload: str
) -> None:
    add(session, "«before»")
    ChatEvent.objects.create(
        session=session,
        seq=2,
        event_type=event_type,
        payload=payload,
        turn_number=1,
        created_at=timezone.now(),
        digest="",
    )
    Session.objects.filter(pk=session.pk).update(next_seq=3)
    add(session, "«after»")
    page = read_page(reload(session), limit=10)
    assert texts(page)[0], texts(page)[2] == ("before", "after")
    assert page.skipped == 1
    assert 'data-event-type="fallback"' in page.rows[1].html
    assert [r.getMessage() for r in caplog.records].count("chat_row_malformed") == 1
    stored = walk_events(session.pk, start=1, limit=1)[0]
    assert isinstance(stored.payload, Fallback)


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "assistant", "tool_calls": "{broken"},
        {"role": "assistant", "blocks": '{"type": "text"}'},
        {"role": "user", "blocks": "7"},
    ],
)
def test_malformed_turn_gives_one_fallback_row(session: Session, fields: dict[str, str]) -> None:
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(content="what it said", **fields)],
    )
    page = read_page(reload(session), limit=10)
    assert page.skipped == 1
    assert "what it said" in page.rows[0].html


def test_tool_turns_are_readable_without_a_journal(session: Session) -> None:
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[
            NewTurn(
                role="assistant",
                content="",
                tool_calls='[{"id": "1", "name": "read_file", "arguments":'
                ' "{\\"path\\": \\"a.py\\"}"}]',
            ),
            NewTurn(
                role="tool",
                content='{"success": false, "output": "", "error": "no such file"}',
                tool_call_id="1",
                tool_name="read_file",
            ),
            NewTurn(role="tool", content="an orphan's raw result"),
            NewTurn(role="system", content="an internal hint"),
            NewTurn(role="system", content="shown", metadata='{"user_facing": true}'),
        ],
    )
    rows = [row for turn in read_turns(session.pk) for row in synthesise_events(turn)]
    assert [event_type_of(row) for row in rows if not isinstance(row, Fallback)] == [
        "tool_call_started",
        "tool_call_completed",
        "tool_call_completed",
        "info",
    ]
    completed = rows[1]
    assert isinstance(completed, ToolCallCompleted)
    assert (completed.ok, completed.error) == (False, "no such file")
    html = "".join(row.html for row in read_page(reload(session), limit=10).rows)
    assert "a.py" in html
    assert "an orphan" in html
    assert "internal hint" not in html


def test_live_catch_up_never_synthesises_rows(session: Session) -> None:
    add(session, "«0»", covered=False)
    add(session, "«1»")
    add(session, "«2»", covered=False)
    rows = read_live_rows(session.pk, after_seq=0, limit=100)
    assert [row.seq for row in rows] == [1]


def test_live_rows_follow_a_page_that_ends_in_synthesised_rows(
    session: Session,
) -> None:
    add(session, "«0»")
    add(session, "«1»", covered=False)
    seen = reload(session)
    assert live_seq_of(seen, TranscriptCursor("turn", 2)) == 1
    add(session, "«2»")
    assert live_seq_of(reload(session), TranscriptCursor("turn", 2)) == 1


def test_journal_is_paged_by_seq(session: Session) -> None:
    for number in range(12):
        add(session, str(number))

    def seqs(start: int | None, **order: bool) -> list[int]:
        return [e.seq for e in walk_events(session.pk, start=start, limit=3, **order)]

    assert (seqs(None), seqs(5)) == ([1, 2, 3], [6, 7, 8])
    assert (seqs(None, is_back=True), seqs(5, is_back=True)) == ([12, 11, 10], [4, 3, 2])


def test_page_is_capped_at_500_rows(session: Session) -> None:
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(role="user", content=str(n)) for n in range(510)],
        events=[NewEvent(payload=UserMessage(text=str(n)), new=n) for n in range(510)],
    )
    assert len(read_page(reload(session), limit=9999).rows) == 500


@pytest.mark.parametrize("text", ["", "5", "seq:", "seq:x", "turn:1.", "seq:-1", "seq:1;drop"])
def test_invalid_cursor_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="cursor"):
        parse_cursor(text)


@pytest.mark.parametrize("covered", [True, False])
def test_number_of_queries_does_not_grow_with_the_transcript(
    session: Session, django_assert_max_num_queries: Any, covered: bool
) -> None:
    def count(**where: Any) -> int:
        read_page(found, limit=20, **where)  # the first read renders the rows
        with django_assert_max_num_queries(6) as captured:
            read_page(found, limit=20, **where)
        return len(captured)

    before = parse_cursor("seq:25" if covered else "turn:25")
    for number in range(30):
        add(session, f"«{number}»", covered=covered)
    found = reload(session)
    young = count(), count(before=before)
    for number in range(30, 400):
        add(session, f"«{number}»", covered=covered)
    found = reload(session)
    assert (count(), count(before=before)) == young


def test_rendered_rows_are_cached_and_rendered_again_when_stale(session: Session) -> None:
    add(session, "«0»")
    add(session, "«1»", covered=False)
    first = read_page(reload(session), limit=10)
    assert Turn.objects.exclude(html="").count() == 1
    ChatEvent.objects.update(html="stale", render_version=0)
    again = read_page(reload(session), limit=10)
    assert [row.html for row in again.rows] == [row.html for row in first.rows]
    assert not ChatEvent.objects.filter(html="stale").exists()


def test_large_row_is_cut_and_links_to_its_whole_text(session: Session) -> None:
    add(session, "x" * 5_000_000)
    page = read_page(reload(session), limit=10)
    assert len(page.rows[0].html) < 200_000
    assert f"/s/{session.uuid}/t/1/source/" in page.rows[0].html


def test_page_query_uses_the_unique_index(session: Session) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the plan is read from SQLite")
    with connection.cursor() as cursor:
        cursor.execute(
            "EXPLAIN QUERY PLAN SELECT html FROM conversations_chatevent"
            " WHERE session_id = 1 AND seq BETWEEN 5 AND 9 ORDER BY seq"
        )
        assert "USING INDEX" in str(cursor.fetchall())
