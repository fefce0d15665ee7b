"""Access control. Every object that a request names is obtained through this module.

A person who may not know of an object gets the same answer as if the object did not exist. A
person who may read it but not change it is told so. When a reviewer reads a session without being
a member, the reading is entered in the audit log before anything is shown, once for each session
and request. If a reason is required and was not stated, nothing is shown or entered.
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


# Name of a URL → the kind of reading. URLs that are not listed show a part of a session.
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
    """The person has signed out meanwhile, or may no longer sign in."""

    code = "signed_out"


@dataclass(frozen=True, slots=True)
class Access:
    """A person's rights in a workspace. ``role`` is None for a reviewer without membership."""

    role: str | None
    can_write: bool
    can_manage: bool


@dataclass(frozen=True, slots=True)
class AccessedObject:
    """A workspace, or a session in it, to which a request or socket was given access."""

    workspace: Workspace
    access: Access
    session: Session | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessContext:
    """The person, origin and purpose of a request or socket.

    ``action`` is the kind of reading; it is empty if no part of a transcript is shown. ``browser``
    holds the reasons that were stated. ``recorded`` has the keys of the sessions for which the
    audit log already has an entry of this request or socket. ``accessed`` holds the object to
    which access was given last.
    """

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
    """Return the context of a request, which is created once and then reused.

    An asynchronous view passes the ``user`` that it has awaited.
    """
    context = getattr(request, "loom_access", None)
    if isinstance(context, AccessContext):
        return context
    match = request.resolver_match
    name = (match.url_name if match else "") or ""
    action = "" if name in NO_READING else READING.get(name, PART)
    if match and match.namespace == "admin":
        action = RECORD
    elif action == TRANSCRIPT and ("before" in request.GET or "after" in request.GET):
        action = OLDER
    context = AccessContext(
        user=user or request.user,
        action=action,
        place=_place_of(request),
        address=client_address(request) or "",
        agent=request.headers.get("User-Agent", ""),
        browser=getattr(request, "session", None),
    )
    request.loom_access = context  # type: ignore[attr-defined]
    return context


def _place_of(request: HttpRequest) -> str:
    # Leave out secrets: the token of a link, and the code in the query of a callback after signing
    # in elsewhere.
    match = request.resolver_match
    name = (match.url_name if match else "") or ""
    place = request.path if name.endswith("_callback") else request.get_full_path()
    token = match.kwargs.get("token") if match else None
    return place.replace(token, "…") if token else place


def access_context_of_socket(scope: dict[str, Any]) -> AccessContext:
    """Return the context of a socket."""
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
    """Return the signed-in person, for a view that requires one."""
    assert isinstance(request.user, User)
    return request.user


def post_by_person(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Decorate the target of a form: require a POST by a person who is signed in."""

    @require_POST
    @wraps(view)
    def checked(request: HttpRequest, **where: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return sign_in_first(**where)
        return view(request, **where)

    return checked


def post_to_session(view: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate an asynchronous target of a form: require a POST by a person who may write there.

    Instead of the uuid, the view gets the session, the person's access and the person.
    """

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
    """Redirect to the sign-in page, and from there to the page that has the form.

    The form's own target cannot be the next page, because it does not accept GET.
    """
    for key, page in (("uuid", "session"), ("slug", "workspace")):
        if key in where:
            return redirect_to_login(reverse(page, args=[where[key]]))
    return redirect_to_login(reverse("home"))


def get_session_for(
    context: AccessContext | HttpRequest, uuid: UUID, *, to: str = rights.READ
) -> tuple[Session, Access]:
    """Return the session and the person's access. Raises NotFound or NotPermitted.

    ``to`` is the permission that is required.
    """
    context = _context_of(context)
    session = _find_or_hide(get_session, uuid)
    access = _require_access(context.user, session.workspace, to)
    if access.role is None:
        _record_reading(context, [session])
    context.accessed[:] = [AccessedObject(session.workspace, access, session)]
    return session, access


def get_workspace_for(
    context: AccessContext | HttpRequest, slug: str, *, to: str = rights.READ
) -> tuple[Workspace, Access]:
    """Return the workspace and the person's access. Raises NotFound or NotPermitted.

    No reading is recorded, because a list of sessions shows no part of a transcript.
    """
    context = _context_of(context)
    workspace = _find_or_hide(get_workspace, slug)
    access = _require_access(context.user, workspace, to)
    context.accessed[:] = [AccessedObject(workspace, access)]
    return workspace, access


def get_folder_for(
    context: AccessContext | HttpRequest, slug: str, *, to: str = rights.READ
) -> tuple[Workspace, Access]:
    """Return the workspace and the person's access to the files in its folder.

    Only members have access: reviewers read transcripts, not folders. Raises NotFound or
    NotPermitted.
    """
    workspace, access = get_workspace_for(context, slug, to=to)
    if access.role is None:
        raise NotFound(HIDDEN)
    return workspace, access


def permission_for_memory(scope: str) -> str:
    """Return the permission that changing workspace memory of this scope requires."""
    return rights.MANAGE if scope == FOR_WORKSPACE else rights.WRITE


def get_memory_for(
    context: AccessContext | HttpRequest, slug: str
) -> tuple[Workspace, Access, list[MemoryEntry]]:
    """Return the workspace, the person's access, and the memory of the workspace and the person.

    The entries are parts of sessions, so the reading is recorded. Raises NotFound.
    """
    context = _context_of(context)
    workspace, access = get_workspace_for(context, slug)
    entries = list_entries(workspace, context.user.pk)
    _record_entries(context, entries)
    return workspace, access, entries


def list_kept_for(
    context: AccessContext | HttpRequest, session: Session, kept: Collection[KeptItem]
) -> list[MemoryEntry]:
    """Return the entries of workspace memory that stand in the session's state.

    The person reads them, so the reading is recorded for the sessions that they come from.
    """
    kept_ids = {item.id for item in kept}
    owner_pk = session.owner_id if any(item.scope == FOR_PERSON for item in kept) else None
    entries = list_entries(session.workspace, owner_pk) if kept_ids else []
    entries = [entry for entry in entries if str(entry.uuid) in kept_ids]
    _record_entries(context, entries)
    return entries


def _record_entries(context: AccessContext | HttpRequest, entries: list[MemoryEntry]) -> None:
    sessions = {entry.session for entry in entries if entry.session is not None}
    record_reading(context, sorted(sessions, key=attrgetter("pk")))


def get_memory_entry_for(
    context: AccessContext | HttpRequest, slug: str, uuid: UUID
) -> tuple[Workspace, MemoryEntry]:
    """Return the workspace and the entry of its memory, if this person may change the entry.

    Raises NotFound or NotPermitted.
    """
    context = _context_of(context)
    workspace, _ = get_workspace_for(context, slug)
    entry = find_entry(workspace, uuid, user_pk=context.user.pk)
    _require_access(context.user, workspace, permission_for_memory(entry.scope))
    return workspace, entry


def has_personal_memory(session: Session, person: rights.Person) -> bool:
    """Whether the person's own entries of workspace memory would stand in the session."""
    is_for_members = rights.is_for_members(session.channel, session.key, session.former_key)
    return is_for_members and person.is_authenticated and session.owner_id == person.pk


def get_session_for_review(context: AccessContext | HttpRequest, uuid: UUID) -> Session:
    """Return the session, for a page of reviewers. Raises NotFound.

    The reading is recorded even if the reviewer is a member of the workspace. The exception is
    a reviewer's own session (see :func:`record_hits`).
    """
    context = _context_of(context)
    require_reviewer(context)
    session = _find_or_hide(get_session, uuid)
    record_hits(context, [session])
    return session


def origin_of_act(context: AccessContext | HttpRequest, session: Session) -> audit.AuditOrigin:
    """Return the origin of a decision about the session, with the reason that applies to it."""
    context = _context_of(context)
    return replace(context.origin, reason=find_reason(context.browser, session.uuid))


def require_reviewer(context: AccessContext | HttpRequest) -> None:
    """Raise NotFound unless the person is a reviewer."""
    if not rights.is_reviewer(_context_of(context).user):
        raise NotFound(HIDDEN)


def sees_readers(session: Session, access: Access, user: User) -> bool:
    """Whether to show the session's readers: to its owner, and to owners of the workspace."""
    return access.can_manage or (access.role is not None and session.owner_id == user.pk)


def require_administrator(context: AccessContext | HttpRequest) -> None:
    """Raise NotFound unless the person is an administrator."""
    if not rights.is_administrator(_context_of(context).user):
        raise NotFound(HIDDEN)


def require_hold_permission(context: AccessContext | HttpRequest) -> None:
    """Raise NotFound unless the person may put sessions on hold.

    Administrators and reviewers may.
    """
    user = _context_of(context).user
    if not (rights.is_administrator(user) or rights.is_reviewer(user)):
        raise NotFound(HIDDEN)


def record_reading(context: AccessContext | HttpRequest, sessions: Iterable[Session]) -> None:
    """Record that parts of these sessions are shown to a person who may read them.

    Sessions in workspaces of which the person is a member are not recorded.
    """
    context = _context_of(context)
    _record_reading(context, rights.read_as_reviewer(context.user, sessions))


def record_hits(context: AccessContext | HttpRequest, sessions: Iterable[Session]) -> None:
    """Record that parts of these sessions are shown on a page of reviewers.

    Every session is recorded except the reviewer's own in workspaces of which they are a member.
    """
    context = _context_of(context)
    shown = list(sessions)
    own = [session for session in shown if session.owner_id == context.user.pk]
    if own:
        of_others = {session.pk for session in rights.read_as_reviewer(context.user, own)}
        own = [session for session in own if session.pk not in of_others]
    _record_reading(context, [session for session in shown if session not in own])


def require_reason_to_search(
    context: AccessContext | HttpRequest, workspaces: Collection[int] | None = None
) -> None:
    """Raise ReasonNeeded if a search in these workspaces requires a reason that was not stated.

    ``workspaces`` are primary keys; None stands for all workspaces. The reason is asked for before
    the search, because the number of hits already tells something of the transcripts.
    """
    context = _context_of(context)
    own = rights.roles_of_person(context.user.pk) if workspaces else {}
    if workspaces is None or not own.keys() >= set(workspaces):
        require_reasons(context.browser, [None])


def record_admin_reading(request: HttpRequest, session: Session) -> None:
    """Record that the admin shows a record of the session, unless the person is a member.

    The admin's own permissions decide who sees the record.
    """
    context = access_context_of(request)
    if rights.rights_in(session.workspace, context.user).role is None:
        _record_reading(context, [session])


def _find_or_hide[K, T](get: Callable[[K], T], key: K) -> T:
    # The error has the same text for an object that does not exist and for one without access.
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
    events = [
        replace(
            audit.session_event(session, context.action),
            reason=find_reason(context.browser, session.uuid),
        )
        for session in new
    ]
    audit.record(context.origin, *events)
    context.recorded.update(session.pk for session in new)


def recheck_access(
    page: OpenPage, workspace: Workspace, *, to: str, earlier: AccessSnapshot | None
) -> bool:
    """Check again the access of a socket that is open, and return whether the person may write.

    Meanwhile the person may have signed out or lost the right, or the session may have been purged.
    Raises SignedOut, NotFound or NotPermitted. A reviewer's reading was recorded when the socket
    opened. A person who was a member then and is only a reviewer now gets NotFound: they have to
    open the page again.

    One query suffices as long as a member's ``earlier`` snapshot differs in nothing but the role.
    Otherwise everything is checked again.
    """
    snapshot = read_snapshot(page)
    if (
        snapshot is not None
        and snapshot.is_active
        and snapshot.role is not None
        and earlier is not None
        and replace(snapshot, role=earlier.role) == earlier
    ):
        _require(rights.ALLOWED[snapshot.role], to)
        return rights.WRITE in rights.ALLOWED[snapshot.role]
    signed_in = read_signed_in(page.session_key)
    if not signed_in.is_authenticated:
        raise SignedOut("You are signed out. Sign in again.")
    if snapshot is None:
        raise NotFound(HIDDEN)
    access = _require_access(signed_in, workspace, to)
    if access.role is None and earlier is not None and earlier.role is not None:
        raise NotFound(HIDDEN)
    return access.can_write


def read_signed_in(session_key: str | None) -> rights.Person:
    """Return the person who is signed in in the browser with this browser session."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return get_user(request)


def _require_access(user: rights.Person, workspace: Workspace, to: str) -> Access:
    own = rights.rights_in(workspace, user)
    _require(own.allowed, to)
    return Access(
        role=own.role,
        can_write=rights.WRITE in own.allowed,
        can_manage=rights.MANAGE in own.allowed,
    )


def _require(allowed: frozenset[str], to: str) -> None:
    if not allowed:
        raise NotFound(HIDDEN)
    if to not in allowed:
        raise NotPermitted("You can read this but not change it.")
