"""What a model call costs, by list prices: ours in ``prices.toml``, and those of the
installation in a file of the same form, which goes first.

A price is valid from its date on. A call costs what its model cost on its day, and that
stays with it: later prices change nothing of what was recorded.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from conversations.domain.stream import Usage

PRICES = Path(__file__).with_name("prices.toml")

_SNAPSHOT = re.compile(r"-20\d{6}$")
"""The date that ends the id of one snapshot of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars per million tokens, which is millionths of a dollar per token.
    ``cache_write`` is by how long the cache keeps it."""

    since: date
    input: float
    output: float
    cache_write: dict[str, float]
    cache_read: float


class PriceList:
    """The prices of models, the newest first for each."""

    def __init__(self, prices: Mapping[str, tuple[Price, ...]]) -> None:
        self._prices = prices

    def find_cost(
        self, model: str, usage: Usage, *, lifetime: str = "5m", day: date | None = None
    ) -> int | None:
        """Millionths of a US dollar; None where the price or the usage is not known.
        ``lifetime`` is how long what is written to the cache stays there, ``day`` the
        one of the call (UTC, today if not given)."""
        price = self._find(model, day or datetime.now(UTC).date())
        if price is None or usage.input_tokens is None or usage.output_tokens is None:
            return None
        return round(
            usage.input_tokens * price.input
            + usage.output_tokens * price.output
            + (usage.cache_write_tokens or 0) * price.cache_write.get(lifetime, 0)
            + (usage.cache_read_tokens or 0) * price.cache_read
        )

    def _find(self, model: str, day: date) -> Price | None:
        known = self._prices.get(model) or self._prices.get(_SNAPSHOT.sub("", model), ())
        return next((price for price in known if price.since <= day), None)


def read_prices(own: Path | None = None) -> PriceList:
    """Our prices, and before them those of a file of the installation. Raises ValueError
    with a sentence that says what is wrong with that."""
    prices = _read(PRICES)
    if own is not None:
        try:
            prices |= _read(own)
        except OSError as error:
            raise ValueError(f"{own} cannot be read: {error.strerror}.") from error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ValueError(f"{own} is no list of prices: {reason}.") from error
    return PriceList(prices)


def _read(path: Path) -> dict[str, tuple[Price, ...]]:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        model: tuple(
            sorted(
                (_price(entry, table) for entry in entries),
                key=lambda price: price.since,
                reverse=True,
            )
        )
        for model, entries in table["models"].items()
    }


def _price(entry: Mapping[str, Any], table: Mapping[str, Any]) -> Price:
    since = entry.get("from", date.min)
    if type(since) is not date:
        raise TypeError("“from” is a date such as 2026-11-01")
    reading = float(table.get("cache_read", 0.1))
    writing = table.get("cache_write", {"5m": 1.25, "1h": 2.0})
    return Price(
        since=since,
        input=float(entry["input"]),
        output=float(entry["output"]),
        cache_write={lifetime: entry["input"] * factor for lifetime, factor in writing.items()},
        cache_read=entry["input"] * reading,
    )
