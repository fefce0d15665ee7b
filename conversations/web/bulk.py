"""Bulk actions on a workspace's session list."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext, gettext_lazy, ngettext

from conversations.access import get_session_for, get_workspace_for, person, post_by_person
from conversations.archive import sessions as archive_sessions
from conversations.archive.rights import WRITE
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.messages import say
from conversations.models import Session, Workspace
from conversations.rendering.messages import translate
from conversations.runtime.current import compact_at_end
from conversations.web.errors import refusal_as_message

from .addresses import page_before
from .forms import check_uuid

MAX_CHOSEN_SESSIONS = 500  # The number of sessions in a long list.
GONE = say("This session does not exist in this workspace.")
ACTIONS = {
    "pin": gettext_lazy("pinned"),
    "unpin": gettext_lazy("unpinned"),
    "archive": gettext_lazy("archived"),
    "unarchive": gettext_lazy("unarchived"),
}


def read_chosen(
    request: HttpRequest, workspace: Workspace, *, find: Callable[[UUID], Session] | None = None
) -> list[Session]:
    """Return the sessions in a form's ``session`` fields, in which this person may write.

    ``find`` replaces that check of rights. A message says how many sessions do not exist, and does
    not say whether they belong to another workspace. Raise Rejected for none or too many sessions,
    and NotPermitted.
    """
    chosen = list(dict.fromkeys(request.POST.getlist("session")))
    if not chosen:
        raise Rejected("Choose at least one session.", code="nothing_chosen")
    if len(chosen) > MAX_CHOSEN_SESSIONS:
        raise Rejected(
            "At most %(limit)s sessions can be changed at once.",
            code="too_many",
            limit=MAX_CHOSEN_SESSIONS,
        )
    uuids = [check_uuid(text, "session") for text in chosen]
    find = find or (lambda uuid: get_session_for(request, uuid, to=WRITE)[0])
    sessions: list[Session] = []
    for uuid in uuids:
        with suppress(NotFound):
            sessions.append(find(uuid))
    sessions = [session for session in sessions if session.workspace_id == workspace.pk]
    if not sessions:
        raise Rejected(GONE, code="sessions_gone")
    _report_failures(request, [translate(GONE)] * (len(uuids) - len(sessions)))
    return sessions


@post_by_person
def workspace_sessions(request: HttpRequest, slug: str) -> HttpResponse:
    """Pin, unpin, archive or unarchive the chosen sessions."""
    workspace, _ = get_workspace_for(request, slug, to=WRITE)
    action = request.POST.get("do", "")
    with refusal_as_message(request):
        if action not in ACTIONS:
            raise Rejected("Choose an action.", code="action_unknown")
        chosen = read_chosen(request, workspace)
        act = partial(_execute, request, action)
        apply_to_each(request, chosen, act, said=str(ACTIONS[action]))
    return redirect(page_before(request, otherwise=reverse("workspace", args=[slug])))


def apply_to_each(
    request: HttpRequest, chosen: Sequence[Session], act: Callable[[Session], object], *, said: str
) -> None:
    """Apply ``act`` to each session, and show how many succeeded and why others failed.

    ``said`` is the translated word for what was done. A failure is a Rejected or NotFound error.
    """
    done, problems = 0, list[str]()
    for session in chosen:
        try:
            act(session)
            done += 1
        except (Rejected, NotFound) as error:
            problems.append(translate(error.message))
    if done:
        text = gettext("%(sessions)s %(done)s.") % {"sessions": count_of(done), "done": said}
        messages.success(request, text)
    _report_failures(request, problems)


def _report_failures(request: HttpRequest, problems: Sequence[str]) -> None:
    for problem in dict.fromkeys(problems):
        text = gettext("%(count)s not changed: %(reason)s")
        messages.error(request, text % {"count": problems.count(problem), "reason": problem})


def _execute(request: HttpRequest, action: str, session: Session) -> None:
    if action in ("pin", "unpin"):
        archive_sessions.pin_session(session, pinned=action == "pin")
    elif archive_sessions.archive_session(session, archived=action == "archive"):
        compact_at_end(session, user_pk=person(request).pk)


def count_of(number: int) -> str:
    return ngettext("%(count)s session", "%(count)s sessions", number) % {"count": number}
