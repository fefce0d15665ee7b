"""Sums of usage, the periods, units and scopes of budgets, and amounts as text."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from conversations.domain.messages import say
from conversations.domain.text import number_text

# Sums of usage, and the time to the first token.

FIRST_TOKEN_MS = (
    *(100, 150, 250, 400, 600, 900, 1_300, 2_000, 3_000, 4_500),
    *(7_000, 10_000, 15_000, 30_000, 60_000),
)
"""The upper ends of the ranges, in milliseconds. Slower calls have one more range."""

FIRST_TOKEN_FIELDS = tuple(f"first_token_{index:02}" for index in range(len(FIRST_TOKEN_MS) + 1))
"""The columns that count the calls in each range, in order."""


def first_token_field(milliseconds: int) -> str:
    return FIRST_TOKEN_FIELDS[bisect_left(FIRST_TOKEN_MS, milliseconds)]


def find_quantile(counts: Sequence[int], share: float) -> int | None:
    """Return the time in milliseconds that this share of the calls did not exceed.

    The time is interpolated linearly within its range. Times in the last range, which has no upper
    end, are returned as its lower end. Return None if ``counts`` has no calls.
    """
    total = sum(counts)
    if not total:
        return None
    rank, count_below = share * total, 0
    for count, low, high in zip(counts, (0, *FIRST_TOKEN_MS), (*FIRST_TOKEN_MS, 0), strict=True):
        if count and count_below + count >= rank:
            return round(low + (max(high, low) - low) * (rank - count_below) / count)
        count_below += count
    return FIRST_TOKEN_MS[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSums:
    """The usage of several model calls.

    ``failed`` counts calls without an answer, and ``unpriced`` counts calls whose cost is not
    known. ``input_tokens`` are the tokens that were neither read from the cache nor written to
    it. ``first_token`` has the number of calls in each range of the time to the first token.
    """

    calls: int = 0
    failed: int = 0
    unpriced: int = 0
    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    first_token: tuple[int, ...] = (0,) * len(FIRST_TOKEN_FIELDS)

    @property
    def prompt_tokens(self) -> int:
        """All tokens that the model was given."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def cache_percent(self) -> int | None:
        """The share of the prompt's tokens that came from the cache; None without a prompt."""
        if not self.prompt_tokens:
            return None
        return round(100 * self.cache_read_tokens / self.prompt_tokens)

    @property
    def median_ms(self) -> int | None:
        return find_quantile(self.first_token, 0.5)

    @property
    def p95_ms(self) -> int | None:
        return find_quantile(self.first_token, 0.95)


DAY, MONTH = "day", "month"
PERIODS = (DAY, MONTH)
PERIOD_WORDS = {DAY: say("today"), MONTH: say("this month")}

USD, TOKENS = "usd", "tokens"
UNITS = (USD, TOKENS)

INSTALLATION, WORKSPACE, PERSON = "installation", "workspace", "person"
SCOPES = (INSTALLATION, WORKSPACE, PERSON)  # to which a total or a budget applies


def period_start(period: str, day: date) -> date:
    """Return the first day of the period that ``day`` is in."""
    return day.replace(day=1) if period == MONTH else day


def next_start(period: str, day: date) -> date:
    """Return the first day of the period after the one that ``day`` is in."""
    if period == DAY:
        return day + timedelta(days=1)
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1)


def amount_text(amount: int, unit: str) -> str:
    if unit == USD:
        return f"${amount / 1_000_000:,.2f}".replace(",", "\u202f")
    return say("%(count)s tokens", count=number_text(amount))
