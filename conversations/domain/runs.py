"""The states of a run, and the choices with which a program asks for its answers.

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

IDLE = "idle"  # The state of a session without an active or queued run.

# Keys of the JSON in which a program's choices are stored.
MAX_TOKENS, TOOL_CHOICE, FIRST = "max_tokens", "tool_choice", "first"
FORCED = ("any", "tool")  # Types of tool choices with which the model has to call a tool.

# The largest share of the tokens for an answer that thinking may use if these tokens had to be
# reduced, and the smallest budget that the Messages API accepts ("Extended thinking" in its
# documentation).
MAX_THINKING_SHARE, MIN_THINKING_TOKENS = 0.75, 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoices:
    """The options with which a program asks for the answers to its message.

    ``max_tokens`` is the limit for the answer of one model call. ``passed`` has further keys of a
    request of the Messages API, which are passed to the provider unchanged.
    """

    max_tokens: int | None = None
    passed: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the options that are set."""
        limit = {} if self.max_tokens is None else {MAX_TOKENS: self.max_tokens}
        return {**limit, **self.passed}

    def as_text(self) -> str | None:
        """Return the options as JSON text, or None if none are set."""
        chosen = self.as_json()
        return dump_json(chosen) if chosen else None

    def after(self, before: str | None) -> str:
        """Return the JSON text of these options if they replace those in the text ``before``.

        The new text also holds the options with which the message was first sent.
        """
        first = read_first_choices(before)
        return dump_json({**self.as_json(), FIRST: first.as_json()})

    def for_tools(self, *, has_any: bool, has_own: bool) -> "RunChoices":
        """Return the options without a tool choice that does not fit the tools on offer.

        A tool choice needs tools. Only a program that has tools of its own in the run (``has_own``)
        may force a call, because that program handles the call.
        """
        choice = self.passed.get(TOOL_CHOICE)
        if choice is None or (has_any and (has_own or choice.get("type") not in FORCED)):
            return self
        passed = {key: value for key, value in self.passed.items() if key != TOOL_CHOICE}
        return replace(self, passed=passed)

    def within(self, max_tokens: int) -> "RunChoices":
        """Return the options for an answer of at most ``max_tokens``.

        If this limit is lower than the program's own, the budget for thinking is reduced so that
        tokens remain for the text. The budget is removed if it would become too small.
        """
        budget = self.passed.get("thinking", {}).get("budget_tokens")
        if not isinstance(budget, int) or max_tokens >= (self.max_tokens or max_tokens):
            return self
        budget = min(budget, int(max_tokens * MAX_THINKING_SHARE))
        passed = {key: value for key, value in self.passed.items() if key != "thinking"}
        if budget >= MIN_THINKING_TOKENS:
            passed["thinking"] = self.passed["thinking"] | {"budget_tokens": budget}
        return replace(self, passed=passed)


NO_CHOICES = RunChoices()


def read_choices(value: Any) -> RunChoices:
    """Read the result of :meth:`RunChoices.as_text` or :meth:`RunChoices.as_json`."""
    chosen = load_json(value, default={}) if isinstance(value, str) else dict(value or {})
    limit = chosen.pop(MAX_TOKENS, None)
    chosen.pop(FIRST, None)
    return RunChoices(max_tokens=limit, passed=chosen)


def read_first_choices(text: str | None) -> RunChoices:
    """Return the options with which the message was first sent."""
    chosen = load_json(text, default={})
    return read_choices(chosen.get(FIRST, chosen))
