"""The page for a sign-in that does not go on: what happened, and what to do."""

import logging
from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

logger = logging.getLogger("conversations.accounts.sso")


@dataclass(frozen=True, slots=True)
class Refusal:
    """``code`` is for the log; ``text`` may name the provider as ``{name}``."""

    code: str
    text: str
    status: int = 403


CANCELLED = Refusal("cancelled", "The sign-in at {name} was called off. Nothing has changed.", 400)
STATE = Refusal(
    "unknown_state",
    "This sign-in was begun in another browser, is used up, or took too long. Begin again.",
    400,
)
UNREACHABLE = Refusal("unreachable", "{name} does not answer as it should. Try again later.", 502)
NOT_VERIFIED = Refusal("not_verified", "The answer of {name} could not be verified.", 403)
PROVIDER = Refusal("provider_error", "{name} did not let you in.", 403)
NOBODY = Refusal(
    "nobody",
    "Nobody here is connected to this account at {name}. Sign in as you did so far and"
    " connect it under “Sign-in methods”, or ask an administrator for an account.",
)
TAKEN = Refusal(
    "address_taken",
    "Somebody here has this email address already. If it is you, sign in as you did so far"
    " and connect {name} under “Sign-in methods”.",
)
INACTIVE = Refusal("inactive", "This account is closed. An administrator can open it again.")
LATE = Refusal("late", "This page was open too long. Go back and begin again.", 400)


def refuse(request: HttpRequest, refusal: Refusal, *, detail: str = "") -> HttpResponse:
    """The page; the log says why. ``detail`` holds nothing of what the provider sent."""
    fields = {"reason": refusal.code} | ({"detail": detail} if detail else {})
    logger.warning("sign_in_refused", extra={"fields": fields})
    text = refusal.text.format(name=settings.LOOM.oidc_name)
    return render(request, "sso/refused.html", {"text": text}, status=refusal.status)
