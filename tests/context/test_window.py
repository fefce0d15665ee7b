"""The window: messages that the provider accepts, within the budget, repaired if necessary."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import given
from hypothesis import strategies as st

from conversations.agent.window.budget import TurnChoice, choose_turns, make_budget, make_caps
from conversations.agent.window.messages import NO_RESULT, MessageCaps, join_pieces, make_piece
from conversations.agent.window.window import WindowSpec, assemble_window
from conversations.archive.sessions import create_session, save_floor
from conversations.domain.stream import SEALED
from conversations.domain.text import dump_json
from conversations.domain.turns import MODEL_NOTE, NewTurn, StoredTurn
from conversations.domain.windows import WindowRules
from conversations.models import Workspace
from tests.archive import state_story
from tests.properties import costly

MODEL = "claude-test"


def turn(number: int, role: str, content: str = "", **fields: Any) -> StoredTurn:
    values: dict[str, Any] = {
        "blocks": None,
        "tool_calls": None,
        "tool_call_id": None,
        "tool_name": None,
        "token_count": 0,
        "stop_reason": "",
        "complete": True,
        "metadata": "{}",
    }
    return StoredTurn(
        number=number,
        role=role,
        content=content,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        **(values | fields),
    )


def calls(*ids: str) -> dict[str, str]:
    return {
        "blocks": dump_json(
            [{"type": "tool_use", "id": i, "name": "look", "input": {}} for i in ids]
        )
    }


def messages(*turns: StoredTurn) -> list[dict[str, Any]]:
    caps = MessageCaps(message=10**6, result=10**6)
    return join_pieces(make_piece(turn, model=MODEL, caps=caps) for turn in turns)


def test_call_without_a_result_gets_an_error_result() -> None:
    built = messages(
        turn(1, "user", "look"), turn(2, "assistant", **calls("a")), turn(3, "user", "so?")
    )
    result, text = built[2]["content"]
    assert (result["tool_use_id"], result["is_error"], result["content"]) == ("a", True, NO_RESULT)
    assert text == {"type": "text", "text": "so?"}


@pytest.mark.parametrize(
    "value", ["NaN", "1e999", "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900]
)
def test_unsendable_input_of_a_stored_call_is_replaced_by_an_empty_one(value: str) -> None:
    call = '[{"type":"tool_use","id":"a","name":"look","input":{"a":%s}}]'
    built = messages(turn(1, "user", "look"), turn(2, "assistant", blocks=call % value))
    assert built[1]["content"][0]["input"] == {}


def test_deeply_nested_stored_block_is_kept() -> None:
    block = '[{"type":"future_result","content":%s}]'
    text = block % ("[" * 900 + "]" * 900)
    built = messages(turn(1, "user", "look"), turn(2, "assistant", blocks=text))
    assert built[1]["content"][0]["type"] == "future_result"


def test_orphan_result_is_left_out() -> None:
    built = messages(turn(1, "user", "hi"), turn(2, "tool", "lost", tool_call_id="x"))
    assert [m["role"] for m in built] == ["user"]
    assert len(built[0]["content"]) == 1


def test_parallel_results_share_one_message_before_any_text() -> None:
    built = messages(
        turn(1, "user", "look"),
        turn(2, "assistant", **calls("a", "b")),
        turn(3, "tool", "1", tool_call_id="a"),
        turn(4, "tool", "2", tool_call_id="b"),
        turn(5, "user", "well?"),
    )
    kinds = [block["type"] for block in built[2]["content"]]
    assert kinds == ["tool_result", "tool_result", "text"]


def test_note_between_a_call_and_its_result_comes_after_the_result() -> None:
    told = dump_json({MODEL_NOTE: True})
    built = messages(
        turn(1, "user", "Read it"),
        turn(2, "assistant", **calls("a", "b")),
        turn(3, "tool", "first", tool_call_id="a"),
        turn(4, "system", "Restored 1 file.", metadata=told),
        turn(5, "tool", "second", tool_call_id="b"),
    )
    note = {"type": "text", "text": "[Restored 1 file.]"}
    assert [block.get("content", block) for block in built[2]["content"]] == [
        "first",
        "second",
        note,
    ]
    later = messages(
        turn(1, "user", "Read it"),
        turn(2, "assistant", **calls("a")),
        turn(3, "system", "Restored 1 file.", metadata=told),
        turn(4, "user", "Go on"),
    )
    assert [block.get("content", block.get("text")) for block in later[2]["content"]] == [
        NO_RESULT,
        note["text"],
        "Go on",
    ]


def test_refused_answer_is_not_sent_back() -> None:
    built = messages(
        turn(1, "user", "no"),
        turn(2, "assistant", "I ca", stop_reason="refusal"),
        turn(3, "user", "yes"),
    )
    assert [m["role"] for m in built] == ["user"]


def test_loaded_skill_is_shortened_only_if_the_window_is_too_small() -> None:
    caps = make_caps(make_budget(limit=8_000, max_output=1_000, ratio=0), WindowRules())
    text = "word " * 4_000
    for tool, is_whole in (("load_skill", True), ("look", False)):
        result = turn(3, "tool", text, tool_call_id="a", tool_name=tool)
        piece = make_piece(result, model=MODEL, caps=caps)
        assert (piece.cost == piece.full_cost) is is_whole
    skill = turn(3, "tool", text, tool_call_id="a", tool_name="load_skill")
    chosen = choose_turns(
        [skill, turn(2, "assistant", **calls("a")), turn(1, "user", "go")],
        floor=1,
        budget=2_000,
        rules=WindowRules(),
        caps=caps,
        make=lambda one, caps: make_piece(one, model=MODEL, caps=caps),
        find_head=lambda _: None,
    )
    assert sum(piece.cost for piece in chosen.pieces) <= 2_000


def test_sealed_data_of_a_call_is_sent_only_to_its_model() -> None:
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    blocks = dump_json([call | {SEALED: "SIG"}])
    for metadata, expected in (
        (dump_json({"model": MODEL}), call | {SEALED: "SIG"}),
        (dump_json({"model": "other"}), call),
        ("{}", call),  # turns of other programs name no model
    ):
        answer = turn(2, "assistant", blocks=blocks, metadata=metadata)
        [said] = messages(turn(1, "user", "a"), answer, turn(3, "tool", tool_call_id="a"))[1:2]
        assert said["content"] == [expected]


def test_thinking_of_another_model_is_dropped() -> None:
    blocks = [
        {"type": "thinking", "thinking": "x", "signature": "s"},
        {"type": "text", "text": "y"},
    ]
    mine = turn(2, "assistant", "y", blocks=dump_json(blocks), metadata='{"model": "claude-test"}')
    other = turn(2, "assistant", "y", blocks=dump_json(blocks), metadata='{"model": "another"}')
    first = turn(1, "user", "hi")
    last = turn(3, "user", "and?")
    assert messages(first, mine, last)[1]["content"] == blocks
    assert messages(first, other, last)[1]["content"] == blocks[1:]


def test_thinking_that_was_cut_is_dropped() -> None:
    signed, text = (
        {"type": "thinking", "thinking": "x", "signature": "s"},
        {"type": "text", "text": "y"},
    )
    cut = {"type": "thinking", "thinking": "and", "signature": ""}
    for blocks in ([text, cut], [signed, text, cut]):
        said = turn(2, "assistant", "y", blocks=dump_json(blocks), stop_reason="max_tokens")
        built = messages(turn(1, "user", "hi"), said, turn(3, "user", "go on"))
        assert built[1]["content"] == blocks[:-1]


def test_imported_id_is_changed_to_an_acceptable_one() -> None:
    built = messages(
        turn(1, "user", "look"),
        turn(2, "assistant", **calls("call:1/ä")),
        turn(3, "tool", "ok", tool_call_id="call:1/ä"),
    )
    assert built[1]["content"][0]["id"] == built[2]["content"][0]["tool_use_id"] == "call_1__"


TURNS = st.lists(
    st.tuples(
        st.sampled_from(["user", "assistant", "call", "tool", "system"]),
        st.sampled_from(["", " ", "text", "a" * 50]),
        st.sampled_from(["a", "b", "c"]),
    ),
    max_size=20,
)


@costly
@given(steps=TURNS)
def test_any_history_gives_messages_that_the_provider_accepts(
    steps: list[tuple[str, str, str]],
) -> None:
    turns = []
    for number, (kind, text, call_id) in enumerate(steps, 1):
        if kind == "call":
            turns.append(turn(number, "assistant", text, **calls(call_id, call_id + "2")))
        elif kind == "tool":
            turns.append(turn(number, "tool", text, tool_call_id=call_id))
        else:
            turns.append(turn(number, kind, f"{text} {number}"))
    built = messages(*turns, turn(len(turns) + 1, "user", "and now?"))
    check_acceptable(built)
    given = [b["text"] for m in built if m["role"] == "user" for b in m["content"] if "text" in b]
    assert given == [one.content for one in turns if one.role == "user"] + ["and now?"]


def check_acceptable(built: list[dict[str, Any]]) -> None:
    assert built[0]["role"] == built[-1]["role"] == "user"
    for before, message in zip([{"role": "", "content": []}, *built], built, strict=False):
        assert message["role"] != before["role"]
        assert message["content"]
        results = [b for b in message["content"] if b["type"] == "tool_result"]
        asked = [b["id"] for b in before["content"] if b["type"] == "tool_use"]
        assert sorted(b["tool_use_id"] for b in results) == sorted(asked)
        assert message["content"][: len(results)] == results
        for block in message["content"]:
            assert block["type"] != "text" or block["text"].strip()


CAPS = MessageCaps(message=400, result=100)
RULES = WindowRules(high_water=0.9, low_water=0.5, keep_recent=1)


def choose(turns: list[StoredTurn], *, budget: int = 1000, **changes: Any) -> TurnChoice:
    """Choose turns as the window does, with ``RULES`` and the given changes."""
    floor = changes.pop("floor", 1)

    def find_head(before: int) -> StoredTurn | None:
        people = [t for t in turns if t.role == "user" and t.number < before]
        return people[-1] if people else None

    return choose_turns(
        [t for t in reversed(turns) if t.number >= floor],
        floor=floor,
        budget=budget,
        rules=replace(RULES, **changes),
        caps=CAPS,
        make=lambda turn, caps: make_piece(turn, model=MODEL, caps=caps),
        find_head=find_head,
    )


def exchange_turns(count: int, *, size: int) -> list[StoredTurn]:
    """Return messages and answers of about ``size`` tokens each."""
    return [turn(n, "user" if n % 2 else "assistant", "word " * size) for n in range(1, count + 1)]


def tool_loop(start: int, calls_: int, *, size: int) -> list[StoredTurn]:
    """Return a message and ``calls_`` tool calls with results of ``size`` lines."""
    turns = [turn(start, "user", "do it")]
    for at in range(calls_):
        number = start + 1 + 2 * at
        turns.append(turn(number, "assistant", **calls(f"c{number}")))
        turns.append(turn(number + 1, "tool", "line\n" * size, tool_call_id=f"c{number}"))
    return turns


def cost(choice: TurnChoice) -> int:
    head = choice.head.cost if choice.head else 0
    return sum(piece.cost for piece in choice.pieces) + head


def test_floor_stays_until_the_high_water_mark() -> None:
    choice = choose(exchange_turns(10, size=50))
    assert ([p.number for p in choice.pieces], choice.floor) == (list(range(1, 11)), 1)


def test_floor_moves_to_an_exchange_near_the_low_water_mark() -> None:
    choice = choose(exchange_turns(40, size=50))
    assert choice.pieces[0].number == choice.floor
    assert choice.pieces[0].role == "user"
    assert 300 < cost(choice) <= 500
    assert choice.pieces[-1].number == 40


def test_newest_exchanges_stay_above_the_low_water_mark_if_they_fit() -> None:
    turns = exchange_turns(40, size=80)
    assert len(choose(turns, keep_recent=1).pieces) == 4
    assert len(choose(turns, keep_recent=3).pieces) == 6
    assert len(choose(turns, keep_recent=9).pieces) == 6, "more do not fit"


def test_oversized_newest_message_is_shortened_and_never_dropped() -> None:
    turns = [*exchange_turns(4, size=10), turn(5, "user", "START " + "y " * 100_000 + "END")]
    choice = choose(turns)
    newest = choice.pieces[-1]
    text = newest.blocks[0]["text"]
    assert newest.number == 5
    assert newest.cost < newest.full_cost
    assert newest.cost <= CAPS.message + 10
    assert text.startswith("START")
    assert text.endswith("END")
    assert "turn 5 in the archive" in text


def test_oversized_result_is_shortened_in_place() -> None:
    choice = choose(tool_loop(1, 1, size=5000))
    assert [p.number for p in choice.pieces] == [1, 2, 3]
    assert choice.pieces[2].cost <= CAPS.result + 20
    assert choice.pieces[2].full_cost > 5000


def test_same_turn_has_the_same_bytes_in_every_window() -> None:
    turns = tool_loop(1, 3, size=5000)
    first = choose(turns[:5]).pieces
    assert choose(turns).pieces[: len(first)] == first


def test_very_long_exchange_is_cut_between_a_result_and_the_next_call() -> None:
    turns = [*exchange_turns(4, size=10), *tool_loop(5, 20, size=90)]
    choice = choose(turns)
    assert choice.head is not None
    assert choice.head.number == 5, "the person's newest message"
    assert choice.pieces[0].role == "assistant"
    assert choice.pieces[-1].number == turns[-1].number
    assert cost(choice) <= 500
    check_acceptable(join_pieces([choice.head, *choice.pieces]))
    later = choose(turns, floor=choice.floor)
    assert (later.floor, later.head) == (choice.floor, choice.head), "and stays like that"


def test_head_counts_towards_the_size_of_a_growing_window() -> None:
    turns = [turn(1, "user", "ask " * 350), *tool_loop(2, 60, size=90)[1:]]
    floor, moves = 1, 0
    for end in range(2, len(turns) + 1):
        choice = choose(turns[:end], floor=floor)
        assert cost(choice) <= 900, "the high-water mark"
        moves += choice.floor != floor
        floor = choice.floor
    assert choice.head is not None
    assert 1 < moves < 30, "rarely all the same"


def test_parallel_results_that_exceed_the_budget_are_shortened_further() -> None:
    ids = [f"c{n}" for n in range(30)]
    turns = [turn(1, "user", "all of them"), turn(2, "assistant", **calls(*ids))]
    turns += [
        turn(3 + n, "tool", "line\n" * 400, tool_call_id=call_id) for n, call_id in enumerate(ids)
    ]
    choice = choose(turns, budget=2000)
    assert choice.tight is not None
    assert choice.tight.result < CAPS.result
    assert cost(choice) <= 2000
    pieces = [*([choice.head] if choice.head else []), *choice.pieces]
    check_acceptable(join_pieces(pieces))
    assert len(join_pieces(pieces)[-1]["content"]) == 30


WORKLOADS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(1, 900)),
        st.tuples(st.just("tools"), st.lists(st.integers(0, 900), min_size=1, max_size=6)),
    ),
    min_size=1,
    max_size=12,
)


@given(steps=WORKLOADS, budget=st.integers(300, 3000), last=st.booleans())
def test_any_history_fits_and_contains_the_newest_message(
    steps: list[tuple[str, Any]], budget: int, *, last: bool
) -> None:
    turns: list[StoredTurn] = []
    for kind, size in steps:
        if kind == "say":
            turns.append(turn(len(turns) + 1, "user", "ask " * size))
            turns.append(turn(len(turns) + 1, "assistant", "answer " * size))
            continue
        turns.append(turn(len(turns) + 1, "user", "work"))
        for number in size:
            call_id = f"c{len(turns)}"
            turns.append(turn(len(turns) + 1, "assistant", **calls(call_id)))
            turns.append(turn(len(turns) + 1, "tool", "x\n" * number, tool_call_id=call_id))
    if last:
        turns.append(turn(len(turns) + 1, "user", "and now?"))
    choice = choose(turns, budget=budget)
    pieces = [*([choice.head] if choice.head else []), *choice.pieces]
    newest = max(t.number for t in turns if t.role == "user")
    assert newest in [piece.number for piece in pieces]
    assert pieces[-1].number == turns[-1].number
    assert cost(choice) <= budget
    if last:
        check_acceptable(join_pieces(pieces))


LONG_EXCHANGES = st.lists(
    st.tuples(st.integers(1, 50), st.lists(st.integers(1, 20), max_size=24)),
    min_size=1,
    max_size=3,
)


@pytest.mark.django_db
@costly
@given(exchanges=LONG_EXCHANGES, limit=st.sampled_from([8_000, 32_000]))
def test_each_window_fits_with_the_floor_of_the_window_before(
    workspace: Workspace, user: User, exchanges: list[tuple[int, list[int]]], limit: int
) -> None:
    """Sizes are in percent of the model's limit."""
    session = create_session(workspace, owner=user)
    words = "beans " * (limit // 150)

    def assemble(*new: NewTurn) -> None:
        state_story.write(session, *new)
        session.refresh_from_db()
        window = assemble_window(
            WindowSpec(
                session_pk=session.pk,
                floor=session.floor_turn,
                rewinds=0,
                model=MODEL,
                system="You help.",
                tools="[]",
                limit=limit,
                max_output=limit // 8,
                ratio=1.0,
                rules=WindowRules(),
            )
        )
        assert window.estimated <= window.decisions["budget"]
        save_floor(session.pk, floor=window.floor)

    for asked, results in exchanges:
        assemble(state_story.message(words * asked))
        for size in results:
            assemble(*state_story.used("read_file", {"path": "a"}, words * size))


def test_budget_leaves_room_for_the_answer_and_for_estimation_errors() -> None:
    unknown = make_budget(limit=200_000, max_output=16_000, ratio=0)
    known = make_budget(limit=200_000, max_output=16_000, ratio=1)
    double = make_budget(limit=200_000, max_output=16_000, ratio=2)
    assert unknown.tokens < known.tokens < 200_000 - 16_000
    assert double.tokens == known.tokens // 2
    assert make_budget(limit=1000, max_output=8000, ratio=0).tokens > 500
    assert known.max_tokens(estimated=1000) == 16_000
    assert known.max_tokens(estimated=190_000) == 16_000, "the reserve at least"
    assert make_budget(limit=32_000, max_output=16_000, ratio=1).max_tokens(estimated=25_000) < 6000
