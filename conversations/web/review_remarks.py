"""Forms of the reviewers: a note, a flag, how far a session is reviewed."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from conversations.archive import review as archive
from conversations.domain.errors import Rejected
from conversations.models import Session

from .access import get_session_for_review, origin_of_act, post_by_person
from .review_forms import RemarkForm, carried_filters


@post_by_person
def review_remark(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """A note, or with a label a flag; with a turn on that, else on the session."""
    session = get_session_for_review(request, uuid)
    form = RemarkForm(request.POST)
    if not form.is_valid():
        messages.error(
            request, " ".join(str(text) for texts in form.errors.values() for text in texts)
        )
        return _back(request, session)
    said: dict[str, Any] = form.cleaned_data
    origin = origin_of_act(request, session)
    if said["label"]:
        _carry_out(request, "The flag is set.", archive.set_flag, session, origin, **said)
    else:
        del said["label"]
        _carry_out(request, "The note is kept.", archive.write_note, session, origin, **said)
    return _back(request, session, turn=said["turn"])


@post_by_person
def review_note_withdraw(request: HttpRequest, uuid: UUID, note: UUID) -> HttpResponse:
    session = get_session_for_review(request, uuid)
    origin = origin_of_act(request, session)
    _carry_out(request, "The note is withdrawn.", archive.withdraw_note, session, origin, uuid=note)
    return _back(request, session, turn=_turn_of(request, session))


@post_by_person
def review_flag_resolve(request: HttpRequest, uuid: UUID, flag: UUID) -> HttpResponse:
    session = get_session_for_review(request, uuid)
    origin = origin_of_act(request, session)
    _carry_out(request, "The flag is resolved.", archive.resolve_flag, session, origin, uuid=flag)
    return _back(request, session, turn=_turn_of(request, session))


@post_by_person
def review_mark(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Reviewed ``through`` a turn (0: not at all any more), and on to the next session if
    that is asked for."""
    session = get_session_for_review(request, uuid)
    origin = origin_of_act(request, session)
    through = request.POST.get("through", "")[:18]
    if through == "0":
        said = "The session is among those to be reviewed again."
        _carry_out(request, said, archive.mark_unreviewed, session, origin)
    else:
        turn = int(through) if through.isascii() and through.isdigit() else 0
        said = f"The session is reviewed through turn {turn}."
        _carry_out(request, said, archive.mark_reviewed, session, origin, through=turn)
    if request.POST.get("then") == "next":
        return redirect(reverse("review_next") + carried_filters(request.GET, after=session.uuid))
    return _back(request, session)


def _carry_out(
    request: HttpRequest, said: str, act: Callable[..., Any], *a: Any, **kw: Any
) -> None:
    """Do it, and say that it is done or why it cannot be."""
    try:
        act(*a, **kw)
    except Rejected as error:
        messages.error(request, error.message)
    else:
        messages.success(request, said)


def _turn_of(request: HttpRequest, session: Session) -> int | None:
    """The turn that the form was under."""
    text = request.POST.get("turn", "")[:18]
    turn = int(text) if text.isascii() and text.isdigit() else 0
    return turn if 1 <= turn <= session.turn_count else None


def _back(request: HttpRequest, session: Session, *, turn: int | None = None) -> HttpResponse:
    """To the session's page, around the turn."""
    carried = carried_filters(request.GET)
    if turn is None or not 1 <= turn <= session.turn_count:
        return redirect(reverse("review_session", args=[session.uuid]) + carried)
    address = reverse("review_turn", args=[session.uuid, turn])
    return redirect(f"{address}{carried}#turn-{turn}")
