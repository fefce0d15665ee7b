"""The line and the meter of the window."""

import re
from typing import Any
from uuid import UUID

import pytest

from conversations.rendering.messages import fill_marks
from conversations.rendering.rows import render_meter, render_window_line, tokens_text

SESSION = UUID("11111111-2222-4333-8444-555555555555")


def words(html: str) -> str:
    return re.sub("<[^>]+>", "", fill_marks(html))


def meter(**figures: Any) -> str:
    return render_meter(SESSION, **{"tokens": 1, "limit": 100, "cost_microusd": 0, **figures})


def test_the_line_counts_the_turns_that_are_left_out() -> None:
    assert words(render_window_line(SESSION, left_out=1204)) == (
        "Context starts here: 1\u202f204 earlier turns are in the archive,"
        " where the model can look them up"
    )
    assert "1 earlier turn is in the archive, where the model can look it up" in words(
        render_window_line(SESSION, left_out=1)
    )
    assert render_window_line(SESSION, left_out=0) == ""


def test_the_meter_has_a_text() -> None:
    html = meter(tokens=76_123, limit=200_000, cost_microusd=421_000)
    assert words(html) == "38 % of the context · 76k of 200k tokens · $0.42"
    assert f'href="/s/{SESSION}/window/"' in html
    assert words(meter(tokens=10, limit=200)) == "5 % of the context · 10 of 200 tokens"


@pytest.mark.parametrize(
    ("tokens", "level"),
    [
        (72, "filling-up"),
        (81, "filling-up"),
        (82, "nearly-full"),
        (90, "full"),
        (140, "full"),
    ],
)
def test_the_meter_says_when_the_context_fills_up(tokens: int, level: str) -> None:
    html = meter(tokens=tokens)
    assert words(html).startswith(f"Context {min(tokens, 100)} % full")
    assert f'data-level="{level}"' in html
    assert "full" not in words(meter(tokens=71))


@pytest.mark.parametrize("unknown", [{"tokens": 0}, {"limit": 0}])
def test_the_meter_is_hidden_while_a_figure_is_unknown(unknown: dict[str, int]) -> None:
    assert meter(**unknown) == '<span id="meter" hidden></span>'


def test_token_counts_are_rounded() -> None:
    counts = (0, 999, 1_000, 76_499, 999_499, 999_500, 1_000_000, 1_048_576, 1_250_000)
    assert [tokens_text(count) for count in counts] == [
        *("0", "999", "1k", "76k", "999k", "1M", "1M", "1.05M", "1.25M")
    ]
