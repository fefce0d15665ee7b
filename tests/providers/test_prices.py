"""The cost of a model call, in millionths of a dollar."""

from datetime import date
from functools import partial
from pathlib import Path

import pytest

from conversations.domain.stream import Usage
from conversations.domain.text import cost_text
from conversations.providers import model_limits
from conversations.providers.config import ANTHROPIC, OPENAI, ProviderConfig, read_provider_prices
from conversations.providers.model_limits import read_prices

find_cost = partial(model_limits.find_cost, read_prices())


def test_each_kind_of_token_has_its_price() -> None:
    usage = Usage(
        input_tokens=1_000, output_tokens=100, cache_read_tokens=50_000, cache_write_tokens=2_000
    )
    assert find_cost("claude-sonnet-5-5", usage) == 2_000 + 1_000 + 10_000 + 5_000
    assert find_cost("claude-sonnet-5-5", usage, lifetime="1h") == 2_000 + 1_000 + 10_000 + 8_000


def test_a_snapshot_has_the_price_of_its_model() -> None:
    usage = Usage(input_tokens=10, output_tokens=1)
    assert find_cost("claude-opus-5-5-20261015", usage) == 60
    assert find_cost("claude-opus-5-5", usage) == 60


def test_an_alias_has_the_price_of_the_model_that_answered(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    prices = (
        "bean-20250101 = [{ input = 1, output = 4 }]\nbean-20260101 = [{ input = 2, output = 4 }]"
    )
    path.write_text(f"[models]\n{prices}\n")
    usage = Usage(input_tokens=10, output_tokens=1)
    costs = [
        model_limits.find_cost(read_prices(path), model, usage, answered_as=answered)
        for model, answered in (
            ("bean-20250101", "bean-20260101"),
            ("bean", "bean-20260101"),
            ("bean-latest", "bean-20260101"),
            ("fast", "bean-20250101"),
            ("bean", ""),
            ("been", "been"),
            ("bean-20270101", "bean-20270101"),
        )
    ]
    assert costs == [14, 24, 24, 14, None, None, None]
    assert find_cost("claude-opus-5-5-latest", usage) == 60


@pytest.mark.parametrize(
    ("model", "usage"),
    [
        ("demo", Usage(input_tokens=1, output_tokens=1)),
        ("claude-opus-5", Usage(input_tokens=1, output_tokens=1)),
        ("claude-sonnet-5-5", Usage()),
        ("claude-sonnet-5-5", Usage(input_tokens=5)),
    ],
)
def test_the_cost_of_unknown_models_or_usage_is_none(model: str, usage: Usage) -> None:
    assert find_cost(model, usage) is None


def test_a_cost_is_written_in_few_digits() -> None:
    sums = (None, 49, 1_234, 421_499, 12_345_678)
    assert [cost_text(microusd) for microusd in sums] == ["", "", "0.0012", "0.42", "12.35"]


USAGE = Usage(input_tokens=1_000_000, output_tokens=0, cache_write_tokens=1_000_000)


def test_a_call_has_the_price_of_its_day(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        "[models]\n"
        "bean = [\n"
        "  { from = 2026-03-01, input = 1.0, output = 4 },\n"
        "  { from = 2027-01-01, input = 0.5, output = 2 },\n"
        "]\n"
        "claude-opus-5-5 = [{ input = 3, output = 4 }]\n"
    )
    prices = read_prices(path)
    days = (date(2026, 2, 28), date(2026, 3, 1), date(2026, 12, 31), date(2027, 1, 1))
    costs = [model_limits.find_cost(prices, "bean", USAGE, day=day) for day in days]
    assert costs == [None, 2_250_000, 2_250_000, 1_125_000]
    assert model_limits.find_cost(prices, "claude-opus-5-5", USAGE) == 3_000_000 + 3_750_000
    assert model_limits.find_cost(prices, "claude-sonnet-5-5", USAGE) == 2_000_000 + 2_500_000


@pytest.mark.parametrize(
    ("kind", "lifetime", "cost"),
    [
        (ANTHROPIC, "5m", 2_500_000 + 200_000),
        (ANTHROPIC, "1h", 4_000_000 + 200_000),
        (ANTHROPIC, "2h", 2_000_000 + 200_000),  # priced as input: the cache price is unknown
        (OPENAI, "5m", 2_000_000 + 2_000_000),
    ],
)
def test_a_configured_model_has_prices_for_its_cache(kind: str, lifetime: str, cost: int) -> None:
    models = {"bean": {"price": {"input": 2, "output": 10.0}}}
    config = ProviderConfig(name="own", kind=kind, url="https://own.example.org", models=models)
    usage = Usage(
        input_tokens=0,
        output_tokens=0,
        cache_write_tokens=1_000_000,
        cache_read_tokens=1_000_000,
    )
    prices = read_provider_prices((config,))
    assert model_limits.find_cost(prices, "own/bean", usage, lifetime=lifetime) == cost
