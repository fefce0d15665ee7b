"""Why a reviewer reads: stated once for a session or for the whole sitting, and kept in the
browser's session for some hours. Each entry of the audit log holds the one that applied."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from conversations.domain.errors import NotPermitted
from conversations.domain.messages import say

REQUIRED, OFF = "required", "off"  # Values of ``LOOM_REVIEW_REASON``; else it is optional

MAX_REASON_CHARS = 500  # Characters of a reason; the column of the audit log holds as many

SITTING = ""  # In place of a session's uuid: whatever else is read

KEPT = "review_reasons"
MAX_REASONS = 50  # Reasons that a browser's session holds; the oldest makes way

# Session's uuid → the reason, and until when it holds (seconds since 1970).
type Reasons = dict[str, tuple[str, float]]


class ReasonNeeded(NotPermitted):
    """The installation shows a transcript to a reviewer only for a stated reason.
    ``session`` is None where one of several sessions has none."""

    code = "reason_needed"

    def __init__(self, session: UUID | None) -> None:
        super().__init__(say("Give the reason why you are reading this session."))
        self.session = session


def find_reason(browser: SessionBase | None, session: UUID | None) -> str:
    """What was stated in a browser for this session, else for the sitting, else nothing."""
    if browser is None or settings.LOOM.review_reason == OFF:
        return ""
    kept = _valid(browser)
    found = kept.get(str(session or SITTING)) or kept.get(SITTING)
    return found[0] if found else ""


def save_reason(browser: SessionBase, session: UUID | None, reason: str) -> None:
    """For the session, or for the sitting. An empty one takes back what was stated."""
    kept = _valid(browser)
    kept.pop(str(session or SITTING), None)
    if reason:
        until = timezone.now().timestamp() + settings.LOOM.review_reason_hours * 3600
        kept[str(session or SITTING)] = (reason, until)
    if SITTING in kept:  # it covers what has none of its own, and is never the oldest
        kept[SITTING] = kept.pop(SITTING)
    browser[KEPT] = dict(list(kept.items())[-MAX_REASONS:])


def require_reasons(browser: SessionBase | None, sessions: Iterable[UUID | None]) -> None:
    """Raises ReasonNeeded, where the installation wants one and a session has none; None
    stands for the sitting."""
    if settings.LOOM.review_reason != REQUIRED:
        return
    wanted = list(sessions)
    if not all(find_reason(browser, session) for session in wanted):
        raise ReasonNeeded(wanted[0] if len(wanted) == 1 else None)


def reason_context(request: HttpRequest, session: UUID | None) -> dict[str, Any]:
    """What ``parts/reason.html`` shows: the reason that applies and the way to change
    it; nothing where none is asked for."""
    return {
        "reason_asked": settings.LOOM.review_reason != OFF,
        "reason": find_reason(request.session, session),
        "reason_url": reverse("review_reason"),
        "reason_session": session or "",
        "reason_next": request.get_full_path(),
        "reason_longest": MAX_REASON_CHARS,
        "reason_hours": settings.LOOM.review_reason_hours,
    }


def _valid(browser: SessionBase) -> Reasons:
    now = timezone.now().timestamp()
    kept: Reasons = browser.get(KEPT, {})
    return {name: (text, until) for name, (text, until) in kept.items() if until > now}
