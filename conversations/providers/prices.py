"""What a model call costs, by the provider's list prices in ``prices.toml``."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conversations.domain.stream import Usage

PRICES = Path(__file__).with_name("prices.toml")

_SNAPSHOT = re.compile(r"-20\d{6}$")
"""The date that ends the id of one snapshot of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars per million tokens, which is millionths of a dollar per token."""

    input: float
    output: float
    cache_write: dict[str, float]
    cache_read: float


def find_cost(model: str, usage: Usage, *, lifetime: str = "5m") -> int | None:
    """Millionths of a US dollar; None where the price or the usage is not known.
    ``lifetime`` is how long what is written to the cache stays there."""
    price = _read_prices().get(_SNAPSHOT.sub("", model))
    if price is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    return round(
        usage.input_tokens * price.input
        + usage.output_tokens * price.output
        + (usage.cache_write_tokens or 0) * price.cache_write.get(lifetime, 0)
        + (usage.cache_read_tokens or 0) * price.cache_read
    )


@cache
def _read_prices() -> dict[str, Price]:
    table = tomllib.loads(PRICES.read_text())
    return {
        model: Price(
            input=price["input"],
            output=price["output"],
            cache_write={
                lifetime: price["input"] * factor
                for lifetime, factor in table["cache_write"].items()
            },
            cache_read=price["input"] * table["cache_read"],
        )
        for model, price in table["models"].items()
    }
