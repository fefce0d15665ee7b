"""Searching a session: turns are found at once, by any text, and ranked."""

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from conversations.archive.append import append
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import create_session, get_session
from conversations.domain.text import dump_json
from conversations.domain.turns import NewTurn
from conversations.models import SearchEntry, Session, Workspace
from conversations.search import best_matches, find
from conversations.search.indexing import index_session, read_progress
from conversations.search.results import SearchResults
from conversations.search.source import MAX_UNINDEXED_TURNS
from tests.archive.searching import find_among, find_in
from tests.properties import costly

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def user(text: str, **fields: Any) -> NewTurn:
    return NewTurn(role="user", content=text, **fields)


def assistant(text: str, *calls: tuple[str, dict[str, Any]]) -> NewTurn:
    blocks = [
        {"type": "tool_use", "id": f"c{number}", "name": name, "input": arguments}
        for number, (name, arguments) in enumerate(calls)
    ]
    if text:
        blocks.insert(0, {"type": "text", "text": text})
    return NewTurn(role="assistant", content=text, blocks=dump_json(blocks))


def result(text: str, name: str | None, call_id: str = "c0") -> NewTurn:
    return NewTurn(role="tool", content=text, tool_name=name, tool_call_id=call_id)


def write(session: Session, *turns: NewTurn | str) -> None:
    new = [user(turn) if isinstance(turn, str) else turn for turn in turns]
    append(session.pk, session_uuid=session.uuid, turns=new)


def turns_of(found: SearchResults) -> list[int]:
    return [hit.turn for hit in found.hits]


def search(session: Session, query: str, **options: Any) -> list[int]:
    return turns_of(find_in(session.pk, query, **options))


@pytest.fixture(params=["indexed", "fresh"])
def keep(request: pytest.FixtureRequest) -> Any:
    """Return a function that indexes the session or leaves it unindexed, to test both cases."""

    def do(session: Session) -> None:
        if request.param == "indexed":
            index_session(session.pk)

    return do


def test_turn_is_found_at_once(session: Session) -> None:
    write(session, "The beans are in the shed")
    assert search(session, "beans") == [1]
    index_session(session.pk)
    write(session, "More beans in the cellar")
    assert sorted(search(session, "beans")) == [1, 2]


def test_messages_tool_calls_and_results_are_found(session: Session, keep: Any) -> None:
    write(
        session,
        "Look at the harvester",
        assistant(
            "Reading it", ("read_file", {"path": "farm/engine.py", "lines": [7, {"a": "furrow"}]})
        ),
        result("def plough(depth): ...", "read_file"),
    )
    keep(session)
    assert search(session, "harvester") == [1]
    assert search(session, "engine.py") == [2]
    assert search(session, "furrow") == [2]
    assert search(session, "plough") == [3]
    assert sorted(search(session, "read_file")) == [2, 3]


def test_calls_and_results_of_recall_are_not_found(session: Session, keep: Any) -> None:
    write(
        session,
        "Where did we bury the anchor?",
        assistant("I look for the anchor", ("conversation_recall", {"query": "anchor bury"})),
        result("turn 1: bury the anchor", "conversation_recall"),
        assistant("", ("conversation_recall", {"query": "anchor"})),
        result("turn 1: bury the anchor", None),
    )
    keep(session)
    assert sorted(search(session, "anchor")) == [1, 2]
    assert search(session, "bury") == [1]
    assert set(search(session, "anchor", with_neighbours=True)) == {1, 2}


def test_thinking_is_not_found(session: Session, keep: Any) -> None:
    blocks = [{"type": "thinking", "thinking": "secretly", "signature": "s"}]
    write(session, NewTurn(role="assistant", content="aloud", blocks=dump_json(blocks)))
    keep(session)
    assert search(session, "aloud") == [1]
    assert search(session, "secretly") == []


def test_damaged_turn_is_found_by_its_text(session: Session, keep: Any) -> None:
    write(session, NewTurn(role="assistant", content="half a story", blocks="[{"))
    keep(session)
    assert search(session, "story") == [1]


def test_replaced_turns_are_still_found(session: Session, keep: Any) -> None:
    write(session, "a turnip", "a parsnip")
    append_rewind(get_session(session.uuid), from_turn=2, from_seq=1, reason="edit", actor_pk=None)
    keep(session)
    assert search(session, "parsnip") == [2]


def test_another_session_is_not_searched(session: Session, keep: Any, workspace: Any) -> None:
    other = create_session(workspace, owner=session.owner)
    write(session, "pears")
    write(other, "pears and apples")
    keep(session)
    keep(other)
    assert search(session, "pears") == [1]
    assert search(session, "apples") == []


IDENTIFIERS = [
    ("call fitToContextWindow now", "context window"),
    ("call fitToContextWindow now", "fittocontextwindow"),
    ("call fit_to_context_window now", "fitToContextWindow"),
    ("the fit-to-context-window flag", "fitToContextWindow"),
    ("edit src/auth.py", "auth.py"),
    ("edit auth.py", "src/auth.py"),
    ("edit auth.py", "auth"),
    ("an HTTPServer", "http server"),
    ("an HTTPServer", "httpserver"),
    ("release v2 of it", "v2"),
    ("sent by e-mail", "email"),
    ("it costs 1,250 in all", "1250"),
    ("don't", "dont"),
    ("we'll see", "well"),
    ("sous l'arbre", "arbre"),
    ("sous l’arbre", "l'arbre"),
    ("dans l'été", "ete"),
    ("all’acqua", "ACQUA"),
    ("they play rock'n'roll", "roll"),
    ("they play rock'n'roll", "rocknroll"),
    ("Die Straße", "STRASSE"),
    ("in İstanbul", "istanbul"),
    ("ΟΔΥΣΣΕΥΣ", "οδυσσεύς"),
    ("a café", "cafe"),
    ("a cafe", "CAFÉ"),
    ("Привет, мир", "ПРИВЕТ"),
    ("我们使用数据库", "数据"),
    ("日本語のテキスト", "テキスト"),
    ("ﾃｷｽﾄ", "テキスト"),
    ("مـــرحبا", "مرحبا"),
    ("한국어로 씁니다", "한국"),
    ("用Python写的程序", "python"),
    ("用Python写的程序", "程序"),
    ("she went home", "go home"),
    ("two children", "child"),
    ("running tests", "test runs"),
]


def test_words_match_in_different_forms(session: Session, keep: Any, workspace: Workspace) -> None:
    for text, query in IDENTIFIERS:
        another = create_session(workspace, owner=session.owner)
        write(another, "nothing of the kind", text)
        keep(another)
        assert search(another, query)[:1] == [2], (text, query)


def test_english_contractions_stay_one_word(session: Session, keep: Any) -> None:
    write(session, "I don't and we’ll and you've", "nothing of the kind")
    keep(session)
    for query in ("in:text don", "in:text ve", "in:text ll"):
        assert search(session, query) == [], query


def test_phrases_match_only_exact_word_order(session: Session, keep: Any) -> None:
    write(session, "the red door", "the door is red", "a red, old door", "Red doors!")
    keep(session)
    assert sorted(search(session, '"red door"')) == [1, 4]
    assert search(session, '"red door" "old"') == []
    assert sorted(search(session, '"red door" old', order="newest")) == []
    assert search(session, '"red door"', order="newest") == [4, 1]


FILTERS = [
    ("stone role:user", [1, 5]),
    ("stone role:tool role:assistant", [2, 3, 4]),
    ("stone tool:run_shell", [2, 3]),
    ("stone tool:RUN_SHELL role:tool", [3]),
    ("stone in:text", [1, 4, 5]),
    ("stone in:tool", [2, 3]),
    ("wall.txt in:path", [2]),
    ("wall.txt in:text", []),
    ("stone before:3", [1, 2]),
    ("stone after:3", [4, 5]),
    ("stone after:1 before:4", [2, 3]),
    ("stone before:2026-03-03", [1, 2]),
    ("stone after:2026-03-03", [3, 4, 5]),
    ("stone before:2026-03-02T12:00", [1]),
    ("stone in:garden", [1, 2, 3, 4, 5]),
    ("stone in:elsewhere", []),
    ("role:assistant", [2, 4]),
    ("before:2", [1]),
    ("tool:run_shell", [2, 3]),
]


def test_filters_select_the_expected_turns(session: Session, keep: Any) -> None:
    days = [NOW + timedelta(days=number) for number in range(5)]
    made = [
        user("a stone"),
        assistant("", ("run_shell", {"command": "cat stone wall.txt"})),
        result("stone upon stone", "run_shell"),
        assistant("stone cold"),
        user("the last stone"),
    ]
    write(session, *(replace(t, created_at=day) for t, day in zip(made, days, strict=True)))
    keep(session)
    for (query, turns), order in product(FILTERS, ("best", "newest")):
        assert sorted(search(session, query, order=order)) == turns, (query, order)


@pytest.mark.parametrize("order", ["best", "newest"])
def test_unknown_workspace_is_reported_as_missing(session: Session, keep: Any, order: str) -> None:
    write(session, "the stone is in:progress")
    keep(session)
    for query in ("stone in:Progress", "in:progress"):
        found = find_in(session.pk, query, order=order)
        assert (found.hits, found.missing) == ([], ("in:progress",)), query
        found = find_among(Session.objects.all(), query, order=order)
        assert (found.hits, found.missing) == ([], ("in:progress",)), query
    query = f"stone in:{session.workspace.slug} in:progress"
    assert search(session, query, order=order) == [1]
    assert turns_of(find_among(Session.objects.all(), query, order=order)) == [1]


def test_search_can_be_limited_to_turns_before_the_window(session: Session, keep: Any) -> None:
    write(session, *["a stone"] * 5)
    keep(session)
    assert sorted(search(session, "stone", before_turn=4)) == [1, 2, 3]
    assert search(session, "stone", before_turn=1) == []


def test_missing_words_and_phrases_are_reported(session: Session, keep: Any) -> None:
    write(session, "a stone wall")
    keep(session)
    found = find_in(session.pk, 'a Stone of Marble "wall stone" "stone wall"')
    assert found.missing == ("Marble", '"wall stone"')
    assert found.hits == []
    found = find_in(session.pk, "marble stone", order="newest")
    assert (turns_of(found), found.missing) == ([1], ("marble",))


def test_phrase_that_was_not_looked_for_everywhere_is_not_missing(
    session: Session, keep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best_matches, "MAX_PHRASE_TURNS", 3)
    monkeypatch.setattr(find, "MAX_COUNTED_TURNS", 3)
    monkeypatch.setattr(find, "MAX_PHRASE_PAGES", 1)
    write(session, "a dry wall", *["wall so dry"] * 4)
    keep(session)
    found = find_in(session.pk, '"dry wall"')
    assert (found.hits, found.missing) == ([], ())
    assert (found.total_is_bound, found.is_phrase_cut) == (True, True)
    pages, cursor = [], ""
    for _ in range(6):
        page = find_in(session.pk, '"dry wall"', order="newest", limit=1, cursor=cursor)
        pages.append(turns_of(page))
        assert (page.missing, page.total_is_bound) == ((), True)
        cursor = page.cursor
        if not cursor:
            break
    assert pages == [[], [], [1]]
    found = find_in(session.pk, '"so wall"')
    assert (found.missing, found.is_phrase_cut) == ((), True)
    found = find_in(session.pk, '"wall a"')
    assert (found.missing, found.is_phrase_cut) == (('"wall a"',), False)


def test_stop_words_count_only_in_queries_without_other_words(session: Session, keep: Any) -> None:
    write(session, "who is it", "a plum")
    keep(session)
    assert search(session, "what is it about the plum") == [2]
    assert search(session, "who is it") == [1]


def test_all_matches_are_counted(session: Session, keep: Any) -> None:
    write(session, *["a stone"] * 30)
    keep(session)
    found = find_in(session.pk, "stone", limit=7)
    assert (len(found.hits), found.total, found.total_is_bound) == (7, 30, False)


@pytest.mark.parametrize("order", ["best", "newest"])
def test_pages_stay_consistent_while_the_session_grows(
    session: Session, keep: Any, order: str
) -> None:
    write(session, *[f"stone {'and sand ' * (n % 5)}{n}" for n in range(20)])
    keep(session)
    whole = search(session, "stone sand", order=order, limit=100)
    pages, cursor = [], ""
    while True:
        found = find_in(session.pk, "stone sand", order=order, limit=6, cursor=cursor)
        pages += turns_of(found)
        cursor = found.cursor
        if not cursor:
            break
        write(session, "stone and more sand")
        keep(session)
    assert pages == whole
    if order == "newest":
        assert whole == sorted(whole, reverse=True)


def test_invalid_cursor_gives_the_first_page(session: Session) -> None:
    write(session, "a stone")
    for cursor in ("x", "best.1", "newest.zz", "newest.1.2", "9" * 50, "best.."):
        assert search(session, "stone", cursor=cursor) == [1], cursor


@costly
@given(
    query=st.one_of(
        st.text(max_size=60),
        st.text(
            alphabet="\"'*():^-+{}|&!~<>@\\/%_.,;?AND OR NOT NEAR\x00role:tool:in:before:",
            max_size=60,
        ),
    ),
    order=st.sampled_from(["best", "newest"]),
)
def test_any_text_is_a_valid_query(session: Session, query: str, order: str) -> None:
    if not SearchEntry.objects.filter(session=session).exists():
        write(session, "some AND words NOT NEAR", result("x: y", "tool"))
        index_session(session.pk)
        write(session, "and a tail OR so")
    found = find_in(session.pk, query, order=order, with_neighbours=True)
    assert found.total >= len([hit for hit in found.hits if not hit.is_near])


ODD_QUERIES = (
    *("", " ", "\x00", "\ud800", "?" * 9000, "word " * 30_000, '"' * 3, "in: role: tool:"),
    *("before:9999999999999999999999", "after:0000-00-00", "before:0001-01-01T00:00+14:00"),
    "a" * 100_000,
)


def test_odd_queries_raise_no_error(session: Session) -> None:
    write(session, "one word")
    index_session(session.pk)
    for query, order in product(ODD_QUERIES, ("best", "newest")):
        assert len(search(session, query, order=order)) <= 1


def test_number_of_queries_does_not_grow_with_the_session(session: Session) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            find_in(session.pk, "stone wall of sand", limit=50)
        return len(queries)

    write(session, *["a stone wall", "sand"] * 10)
    index_session(session.pk)
    few = count()
    write(session, *["a stone wall", "sand"] * 100)
    index_session(session.pk)
    assert count() == few
    write(session, *["stone"] * 20)
    assert count() == few + 1


def test_many_unindexed_turns_are_indexed_before_a_search(session: Session) -> None:
    write(session, *["a stone"] * (MAX_UNINDEXED_TURNS + 1))
    assert len(search(session, "stone", limit=100)) == MAX_UNINDEXED_TURNS + 1
    progress = read_progress(session.pk)
    assert progress is not None
    assert progress.waiting == 0


@pytest.mark.django_db(transaction=True)
def test_search_does_not_wait_for_the_write_lock(session: Session) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL has no lock for all writes")
    write(session, *["a stone"] * (MAX_UNINDEXED_TURNS + 1))
    other = sqlite3.connect(connection.settings_dict["NAME"], uri=True, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        assert len(search(session, "stone", limit=100)) == MAX_UNINDEXED_TURNS + 1
    finally:
        other.close()
    assert SearchEntry.objects.count() == 0
