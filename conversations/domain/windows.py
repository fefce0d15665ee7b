"""The rules by which a window is chosen."""

from dataclasses import dataclass

ARCHIVE, SLIDING_WINDOW, SUMMARIZE = "archive", "sliding_window", "summarize"
STRATEGIES = (ARCHIVE, SLIDING_WINDOW, SUMMARIZE)

# How the texts begin that a window adds to what was said.
ADDED = ("[Session state", "[Archive:", "[System:", "[Summary of turns", "[Note:", "[Skill ")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRules:
    """``high_water`` and ``low_water`` are shares of the budget: the floor moves when
    the history passes the first, to the second. ``keep_recent`` exchanges stay while
    they fit. ``message_share`` and ``result_share`` are the shares of the model's
    input above which one message or one tool result is shortened."""

    strategy: str = ARCHIVE
    keep_recent: int = 4
    high_water: float = 0.9
    low_water: float = 0.4
    message_share: float = 0.5
    result_share: float = 0.15


# What a summary of turns consists of, and when one is worth its price.

# The first sentence of what the summarising model is told.
TASK = "You write the summary that stands for the earlier part of a conversation."

HEADINGS = (
    *("Goal", "Instructions from the person", "Decisions"),
    *("What was done", "Files", "Open points"),
)

MANUAL, THRESHOLD, END = "manual", "threshold", "end"
COMPACTION_REASONS = (MANUAL, THRESHOLD, END)
MIN_GAIN_SHARE = 0.2  # Of the window, for a summary to be made unasked.

# Of the window, before an attempt that did not help (it failed, was stopped, saved too little or
# was undone) is made again unasked.
RETRY_GROWTH_SHARE = 0.25

# Of the high-water mark, so that the summary of the strategy ``summarize`` is there before the
# floor would move.
SUMMARIZE_AT_SHARE = 0.85


def tokens_at(threshold: int, *, limit: int) -> int:
    """A threshold in tokens: up to 100 it is percent of the window."""
    return limit * threshold // 100 if threshold <= 100 else threshold
