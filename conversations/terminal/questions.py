"""A call that waits for a person: what it shows, and what the answer means."""

from dataclasses import dataclass

from conversations.domain.approvals import ApprovalRequest
from conversations.domain.tool_calls import ALWAYS, DENY, ONCE
from conversations.rendering.tool_rows import CARD_CHARS, CARD_LINES
from conversations.rendering.tool_words import tool_word

from .screen import BOLD, DIM, GREEN, PLAIN, RED, YELLOW, Screen

_YES, _ALWAYS, _NO = ("y", "yes"), ("a", "always"), ("n", "no")


@dataclass(frozen=True, slots=True)
class TypedDecision:
    decision: str
    reason: str = ""


def show_question(screen: Screen, asked: ApprovalRequest, *, url: str) -> None:
    """All that is asked for, as far as a card on a page has it; the rest is there."""
    screen.notice(f"{tool_word(asked.name)[0]} asks: {asked.summary or asked.name}", BOLD)
    if asked.note:
        screen.notice(asked.note, YELLOW)
    text = asked.command or asked.diff
    lines = text[:CARD_CHARS].rstrip("\n").split("\n")
    for line in lines[:CARD_LINES] if text else ():
        screen.notice(f"  {line}", _style(line) if asked.diff and not asked.command else PLAIN)
    if len(text) > CARD_CHARS or len(lines) > CARD_LINES:
        screen.notice(f"There is more of it, at {url}", YELLOW)


def choices(asked: ApprovalRequest) -> str:
    """The line behind which the answer is typed."""
    kind = _kind_of(asked)
    always = f", a = always ({kind})" if kind else ""
    return f"Allow it? y = yes{always}, n = no (a reason may follow): "


def read_decision(line: str, asked: ApprovalRequest) -> TypedDecision | None:
    """What was typed behind the question; None when it is no answer to it."""
    word, _, rest = line.strip().partition(" ")
    word = word.lower().rstrip(",.:")
    if word in _NO:
        return TypedDecision(DENY, rest.strip())
    if rest:
        return None
    if word in _YES:
        return TypedDecision(ONCE)
    return TypedDecision(ALWAYS) if word in _ALWAYS and _kind_of(asked) else None


def _kind_of(asked: ApprovalRequest) -> str:
    """What "always" would allow; empty: nothing."""
    return asked.kind_label or asked.kind_key


def _style(line: str) -> str:
    return {"+": GREEN, "-": RED, "@": DIM}.get(line[:1], PLAIN)
