"""Who may do what. Every object that a request names is obtained here.

A person who may not know of an object gets the same answer as if it did not
exist; one who may read it but not change it is told so. What somebody reads without
being a member is entered in the audit log before it is shown: once for each session
and request. Where a reason is required and was not stated, nothing is shown or entered.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib import import_module
from operator import attrgetter
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from conversations.archive import audit, rights
from conversations.archive.memory import find_entry, list_entries
from conversations.archive.rights import AccessSnapshot, OpenPage, read_snapshot
from conversations.archive.sessions import get_session
from conversations.archive.workspaces import get_workspace
from conversations.domain.audit import ATTACHMENT, HIT, LIVE, OLDER, PART, RECORD, TRANSCRIPT
from conversations.domain.errors import NotFound, NotPermitted
from conversations.domain.messages import say
from conversations.domain.session_state import FOR_PERSON, FOR_WORKSPACE, KeptItem
from conversations.models import MemoryEntry, Session, Workspace
from conversations.review.reasons import find_reason, require_reasons
from conversations.web.addresses import address_of, client_address

HIDDEN = say("This page doesn't exist or you don't have access.")


# Name of a URL → the kind of reading; every other is that of a part.
READING = {
    **dict.fromkeys(("session", "turn", "review_session", "review_turn"), TRANSCRIPT),
    **dict.fromkeys(("session_find", "search", "review_search"), HIT),
    **dict.fromkeys(("attachment", "attachment_thumb"), ATTACHMENT),
}

# Names of URLs that belong to a session and show nothing of what was said in it.
NO_READING = (
    *("session_commands", "session_readers", "tool_call_file", "review_remark", "review_mark"),
    *("review_note_withdraw", "review_flag_resolve"),
)


class SignedOut(NotPermitted):
    """The person signed out meanwhile, or may not sign in any more."""

    code = "signed_out"


@dataclass(frozen=True, slots=True)
class Access:
    """What a person may do. ``role`` is None for a reviewer without membership."""

    role: str | None
    can_write: bool
    can_manage: bool


@dataclass(frozen=True, slots=True)
class AccessedObject:
    """A workspace, or a session in it, that a request or socket was given access to."""

    workspace: Workspace
    access: Access
    session: Session | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessContext:
    """Who asks, from where, and for what: an empty ``action`` shows nothing of what was
    said. ``browser`` holds the reasons that were stated, ``recorded`` are the sessions that
    the audit log has an entry of for this request or socket, ``accessed`` is what it was
    let into last."""

    user: rights.Person
    action: str
    place: str
    address: str
    agent: str
    browser: SessionBase | None = None
    recorded: set[int] = field(default_factory=set)
    accessed: list[AccessedObject] = field(default_factory=list)

    @property
    def origin(self) -> audit.AuditOrigin:
        return audit.AuditOrigin(
            user=self.user if isinstance(self.user, User) else None,
            place=self.place,
            address=self.address,
            agent=self.agent,
        )


def access_context_of(request: HttpRequest, user: rights.Person | None = None) -> AccessContext:
    """The context of a request: the same one, however often it is asked for. An
    asynchronous view gives the ``user`` that it has waited for."""
    found = getattr(request, "loom_access", None)
    if isinstance(found, AccessContext):
        return found
    match = request.resolver_match
    name = (match.url_name if match else "") or ""
    action = "" if name in NO_READING else READING.get(name, PART)
    if match and match.namespace == "admin":
        action = RECORD
    elif action == TRANSCRIPT and ("before" in request.GET or "after" in request.GET):
        action = OLDER
    found = AccessContext(
        user=user or request.user,
        action=action,
        place=_place_of(request),
        address=client_address(request) or "",
        agent=request.headers.get("User-Agent", ""),
        browser=getattr(request, "session", None),
    )
    request.loom_access = found  # type: ignore[attr-defined]
    return found


def _place_of(request: HttpRequest) -> str:
    # Without what opens something: a link's token, and the code with which somebody comes back from
    # signing in elsewhere.
    match = request.resolver_match
    name = (match.url_name if match else "") or ""
    place = request.path if name.endswith("_callback") else request.get_full_path()
    token = match.kwargs.get("token") if match else None
    return place.replace(token, "…") if token else place


def access_context_of_socket(scope: dict[str, Any]) -> AccessContext:
    """The context of a socket."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    client = scope.get("client") or ("",)
    return AccessContext(
        user=scope["user"],
        action=LIVE,
        place=scope["path"],
        address=address_of(client[0], headers.get("x-forwarded-for", "")) or "",
        agent=headers.get("user-agent", ""),
        browser=scope.get("session"),
    )


def person(request: HttpRequest) -> User:
    """The signed-in person of a view that requires one."""
    assert isinstance(request.user, User)
    return request.user


def post_by_person(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """For the target of a form: a POST by somebody who is signed in."""

    @require_POST
    @wraps(view)
    def checked(request: HttpRequest, **where: Any) -> HttpResponse:
        return view(request, **where) if request.user.is_authenticated else sign_in_first(**where)

    return checked


def post_to_session(view: Callable[..., Any]) -> Callable[..., Any]:
    """For the target of a form of a session: an asynchronous POST by somebody who may
    change it. In place of the uuid the view gets the session, what they may do, and who
    they are."""

    @require_POST
    @wraps(view)
    async def checked(request: HttpRequest, uuid: UUID, **where: Any) -> Any:
        user = await request.auser()
        if not user.is_authenticated:
            return sign_in_first(uuid=uuid)
        context = access_context_of(request, user)
        session, access = await sync_to_async(get_session_for)(context, uuid, to=rights.WRITE)
        return await view(request, session, access, user, **where)

    return checked


def sign_in_first(**where: Any) -> HttpResponseRedirect:
    """To the sign-in page, and from there to the page that has the form: the form's
    own target answers no GET."""
    for key, page in (("uuid", "session"), ("slug", "workspace")):
        if key in where:
            return redirect_to_login(reverse(page, args=[where[key]]))
    return redirect_to_login(reverse("home"))


def get_session_for(
    context: AccessContext | HttpRequest, uuid: UUID, *, to: str = rights.READ
) -> tuple[Session, Access]:
    """The session, if this person may do that with it. Raises NotFound, NotPermitted."""
    context, session = _context_of(context), _find(get_session, uuid)
    access = _granted(context.user, session.workspace, to)
    if access.role is None:
        _record_reading(context, [session])
    context.accessed[:] = [AccessedObject(session.workspace, access, session)]
    return session, access


def get_workspace_for(
    context: AccessContext | HttpRequest, slug: str, *, to: str = rights.READ
) -> tuple[Workspace, Access]:
    """The workspace, if this person may do that with it. Raises NotFound, NotPermitted.
    A list of sessions shows nothing of what was said in them."""
    context, workspace = _context_of(context), _find(get_workspace, slug)
    access = _granted(context.user, workspace, to)
    context.accessed[:] = [AccessedObject(workspace, access)]
    return workspace, access


def get_folder_for(
    context: AccessContext | HttpRequest, slug: str, *, to: str = rights.READ
) -> tuple[Workspace, Access]:
    """The workspace, if this person may do that with the files in its folder: its members.
    Reviewers read transcripts, not folders. Raises NotFound, NotPermitted."""
    workspace, access = get_workspace_for(context, slug, to=to)
    if access.role is None:
        raise NotFound(HIDDEN)
    return workspace, access


def permission_for_memory(scope: str) -> str:
    """What it takes to change the workspace's memory: for oneself, or for everybody there."""
    return rights.MANAGE if scope == FOR_WORKSPACE else rights.WRITE


def get_memory_for(
    context: AccessContext | HttpRequest, slug: str
) -> tuple[Workspace, Access, list[MemoryEntry]]:
    """The workspace, and what is kept for it and for this person: parts of the sessions in which
    it was said. Raises NotFound."""
    context = _context_of(context)
    workspace, access = get_workspace_for(context, slug)
    return workspace, access, _record_entries(context, list_entries(workspace, context.user.pk))


def list_kept_for(
    context: AccessContext | HttpRequest, session: Session, kept: Collection[KeptItem]
) -> list[MemoryEntry]:
    """The entries of the workspace's memory that stand in the session's state, for somebody who
    reads it."""
    chosen = {one.id for one in kept}
    owner_pk = session.owner_id if any(one.scope == FOR_PERSON for one in kept) else None
    entries = list_entries(session.workspace, owner_pk) if chosen else []
    return _record_entries(context, [entry for entry in entries if str(entry.uuid) in chosen])


def _record_entries(
    context: AccessContext | HttpRequest, entries: list[MemoryEntry]
) -> list[MemoryEntry]:
    sessions = {entry.session for entry in entries if entry.session is not None}
    record_reading(context, sorted(sessions, key=attrgetter("pk")))
    return entries


def get_memory_entry_for(
    context: AccessContext | HttpRequest, slug: str, uuid: UUID
) -> tuple[Workspace, MemoryEntry]:
    """The entry of the workspace's memory, if this person may change it. Raises NotFound,
    NotPermitted."""
    context = _context_of(context)
    workspace, _ = get_workspace_for(context, slug)
    entry = find_entry(workspace, uuid, user_pk=context.user.pk)
    _granted(context.user, workspace, permission_for_memory(entry.scope))
    return workspace, entry


def has_personal_memory(session: Session, person: rights.Person) -> bool:
    """Whether what this person keeps for themselves would stand in the session."""
    is_for_members = rights.is_for_members(session.channel, session.key, session.former_key)
    return is_for_members and person.is_authenticated and session.owner_id == person.pk


def get_session_for_review(context: AccessContext | HttpRequest, uuid: UUID) -> Session:
    """The session, for a page of reviewers: there reading is entered whatever one's role
    in the workspace, unless the session is one's own. Raises NotFound."""
    context = _context_of(context)
    require_reviewer(context)
    session = _find(get_session, uuid)
    record_hits(context, [session])
    return session


def origin_of_act(context: AccessContext | HttpRequest, session: Session) -> audit.AuditOrigin:
    """Who decides something about a session, with the reason that applies to it."""
    context = _context_of(context)
    return replace(context.origin, reason=find_reason(context.browser, session.uuid))


def require_reviewer(context: AccessContext | HttpRequest) -> None:
    """To everybody else the page is not there. Raises NotFound."""
    if not rights.is_reviewer(_context_of(context).user):
        raise NotFound(HIDDEN)


def sees_readers(session: Session, access: Access, user: User) -> bool:
    """Whether to show who has read the session: to its owner, and to those of the
    workspace."""
    return access.can_manage or (access.role is not None and session.owner_id == user.pk)


def require_administrator(context: AccessContext | HttpRequest) -> None:
    """To everybody else the page is not there. Raises NotFound."""
    if not rights.is_administrator(_context_of(context).user):
        raise NotFound(HIDDEN)


def require_hold_permission(context: AccessContext | HttpRequest) -> None:
    """For those who may put sessions on hold: administrators and reviewers. To everybody
    else the page is not there. Raises NotFound."""
    user = _context_of(context).user
    if not (rights.is_administrator(user) or rights.is_reviewer(user)):
        raise NotFound(HIDDEN)


def record_reading(context: AccessContext | HttpRequest, sessions: Iterable[Session]) -> None:
    """Parts of these sessions are shown to a person who may read them: entered, as
    whole transcripts are."""
    context = _context_of(context)
    _record_reading(context, rights.read_as_reviewer(context.user, sessions))


def record_hits(context: AccessContext | HttpRequest, sessions: Iterable[Session]) -> None:
    """Parts of these sessions are shown on a page of reviewers: entered for each that is
    not one's own, in a workspace that one is in."""
    context = _context_of(context)
    shown = list(sessions)
    own = [session for session in shown if session.owner_id == context.user.pk]
    if own:
        left = {session.pk for session in rights.read_as_reviewer(context.user, own)}
        own = [session for session in own if session.pk not in left]
    _record_reading(context, [session for session in shown if session not in own])


def require_reason_to_search(
    context: AccessContext | HttpRequest, workspaces: Collection[int] | None = None
) -> None:
    """Before a reviewer looks for words in these workspaces (keys; None: all). That there
    are hits, and in how many sessions, tells what was said: where a reason is required,
    it is asked for first. Raises ReasonNeeded."""
    context = _context_of(context)
    own = rights.roles_of_person(context.user.pk) if workspaces else {}
    if workspaces is None or not own.keys() >= set(workspaces):
        require_reasons(context.browser, [None])


def record_admin_reading(request: HttpRequest, session: Session) -> None:
    """A record of the session is shown in the admin, whose own permissions decide who
    sees it: entered, unless the person is a member."""
    context = access_context_of(request)
    if rights.rights_in(session.workspace, context.user).role is None:
        _record_reading(context, [session])


def _find[K, T](get: Callable[[K], T], key: K) -> T:
    # In the same words for what is not there and for what is somebody else's.
    try:
        return get(key)
    except NotFound as error:
        raise NotFound(HIDDEN) from error


def _context_of(context: AccessContext | HttpRequest) -> AccessContext:
    return context if isinstance(context, AccessContext) else access_context_of(context)


def _record_reading(context: AccessContext, sessions: Iterable[Session]) -> None:
    if not context.action:
        return
    new = [session for session in sessions if session.pk not in context.recorded]
    require_reasons(context.browser, [session.uuid for session in new])
    notes = [
        replace(
            audit.session_event(one, context.action), reason=find_reason(context.browser, one.uuid)
        )
        for one in new
    ]
    audit.record(context.origin, *notes)
    context.recorded.update(session.pk for session in new)


def recheck_access(
    place: OpenPage, workspace: Workspace, *, to: str, earlier: AccessSnapshot | None
) -> bool:
    """For a socket that has a session of the workspace open since some time: its
    person may have signed out or lost the right, or the session is purged. Returns whether they may
    write now; raises SignedOut, NotFound, NotPermitted. That a reviewer reads was noted when the
    socket opened; who was a member then has to come again.

    While a member's ``earlier`` snapshot is the same but for the role, one query
    answers; otherwise everything is asked again.
    """
    now = read_snapshot(place)
    if (
        now is not None
        and now.is_active
        and now.role is not None
        and earlier is not None
        and replace(now, role=earlier.role) == earlier
    ):
        _require(rights.ALLOWED[now.role], to)
        return rights.WRITE in rights.ALLOWED[now.role]
    signed_in = read_signed_in(place.session_key)
    if not signed_in.is_authenticated:
        raise SignedOut("You are signed out. Sign in again.")
    if now is None:
        raise NotFound(HIDDEN)
    access = _granted(signed_in, workspace, to)
    if access.role is None and earlier is not None and earlier.role is not None:
        raise NotFound(HIDDEN)
    return access.can_write


def read_signed_in(session_key: str | None) -> rights.Person:
    """Who is, in the browser that has this session."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return get_user(request)


def _granted(user: rights.Person, workspace: Workspace, to: str) -> Access:
    granted = rights.rights_in(workspace, user)
    _require(granted.allowed, to)
    return Access(
        role=granted.role,
        can_write=rights.WRITE in granted.allowed,
        can_manage=rights.MANAGE in granted.allowed,
    )


def _require(allowed: frozenset[str], to: str) -> None:
    if not allowed:
        raise NotFound(HIDDEN)
    if to not in allowed:
        raise NotPermitted("You can read this but not change it.")
