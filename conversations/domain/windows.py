"""The rules by which a window is chosen."""

from dataclasses import dataclass

ARCHIVE = "archive"
SLIDING_WINDOW = "sliding_window"
SUMMARIZE = "summarize"

ADDED = ("[Session state", "[Archive:", "[System:", "[Summary of turns", "[Note:", "[Skill ")
"""How the texts begin that a window adds to what was said."""

STRATEGIES = (ARCHIVE, SLIDING_WINDOW, SUMMARIZE)


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


def is_added(text: str) -> bool:
    """Whether a window put this text beside what the person wrote."""
    return text.startswith(ADDED)
