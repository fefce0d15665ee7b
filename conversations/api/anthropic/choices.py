"""What a client asks of the answer, beside what it says.

What changes an answer is passed on to the model or refused; nothing of it is left out in
silence. It is kept with the run (``domain.run_choices``).
"""

from collections.abc import Container, Mapping
from typing import Any

from conversations.domain.errors import Rejected
from conversations.domain.jsontext import dump_json
from conversations.domain.run_choices import FORCED, TOOL_CHOICE, RunChoices
from conversations.providers.sampling import takes_sampling

from .shapes import MessagesIn

WITHOUT_EFFECT = (
    *("betas", "cache_control", "context_management", "diagnostics", "service_tier", "speed"),
)
"""What a client may send as to how it is done, not what: the server does that its own way."""

SAMPLING = ("temperature", "top_p", "top_k")

NEUTRAL = {"temperature": 1, "top_p": 1}
"""Values that ask for nothing."""

THINKING = ("adaptive", "between_tools", "disabled")

TOOL_CHOICES = ("auto", "any", "tool", "none")

MAX_CHOICES_CHARS = 64_000
"""Of all that is passed on, as JSON."""


def read_client_choices(asked: MessagesIn) -> RunChoices:
    """Raises Rejected for what cannot be asked for here, and says why."""
    for name, value in (asked.model_extra or {}).items():
        if value is not None and name not in WITHOUT_EFFECT:
            raise refused(name, "This is not known here, and would have no effect.")
    passed = {
        "stop_sequences": _read_sequences(asked.stop_sequences),
        TOOL_CHOICE: _read_tool_choice(asked),
        "thinking": _read_thinking(asked.thinking),
        "output_config": asked.output_config,
        **{name: _read_sampling(asked, name) for name in SAMPLING},
    }
    choices = RunChoices(
        max_tokens=asked.max_tokens,
        passed={name: value for name, value in passed.items() if value is not None},
    )
    if len(dump_json(choices.as_json())) > MAX_CHOICES_CHARS:
        raise Rejected(f"More than {MAX_CHOICES_CHARS} characters are asked of the answer.")
    return choices


def refused(name: str, reason: str) -> Rejected:
    return Rejected(f"{name}: {reason}", code="bad_choice")


def require_forced_tool(choices: RunChoices, tools: Container[str]) -> None:
    """Raises Rejected where a call is to be forced of another tool than the client's."""
    choice = choices.passed.get(TOOL_CHOICE, {})
    if choice.get("type") == "tool" and choice["name"] not in tools:
        raise refused(TOOL_CHOICE, f"{choice['name']} is none of the tools of the request.")


def _read_sequences(sequences: list[str]) -> list[str] | None:
    if not all(one.strip() for one in sequences):
        raise refused("stop_sequences", "Each has more than white space.")
    return sequences or None


def _read_sampling(asked: MessagesIn, name: str) -> float | None:
    value: float | None = getattr(asked, name)
    if value is None or value == NEUTRAL.get(name):
        return None
    if not takes_sampling(asked.model):
        raise refused(name, f"{asked.model} does not take it. Leave it out.")
    return value


def _read_thinking(thinking: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if thinking is not None and thinking.get("type") not in THINKING:
        one_of = ", ".join(THINKING)
        raise refused("thinking", f"Its type is one of {one_of}; a budget cannot be given.")
    return thinking


def _read_tool_choice(asked: MessagesIn) -> Mapping[str, Any] | None:
    choice = asked.tool_choice
    if choice is None or choice == {"type": "auto"}:
        return None
    kind, name = choice.get("type"), choice.get("name")
    if kind not in TOOL_CHOICES:
        raise refused(TOOL_CHOICE, f"Its type is one of {', '.join(TOOL_CHOICES)}.")
    if kind in FORCED and not asked.tools:
        raise refused(TOOL_CHOICE, "A call can be forced of tools that the request has.")
    if (kind == "tool") != isinstance(name, str):
        raise refused(TOOL_CHOICE, "It has a name where its type is tool, and only there.")
    return choice
