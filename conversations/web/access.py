"""Who may do what. Every object that a request names is obtained here.

A person who may not know of an object gets the same answer as if it did not
exist; one who may read it but not change it is told so.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from conversations.archive.accounts import Standing, read_standing
from conversations.archive.rights import (
    ALLOWED,
    MANAGE,
    READ,
    WRITE,
    Person,
    read_as_staff,
    rights_in,
)
from conversations.archive.sessions import get_session
from conversations.archive.workspaces import get_workspace
from conversations.domain.errors import NotFound, NotPermitted
from conversations.models import Membership, Session, Workspace

logger = logging.getLogger(__name__)

HIDDEN = "There is no such page, or it is not yours."
"""The same words for what is not there and for what is somebody else's."""


class SignedOut(NotPermitted):
    """The person signed out meanwhile, or may not sign in any more."""

    code = "signed_out"


@dataclass(frozen=True, slots=True)
class Access:
    """What a person may do. ``role`` is None for staff without membership."""

    role: str | None
    can_write: bool
    can_manage: bool


def post_by_person(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """For the target of a form: a POST by somebody who is signed in."""

    @require_POST
    @wraps(view)
    def checked(request: HttpRequest, **where: Any) -> HttpResponse:
        return view(request, **where) if request.user.is_authenticated else sign_in_first(**where)

    return checked


def sign_in_first(**where: Any) -> HttpResponseRedirect:
    """To the sign-in page, and from there to the page that has the form: the form's
    own target answers no GET."""
    if "uuid" in where:
        return redirect_to_login(reverse("session", args=[where["uuid"]]))
    if "slug" in where:
        return redirect_to_login(reverse("workspace", args=[where["slug"]]))
    return redirect_to_login(reverse("home"))


def get_session_for(user: Person, uuid: UUID, *, to: str = READ) -> tuple[Session, Access]:
    """The session, if this person may do that with it. Raises NotFound, NotPermitted."""
    try:
        session = get_session(uuid)
    except NotFound as error:
        raise NotFound(HIDDEN) from error
    return session, _access(user, session.workspace, to, what=f"session {uuid}")


def get_workspace_for(user: Person, slug: str, *, to: str = READ) -> tuple[Workspace, Access]:
    """The workspace, if this person may do that with it. Raises NotFound, NotPermitted."""
    try:
        workspace = get_workspace(slug)
    except NotFound as error:
        raise NotFound(HIDDEN) from error
    return workspace, _access(user, workspace, to, what=f"workspace {slug}")


def note_reading(user: Person, sessions: Iterable[Session]) -> None:
    """Parts of these sessions are shown to a person who may read them. As with whole
    transcripts, what somebody reads without being a member is logged."""
    for session in read_as_staff(user, sessions):
        _log_staff(user, f"session {session.uuid}")


def recheck_access(
    session_key: str, user: Person, workspace: Workspace, *, to: str, earlier: Standing | None
) -> None:
    """For a socket that has a session of the workspace open since some time: its
    person may have signed out or lost the right. Raises SignedOut, NotFound,
    NotPermitted. That the person reads was noted when the socket opened.

    While a member's ``earlier`` standing is the same but for the role, one query
    answers; otherwise everything is asked again.
    """
    now = read_standing(session_key, user_pk=user.pk or 0, workspace_pk=workspace.pk)
    if now is not None and now.role is not None and _is_unchanged(now, earlier):
        _require(ALLOWED[Membership.Role(now.role)], to)
        return
    signed_in = _signed_in_by(session_key)
    if not signed_in.is_authenticated:
        raise SignedOut("You are signed out. Sign in again.")
    _granted(signed_in, workspace, to)


def _is_unchanged(now: Standing, earlier: Standing | None) -> bool:
    return earlier is not None and now.is_active and replace(now, role=earlier.role) == earlier


def _signed_in_by(session_key: str | None) -> Person:
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return get_user(request)


def _access(user: Person, workspace: Workspace, to: str, *, what: str) -> Access:
    access = _granted(user, workspace, to)
    if access.role is None:
        _log_staff(user, what)
    return access


def _log_staff(user: Person, what: str) -> None:
    logger.info("read_by_staff", extra={"fields": {"user": user.pk, "what": what}})


def _granted(user: Person, workspace: Workspace, to: str) -> Access:
    rights = rights_in(workspace, user)
    _require(rights.allowed, to)
    return Access(
        role=rights.role,
        can_write=WRITE in rights.allowed,
        can_manage=MANAGE in rights.allowed,
    )


def _require(allowed: frozenset[str], to: str) -> None:
    if not allowed:
        raise NotFound(HIDDEN)
    if to not in allowed:
        raise NotPermitted("You may read this, and not change it.")
