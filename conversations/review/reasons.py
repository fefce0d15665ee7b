"""The reasons that reviewers give for reading.

A reason is given once for a session or for the whole sitting and stored in the browser's session
for some hours. Each entry of the audit log contains the reason that applied.
"""

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

REQUIRED, OFF = "required", "off"  # values of ``LOOM_REVIEW_REASON`` besides ``optional``

MAX_REASON_CHARS = 500  # also the length of the audit log's column

SITTING = ""  # stands for the whole sitting in place of a session's uuid

KEPT = "review_reasons"
MAX_REASONS = 50  # in a browser's session; the oldest is removed first

# Session's uuid → the reason, and when it expires (seconds since 1970).
type Reasons = dict[str, tuple[str, float]]


class ReasonNeeded(NotPermitted):
    """A transcript was requested without the reason that the installation requires.

    ``session`` is None if several sessions were requested.
    """

    code = "reason_needed"

    def __init__(self, session: UUID | None) -> None:
        super().__init__(say("Enter a reason for reading this session."))
        self.session = session


def find_reason(browser: SessionBase | None, session: UUID | None) -> str:
    """Return the browser's reason for this session, or else for the sitting, or else ``""``."""
    if browser is None or settings.LOOM.review_reason == OFF:
        return ""
    reasons = _valid_reasons(browser)
    entry = reasons.get(str(session or SITTING)) or reasons.get(SITTING)
    return entry[0] if entry else ""


def save_reason(browser: SessionBase, session: UUID | None, reason: str) -> None:
    """Save a reason for the session, or for the sitting. An empty reason removes the saved one."""
    reasons = _valid_reasons(browser)
    reasons.pop(str(session or SITTING), None)
    if reason:
        until = timezone.now().timestamp() + settings.LOOM.review_reason_hours * 3600
        reasons[str(session or SITTING)] = (reason, until)
    if SITTING in reasons:  # moved to the end, so that it is never removed as the oldest
        reasons[SITTING] = reasons.pop(SITTING)
    browser[KEPT] = dict(list(reasons.items())[-MAX_REASONS:])


def require_reasons(browser: SessionBase | None, sessions: Iterable[UUID | None]) -> None:
    """Raise ReasonNeeded if reasons are required and one of the sessions has none.

    None stands for the sitting.
    """
    if settings.LOOM.review_reason != REQUIRED:
        return
    required_for = list(sessions)
    if not all(find_reason(browser, session) for session in required_for):
        raise ReasonNeeded(required_for[0] if len(required_for) == 1 else None)


def reason_context(request: HttpRequest, session: UUID | None) -> dict[str, Any]:
    """Return the context of ``parts/reason.html``: the reason that applies, and how to change it.

    The template shows nothing if reasons are switched off.
    """
    return {
        "reason_asked": settings.LOOM.review_reason != OFF,
        "reason": find_reason(request.session, session),
        "reason_url": reverse("review_reason"),
        "reason_session": session or "",
        "reason_next": request.get_full_path(),
        "reason_longest": MAX_REASON_CHARS,
        "reason_hours": settings.LOOM.review_reason_hours,
    }


def _valid_reasons(browser: SessionBase) -> Reasons:
    now = timezone.now().timestamp()
    reasons: Reasons = browser.get(KEPT, {})
    return {name: (text, until) for name, (text, until) in reasons.items() if until > now}
