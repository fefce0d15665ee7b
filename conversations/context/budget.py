"""How many tokens the window may have."""

from dataclasses import dataclass

from conversations.domain.windows import WindowRules

from .messages import MessageCaps

KNOWN_MARGIN, UNKNOWN_MARGIN = 0.05, 0.15
"""Shares of the input left free because tokens are estimated: once the provider has
reported how its count compares, and before."""

LOWEST_RATIO, HIGHEST_RATIO = 0.5, 4.0
"""Bounds of the correction: a report outside is a mistake of the report."""

RESERVED_SHARE = 8
"""At least what the model may answer, or an eighth of its input, is kept for the
answer; a long answer gets more where the window leaves room."""

LEAST_HISTORY = 0.2
"""Share of the budget that the history has even if the system prompt is enormous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBudget:
    """``limit``: tokens of input and answer that the model takes. ``reserve`` of them
    are for the answer. ``tokens``: estimated tokens that the whole prompt may have;
    ``ratio``: real tokens for one that is estimated."""

    limit: int
    reserve: int
    tokens: int
    ratio: float
    margin: float
    max_output: int

    def for_history(self, *, fixed: int) -> int:
        """What is left beside ``fixed`` estimated tokens."""
        return max(self.tokens - fixed, int(self.tokens * LEAST_HISTORY))

    def max_tokens(self, *, estimated: int) -> int:
        """The longest answer beside a prompt of that size, in the provider's tokens."""
        prompt = int(estimated * self.ratio * (1 + self.margin))
        return max(min(self.max_output, self.limit - prompt), min(self.reserve, self.max_output))


def make_budget(*, limit: int, max_output: int, ratio: float, share: float = 1.0) -> WindowBudget:
    """``ratio`` 0: not known yet. ``share`` below 1 makes a window that the provider
    found too long shorter."""
    margin = KNOWN_MARGIN if ratio else UNKNOWN_MARGIN
    bounded = min(HIGHEST_RATIO, max(LOWEST_RATIO, ratio)) if ratio else 1.0
    reserve = min(max_output, limit // RESERVED_SHARE)
    tokens = int((limit - reserve) * (1 - margin) * share / bounded)
    return WindowBudget(
        limit=limit,
        reserve=reserve,
        tokens=max(100, tokens),
        ratio=bounded,
        margin=margin,
        max_output=max_output,
    )


def make_caps(budget: WindowBudget, rules: WindowRules) -> MessageCaps:
    """From the limit alone and not from the ratio, which changes with every answer:
    a turn has to be the same bytes in every call, or the cache is lost."""
    room = budget.limit - budget.reserve
    return MessageCaps(
        message=int(room * rules.message_share),
        result=int(room * rules.result_share),
        attached=room,
    )
