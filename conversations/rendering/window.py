"""Where the window starts and how full it is, as HTML: the same in a page and live."""

from functools import cache
from typing import Any
from uuid import UUID

from django.template.loader import get_template

from conversations.domain.text import cost_text

from .figures import number_text

LEVELS = ((90, "Full"), (82, "Nearly full"), (72, "Filling up"))
"""From which percentage of the limit on the meter says so."""

BAR = 40
"""The meter's width, in pixels."""


def render_window_line(session: UUID, *, left_out: int) -> str:
    """The line between the last turn that was left out and the first that is given;
    empty when all are given."""
    if left_out <= 0:
        return ""
    count = number_text(left_out)
    return _render("line", {"session": session, "left_out": left_out, "count": count})


def render_meter(session: UUID, *, tokens: int, limit: int, cost_microusd: int) -> str:
    """How full the window is and what the session has cost; hidden while not known."""
    percent = min(100, round(100 * tokens / limit)) if limit > 0 else 0
    fields = {
        "session": session,
        "is_known": tokens > 0 and limit > 0,
        "percent": percent,
        "filled": max(2, round(BAR * percent / 100)),
        "bar": BAR,
        "level": next((word for least, word in LEVELS if percent >= least), ""),
        "tokens": tokens_text(tokens),
        "limit": tokens_text(limit),
        "cost": cost_text(cost_microusd),
    }
    return _render("meter", fields)


def tokens_text(tokens: int) -> str:
    """``76k``: as exact as a count of tokens is of use."""
    if tokens < 1000:
        return str(tokens)
    if tokens < 999_500:
        return f"{round(tokens / 1000)}k"
    return f"{tokens / 1_000_000:.1f}".removesuffix(".0") + "M"


def _render(name: str, fields: dict[str, Any]) -> str:
    html: str = _partial(name).render(fields)
    return html.strip()


@cache
def _partial(name: str) -> Any:
    return get_template(f"conversations/window.html#{name}")
