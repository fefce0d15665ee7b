"""Sessions by key: how another system finds its session again."""

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from ninja import Router, Status

from conversations.access import get_session_for, get_workspace_for
from conversations.accounts.tokens import READ, WRITE
from conversations.archive.rights import WRITE as TO_WRITE
from conversations.archive.session_records import SessionRecord, read_session_record
from conversations.archive.sessions import begin_anew, find_by_key, open_by_key
from conversations.domain.errors import NotFound
from conversations.domain.session_keys import check_key
from conversations.models import Session

from .auth import caller_of, needs
from .idempotency import belongs_to, makes_once
from .sessions import SessionOut, SessionStart, begun_as

router = Router(tags=["Sessions by key"])

PATH = "/workspaces/{slug:slug}/keys/{path:key}"


@router.get(PATH, auth=needs(READ), response=SessionOut, url_name="session_by_key")
def get_session_by_key(request: HttpRequest, slug: str, key: str) -> SessionRecord:
    """The session of a key. One that has expired, or is to be purged, has it no more."""
    workspace, _ = get_workspace_for(request, slug)
    found = find_by_key(workspace, check_key(key))
    if found is None:
        raise NotFound("No session has this key.")
    session, _ = get_session_for(request, found.uuid)
    return read_session_record(session.pk)


@router.put(
    PATH,
    auth=needs(WRITE),
    response={200: SessionOut, 201: SessionOut},
    url_name="session_by_key",
)
def open_session_by_key(
    request: HttpRequest,
    response: HttpResponse,
    slug: str,
    key: str,
    start: SessionStart | None = None,
) -> Status[SessionRecord]:
    """Find the session of a key, or begin it (201): at first use, and when the last one
    has expired; then that is its `parent`. The body counts for one that begins. Of any
    number of callers at once, one begins it."""
    workspace, _ = get_workspace_for(request, slug, to=TO_WRITE)
    begun = begun_as(start or SessionStart.model_validate({}))
    session, is_new = open_by_key(
        workspace, key=check_key(key), owner=caller_of(request).user, **begun
    )
    return _answer(response, session, status=201 if is_new else 200)


@router.post(PATH, auth=needs(WRITE), response={201: SessionOut}, url_name="session_by_key")
@makes_once()
def begin_session_under_key(
    request: HttpRequest, response: HttpResponse, slug: str, key: str
) -> Status[SessionRecord]:
    """Begin a new session under a key. The one that had it stays as it is, without the
    key, and is the new one's `parent`."""
    workspace, _ = get_workspace_for(request, slug, to=TO_WRITE)
    session = begin_anew(workspace, key=check_key(key), owner=caller_of(request).user)
    belongs_to(request, session)
    return _answer(response, session, status=201)


def _answer(response: HttpResponse, session: Session, *, status: int) -> Status[SessionRecord]:
    response["Location"] = reverse("api:session", args=[session.uuid])
    return Status(status, read_session_record(session.pk))
