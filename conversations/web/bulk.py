"""What is done with several sessions of a workspace's list at once."""

from collections.abc import Sequence
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from conversations.access import get_session_for, get_workspace_for, person, post_by_person
from conversations.archive import sessions as archive_sessions
from conversations.archive.rights import WRITE
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.models import Session, Workspace
from conversations.runtime.current import compact_at_end

MAX_CHOSEN = 500  # Sessions that are changed at once: as many as a long list shows.
ACTIONS = {"pin": "pinned", "unpin": "unpinned", "archive": "archived", "unarchive": "unarchived"}


def read_chosen(request: HttpRequest, workspace: Workspace) -> list[Session]:
    """The sessions of a form's ``session`` fields, each of which this person may write in. Raises
    Rejected for none, too many, or one of another workspace; NotFound and NotPermitted."""
    chosen = list(dict.fromkeys(request.POST.getlist("session")))
    if not chosen:
        raise Rejected("Choose at least one session.", code="nothing_chosen")
    if len(chosen) > MAX_CHOSEN:
        raise Rejected(f"At most {MAX_CHOSEN} sessions can be changed at once.", code="too_many")
    try:
        uuids = [UUID(text) for text in chosen]
    except ValueError as error:
        raise Rejected("session must be a UUID.", code="bad_uuid") from error
    found = [get_session_for(request, uuid, to=WRITE)[0] for uuid in uuids]
    if any(session.workspace_id != workspace.pk for session in found):
        raise NotFound("This session does not exist in this workspace.")
    return found


@post_by_person
def workspace_sessions(request: HttpRequest, slug: str) -> HttpResponse:
    """Pin or archive the chosen ones, or take that back."""
    workspace, _ = get_workspace_for(request, slug, to=WRITE)
    action = request.POST.get("do", "")
    try:
        if action not in ACTIONS:
            raise Rejected("Choose an action.", code="action_unknown")
        chosen = read_chosen(request, workspace)
    except Rejected as error:
        messages.error(request, error.message)
        return redirect("workspace", slug=slug)
    done, problems = 0, list[str]()
    for session in chosen:
        try:
            _carry_out(request, session, action)
            done += 1
        except Conflict as error:
            problems.append(error.message)
    if done:
        messages.success(request, f"{count_of(chosen[:done])} {ACTIONS[action]}.")
    for problem in dict.fromkeys(problems):
        messages.error(request, f"{problems.count(problem)} left as they are: {problem}")
    return redirect("workspace", slug=slug)


def _carry_out(request: HttpRequest, session: Session, action: str) -> None:
    if action in ("pin", "unpin"):
        archive_sessions.pin_session(session, pinned=action == "pin")
        return
    was_archived = session.archived_at is not None
    archive_sessions.archive_session(session, archived=action == "archive")
    if action == "archive" and not was_archived and settings.LOOM.compact_at_end:
        compact_at_end(session, user_pk=person(request).pk)


def count_of(sessions: Sequence[Session]) -> str:
    return "1 session" if len(sessions) == 1 else f"{len(sessions)} sessions"
