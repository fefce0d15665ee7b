"""The life of a run.

::

    queued ──> running <──> waiting_approval
       │          └──> completed | stopped | failed | interrupted
       └──> stopped (withdrawn before it began)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .text import dump_json, load_json

QUEUED, RUNNING, WAITING_APPROVAL = "queued", "running", "waiting_approval"
COMPLETED, STOPPED, FAILED, INTERRUPTED = "completed", "stopped", "failed", "interrupted"

ACTIVE_STATES = (RUNNING, WAITING_APPROVAL)
FINAL_STATES = (COMPLETED, STOPPED, FAILED, INTERRUPTED)
RUN_STATES = (QUEUED, *ACTIVE_STATES, *FINAL_STATES)

MESSAGE, REGENERATE, CONTINUE, COMPACT = "message", "regenerate", "continue", "compact"
RUN_KINDS = (MESSAGE, REGENERATE, CONTINUE, COMPACT)

IDLE = "idle"  # What a session is when no run of it is active or queued.

# What a program asks of the answers to its message, beside the message.
MAX_TOKENS, TOOL_CHOICE, FIRST = "max_tokens", "tool_choice", "first"
FORCED = ("any", "tool")  # Choices by which the model has to call a tool.

# Of the tokens for an answer, what a budget for thinking may have of fewer than were asked for; and
# the least that the Messages API takes ("Extended thinking" in its documentation).
MAX_THINKING_SHARE, MIN_THINKING_TOKENS = 0.75, 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoices:
    """``max_tokens`` is the longest answer that is wanted of one model call. ``passed`` are
    keys of the Messages API's request, which the provider is given as they are."""

    max_tokens: int | None = None
    passed: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Without what is not asked for."""
        limit = {} if self.max_tokens is None else {MAX_TOKENS: self.max_tokens}
        return {**limit, **self.passed}

    def as_text(self) -> str | None:
        """None where nothing is asked for."""
        chosen = self.as_json()
        return dump_json(chosen) if chosen else None

    def after(self, before: str | None) -> str:
        """The text where these replace others: it says what was asked first, too."""
        first = read_first_choices(before)
        return dump_json({**self.as_json(), FIRST: first.as_json()})

    def for_tools(self, *, has_any: bool, has_own: bool) -> "RunChoices":
        """With these tools on offer: a choice of tools needs some, and only a program that
        has tools of its own in the run (``has_own``) can have a call forced: it takes it."""
        choice = self.passed.get(TOOL_CHOICE)
        if choice is None or (has_any and (has_own or choice.get("type") not in FORCED)):
            return self
        kept = {key: value for key, value in self.passed.items() if key != TOOL_CHOICE}
        return replace(self, passed=kept)

    def within(self, max_tokens: int) -> "RunChoices":
        """With so many tokens for an answer: where those are fewer than were asked for, a budget
        for thinking leaves some for what is said, and goes where too few are left for it."""
        budget = self.passed.get("thinking", {}).get("budget_tokens")
        if not isinstance(budget, int) or max_tokens >= (self.max_tokens or max_tokens):
            return self
        budget = min(budget, int(max_tokens * MAX_THINKING_SHARE))
        kept = {key: value for key, value in self.passed.items() if key != "thinking"}
        if budget >= MIN_THINKING_TOKENS:
            kept["thinking"] = self.passed["thinking"] | {"budget_tokens": budget}
        return replace(self, passed=kept)


NO_CHOICES = RunChoices()


def read_choices(value: Any) -> RunChoices:
    """From :meth:`RunChoices.as_text`, or from what :meth:`RunChoices.as_json` gave."""
    chosen = load_json(value, default={}) if isinstance(value, str) else dict(value or {})
    limit = chosen.pop(MAX_TOKENS, None)
    chosen.pop(FIRST, None)
    return RunChoices(max_tokens=limit, passed=chosen)


def read_first_choices(text: str | None) -> RunChoices:
    """Those that the message came with."""
    chosen = load_json(text, default={})
    return read_choices(chosen.get(FIRST, chosen))
