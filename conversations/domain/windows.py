"""The rules for choosing a window, and for summaries of turns."""

from dataclasses import dataclass

ARCHIVE, SLIDING_WINDOW, SUMMARIZE = "archive", "sliding_window", "summarize"
STRATEGIES = (ARCHIVE, SLIDING_WINDOW, SUMMARIZE)

# The beginnings of texts that a window adds to the turns.
ADDED = ("[Session state", "[Archive:", "[System:", "[Summary of turns", "[Note:", "[Skill ")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRules:
    """The rules for choosing a window.

    ``high_water`` and ``low_water`` are shares of the budget. If the history exceeds the high-water
    mark, the floor moves so that the history fits the low-water mark. The last ``keep_recent``
    exchanges stay as long as they fit. ``message_share`` and ``result_share`` are shares of the
    model's input; a message or tool result above its share is shortened.
    """

    strategy: str = ARCHIVE
    keep_recent: int = 4
    high_water: float = 0.9
    low_water: float = 0.4
    message_share: float = 0.5
    result_share: float = 0.15


# The sections of a summary of turns, and the conditions for making one.

# The first sentence of the prompt of the model that writes the summary.
TASK = "You write the summary that stands for the earlier part of a conversation."

HEADINGS = (
    *("Goal", "Instructions from the person", "Decisions"),
    *("What was done", "Files", "Open points"),
)

MANUAL, THRESHOLD, END = "manual", "threshold", "end"
COMPACTION_REASONS = (MANUAL, THRESHOLD, END)
MIN_GAIN_SHARE = 0.2  # The share of the window that an automatic summary has to save.

# The share by which the window has to grow before an automatic summary is tried again after one
# that did not help: it failed, was stopped, saved too little or was undone.
RETRY_GROWTH_SHARE = 0.25

# The share of the high-water mark at which the strategy ``summarize`` makes a summary, so that the
# summary exists before the floor would move.
SUMMARIZE_AT_SHARE = 0.85


def tokens_at(threshold: int, *, limit: int) -> int:
    """Return a threshold in tokens. A value up to 100 is a percentage of the window."""
    return limit * threshold // 100 if threshold <= 100 else threshold
