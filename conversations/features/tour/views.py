"""The steps of the tour with the demo model, and the long session for trying recall."""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone

from conversations.access import get_workspace_for, person, post_by_person
from conversations.archive.append import append
from conversations.archive.rights import WRITE
from conversations.archive.sessions import create_session, is_current
from conversations.domain.errors import NotFound
from conversations.domain.turns import NewTurn
from conversations.models import Session, Workspace
from conversations.providers.demo import LOOK_AROUND, LOOK_BACK, RUN_COMMAND, WRITE_FILE
from conversations.runtime.current import is_demo

TITLE = "A year in the garden"
SAID = "Remember this: the greenhouse lock opens with 4711."
HISTORY_TURNS = 300

BEDS = ("beans", "peas", "roses", "leeks", "herbs", "berries", "kale")
WORKS = ("water", "weed", "prune", "mulch", "harvest")


def tour_context(session: dict[str, Any]) -> dict[str, Any]:
    """Return the context of the steps on a session's page, empty if there is no tour."""
    if not is_demo():
        return {}
    is_long = session["turn_count"] >= HISTORY_TURNS and session["title"] == TITLE
    steps = [LOOK_BACK] if is_long else [LOOK_AROUND, WRITE_FILE, RUN_COMMAND]
    return {
        "session": session,
        "steps": [step.text for step in steps],
        "is_long": is_long,
        "client_id": uuid4().hex,
    }


@post_by_person
def tour_history(request: HttpRequest, slug: str) -> HttpResponse:
    """Open the person's long session in the workspace.

    It is created the first time, and again if it has expired or was archived.
    """
    workspace, _ = get_workspace_for(request, slug, to=WRITE)
    if not is_demo():
        raise NotFound("The tour is for the demo model, but a real one is connected.")
    owner = person(request)
    mine = Session.objects.filter(
        is_current(timezone.now()),
        workspace=workspace,
        owner=owner,
        title=TITLE,
        archived_at=None,
        next_turn__gt=HISTORY_TURNS,
    )
    session = mine.order_by("-pk").first() or _make_history(workspace, owner)
    return redirect("session", uuid=session.uuid)


def _make_history(workspace: Workspace, owner: User) -> Session:
    begun = timezone.now() - timedelta(days=360)
    with transaction.atomic():
        session = create_session(workspace, owner=owner, title=TITLE)
        append(session.pk, session_uuid=session.uuid, turns=[*_make_year(begun)])
    return session


def _make_year(begun: datetime) -> list[NewTurn]:
    texts = [SAID, "Noted: the greenhouse lock opens with 4711."]
    for number in range(1, HISTORY_TURNS // 2):
        bed, work = BEDS[number % len(BEDS)], WORKS[number % len(WORKS)]
        texts += [f"Day {number}: what about the {bed}?", f"Today: {work} the {bed}."]
    return [
        NewTurn(
            role="assistant" if place % 2 else "user",
            content=text,
            created_at=begun + timedelta(days=place),
        )
        for place, text in enumerate(texts)
    ]
