"""Quotations stay within their size limit, whatever they quote."""

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from conversations.agent.recall.queries import RecalledCall, RecalledTurn
from conversations.agent.recall.quotation import (
    BEGIN,
    END,
    MAX_QUOTED_TOKENS,
    QuotedGroup,
    fit,
    make_finder,
    quote,
    quote_turn,
)
from conversations.agent.recall.request import MAX_LIMIT
from conversations.domain.text import estimate_tokens
from tests.properties import costly

OTHER = UUID("99999999-2222-4333-8444-555555555555")

TEXTS = st.builds(
    lambda unit, count, word: unit * count + word + unit * count,
    st.sampled_from(["word ", "漢字", "🌻", "\n", "{}[];", "x" * 400 + " "]),
    st.sampled_from([0, 1, 30, 400]),
    st.sampled_from(["", " zinnia "]),
)
CALLS = st.lists(st.dictionaries(st.sampled_from(["path", "text", "漢" * 50]), TEXTS), max_size=8)


def past_turn(number: int, role: str, text: str, calls: list[dict[str, str]]) -> RecalledTurn:
    made = [
        RecalledCall(turn=number, call_id="a", name="漢" * 90, arguments=call) for call in calls
    ]
    return RecalledTurn(
        number=number,
        role=role,
        text=text,
        length=len(text),
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
        tool_name="bash" if role == "tool" else "",
        call_id="a",
        calls=made if role == "assistant" else [],
        ok=None,
        is_complete=True,
        is_replaced=False,
    )


TURNS = st.tuples(st.sampled_from(["user", "assistant", "tool"]), TEXTS, CALLS)


@costly
@given(groups=st.lists(st.lists(TURNS, min_size=1, max_size=3), min_size=1, max_size=MAX_LIMIT))
def test_any_hits_with_their_neighbours_fit_the_limit(
    groups: list[list[tuple[str, str, list[dict[str, str]]]]],
) -> None:
    find = make_finder("zinnia")
    quoted = []
    for place, turns in enumerate(groups):
        said = [
            message
            for offset, (role, text, calls) in enumerate(turns)
            for message in quote_turn(
                past_turn(place * 10 + offset + 1, role, text, calls),
                find=find if offset == len(turns) // 2 else None,
            )
        ]
        quoted.append(QuotedGroup(messages=said, session=OTHER))
    fitted = fit(quoted, budget=MAX_QUOTED_TOKENS)
    output = quote(fitted)
    hits = [message for group in fitted for message in group.messages if message.is_hit]
    assert estimate_tokens(output) <= MAX_QUOTED_TOKENS + 300
    assert len(hits) == len(groups)
    for message in hits:
        assert ("zinnia" in message.render()) == ("zinnia" in message.text)
    assert output.startswith(BEGIN)
    assert output.endswith(END)
