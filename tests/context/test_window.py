"""The window: what the provider accepts, within the budget, repaired where needed."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from conversations.context.messages import CONTINUE_TEXT, NO_RESULT, build_messages
from conversations.context.window import build_system_prompt, choose_turns, token_budget
from conversations.domain.jsontext import dump_json
from conversations.domain.turns import StoredTurn

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


def messages(*turns: StoredTurn, go_on: bool = False) -> list[dict[str, Any]]:
    return build_messages(turns, model=MODEL, go_on=go_on)


def test_a_dangling_call_gets_an_error_result() -> None:
    built = messages(
        turn(1, "user", "look"), turn(2, "assistant", **calls("a")), turn(3, "user", "so?")
    )
    result, text = built[2]["content"]
    assert (result["tool_use_id"], result["is_error"], result["content"]) == ("a", True, NO_RESULT)
    assert text == {"type": "text", "text": "so?"}


def test_an_orphan_result_is_left_out() -> None:
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


def test_a_refused_answer_is_not_sent_back() -> None:
    built = messages(
        turn(1, "user", "no"),
        turn(2, "assistant", "I ca", stop_reason="refusal"),
        turn(3, "user", "yes"),
    )
    assert [m["role"] for m in built] == ["user"]


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


def test_going_on_asks_the_model_to_continue() -> None:
    built = messages(
        turn(1, "user", "write"), turn(2, "assistant", "half", complete=False), go_on=True
    )
    assert built[-1] == {"role": "user", "content": [{"type": "text", "text": CONTINUE_TEXT}]}


def test_an_imported_id_is_made_acceptable() -> None:
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


@settings(deadline=None)
@given(steps=TURNS, go_on=st.booleans())
def test_any_history_makes_messages_that_the_provider_accepts(
    steps: list[tuple[str, str, str]], go_on: bool
) -> None:
    turns = []
    for number, (kind, text, call_id) in enumerate(steps, 1):
        if kind == "call":
            turns.append(turn(number, "assistant", text, **calls(call_id, call_id + "2")))
        elif kind == "tool":
            turns.append(turn(number, "tool", text, tool_call_id=call_id))
        else:
            turns.append(turn(number, kind, text))
    check_acceptable(messages(*turns, go_on=go_on))


def check_acceptable(built: list[dict[str, Any]]) -> None:
    if not built:
        return
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


def exchange_turns(count: int, *, size: int) -> list[StoredTurn]:
    return [
        turn(n, "user" if n % 2 else "assistant", "x", token_count=size)
        for n in range(1, count + 1)
    ]


def test_the_floor_stays_until_the_high_water_mark() -> None:
    turns = exchange_turns(10, size=50)
    chosen, floor = choose_turns(reversed(turns), floor=1, budget=1000)
    assert (len(chosen), floor) == (10, 1)


def test_the_floor_then_moves_to_an_exchange_near_the_low_water_mark() -> None:
    turns = exchange_turns(40, size=50)
    chosen, floor = choose_turns(reversed(turns), floor=1, budget=1000)
    assert chosen[0].number == floor
    assert chosen[0].role == "user"
    assert sum(t.token_count for t in chosen) <= 500
    assert chosen[-1].number == 40


def test_the_newest_message_is_always_in() -> None:
    turns = [*exchange_turns(4, size=10), turn(5, "user", "y" * 100_000)]
    chosen, floor = choose_turns(reversed(turns), floor=1, budget=1000)
    assert [t.number for t in chosen] == [5]
    assert floor == 5


def test_the_system_prompt_is_the_same_bytes_for_the_same_workspace() -> None:
    first = build_system_prompt(workspace_name="Garden", instructions="Be kind. ")
    assert first == build_system_prompt(workspace_name="Garden", instructions="Be kind. ")
    assert token_budget(max_input_tokens=200_000, max_output_tokens=8000, system=first) > 150_000
    assert token_budget(max_input_tokens=1000, max_output_tokens=8000, system=first) >= 200
