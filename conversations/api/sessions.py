"""Sessions: listed, begun, read, changed, rewound."""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from ninja import Field, Path, Query, Router, Schema, Status

from conversations.access import get_session_for, get_workspace_for
from conversations.accounts.tokens import READ, WRITE
from conversations.archive import session_records
from conversations.archive.branches import LeftBranch, list_branches
from conversations.archive.forking import fork_session
from conversations.archive.message_formats import import_history, prepare_messages
from conversations.archive.rights import WRITE as TO_WRITE
from conversations.archive.rights import roles_of_person
from conversations.archive.sessions import begin_anew, create_session, find_by_key, open_by_key
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.keyset import parse_list_cursor
from conversations.domain.session_keys import (
    MAX_KEY_CHARS,
    MEMBER_CHANNELS,
    channel_of,
    check_key,
)
from conversations.models import Session
from conversations.runtime.current import announce, compact_at_end, list_models, model_of

from .auth import caller_of, needs, open_for_writing
from .fields import (
    MAX_NUMBER,
    Channel,
    FormatName,
    LongText,
    Metadata,
    Moment,
    Page,
    Paging,
    ShortText,
    Title,
    make_page,
    page_request_of,
)
from .idempotency import belongs_to

router = Router(tags=["Sessions"])


class SessionOut(Schema):
    """A session. ``state`` is that of its run, or ``idle``. ``turns`` and ``events`` are
    the highest numbers of the two; ``key`` is the one by which it is found again, or was
    until it expired. A session that goes on in the place of an expired one, or that was
    forked, has that one as its ``parent``. Costs are in millionths of a US dollar."""

    uuid: UUID
    page: str = Field(description="The address of its page.")
    workspace: str
    instructions: str
    owner: str
    key: str | None
    channel: str
    title: str
    preview: str | None = Field(description="The beginning of the last message.")
    model: str = Field(description="Empty: the workspace's default.")
    state: str
    turns: int
    events: int
    rewinds: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    context_tokens: int
    context_limit: int
    cost_microusd: int
    parent: UUID | None
    fork_turn: int | None
    created_at: datetime
    last_active_at: datetime
    expires_at: datetime | None
    expired: bool
    archived_at: datetime | None
    pinned_at: datetime | None
    metadata: dict[str, Any]

    @staticmethod
    def resolve_key(record: session_records.SessionRecord) -> str | None:
        return record.key or None


class SessionFilters(Paging):
    """Left out: whatever it is."""

    key: ShortText | None = Field(None, description="Sessions that have or had this key.")
    channel: ShortText | None = None
    archived: bool | None = None
    expired: bool | None = None
    q: ShortText = Field("", description="Words of the title, in any order.")
    parent: UUID | None = Field(
        None, description="Sessions that were forked from or continue this session."
    )


class AllFilters(SessionFilters):
    workspace: str | None = Field(None, max_length=120, description="The slug of the workspace.")


class SessionStart(Schema):
    """How a session begins; everything may be left out."""

    title: Title | None = None
    model: ShortText | None = Field(None, description="One of the available models.")
    instructions: LongText = Field("", description="For the model, in this session only.")
    metadata: Metadata = Field(default_factory=dict, description="At most 65,536 characters.")
    expires_at: Moment | None = Field(None, description="Null: the workspace's default.")


class NewSession(SessionStart):
    """Everything may be left out. ``key`` is unique in the workspace; without a ``channel``
    its first part is one."""

    key: str | None = Field(None, max_length=MAX_KEY_CHARS, examples=["cli:default"])
    channel: Channel | None = None
    messages: list[dict[str, Any]] = Field(
        default_factory=list,
        description="An earlier history, including its system messages. It is not answered.",
    )
    format: FormatName = Field("anthropic", description="The format of `messages`.")


class SessionPatch(Schema):
    """What is left out stays as it is. ``metadata`` is merged: its names are set, those
    with null are removed. ``expires_at`` null: never."""

    title: Title | None = None
    model: ShortText | None = None
    archived: bool | None = None
    pinned: bool | None = None
    metadata: Metadata | None = None
    expires_at: Moment | None = None


class RewindIn(Schema):
    """The first turn that is taken back: a message of the person, or 1 for all."""

    from_turn: int = Field(ge=1, le=MAX_NUMBER)


@router.get("/sessions", auth=needs(READ), response=Page[SessionOut], url_name="sessions")
def list_all_sessions(request: HttpRequest, filters: Query[AllFilters]) -> dict[str, Any]:
    """Sessions of your workspaces, the latest active first."""
    return list_sessions_of(request, filters.workspace, filters)


@router.get(
    "/workspaces/{slug:slug}/sessions",
    auth=needs(READ),
    response=Page[SessionOut],
    url_name="workspace_sessions",
)
def list_workspace_sessions(
    request: HttpRequest, slug: str, filters: Query[SessionFilters]
) -> dict[str, Any]:
    """Sessions of one workspace, the latest active first."""
    return list_sessions_of(request, slug, filters)


@router.post(
    "/workspaces/{slug:slug}/sessions",
    auth=needs(WRITE),
    response={201: SessionOut},
    url_name="session_create",
)
def begin_session(
    request: HttpRequest, response: HttpResponse, slug: str, new: NewSession
) -> Status[session_records.SessionRecord]:
    """Begin a session. ``Location`` has its address."""
    workspace, _ = get_workspace_for(request, slug, to=TO_WRITE)
    begun = begun_as(new)
    key = new.key and check_key(new.key)
    brought = prepare_messages(new.messages, format=new.format, model=new.model or "")
    channel = new.channel or channel_of(key or "", otherwise="api")
    owner = caller_of(request).user
    try:
        with transaction.atomic():
            session = create_session(workspace, owner=owner, key=key, channel=channel, **begun)
            import_history(session, brought, user_pk=owner.pk)
    except IntegrityError as error:
        raise Conflict("Another session already has this key.", code="key_taken") from error
    belongs_to(request, session)
    return _located(response, session, status=201)


@router.get("/sessions/{uuid:uuid}", auth=needs(READ), response=SessionOut, url_name="session")
def get_one_session(request: HttpRequest, uuid: UUID) -> session_records.SessionRecord:
    """One session: its counters, its state, what it goes on from."""
    session, _ = get_session_for(request, uuid)
    return session_records.read_session_record(session.pk)


@router.patch("/sessions/{uuid:uuid}", auth=needs(WRITE), response=SessionOut, url_name="session")
def change_one_session(
    request: HttpRequest, uuid: UUID, patch: SessionPatch
) -> session_records.SessionRecord:
    """Change what is given: all of it, or nothing where one value is refused."""
    session, _ = get_session_for(request, uuid, to=TO_WRITE)
    if patch.model:
        require_model(patch.model)
    is_archived_now = session_records.change_session(session, patch.model_dump(exclude_unset=True))
    record = session_records.read_session_record(session.pk)
    if patch.title is not None:
        announce(session.pk, "title", record.title)
    if patch.model is not None:
        session.model = patch.model
        announce(session.pk, "model", model_of(session))
    if is_archived_now:
        compact_at_end(session, user_pk=caller_of(request).user.pk)
    return record


@router.post(
    "/sessions/{uuid:uuid}/rewind",
    auth=needs(WRITE),
    response=SessionOut,
    url_name="session_rewind",
)
async def rewind(
    request: HttpRequest, uuid: UUID, wanted: RewindIn
) -> session_records.SessionRecord:
    """Take back a message with all that follows. The archive keeps it; the model is not
    given it any more."""
    session, runtime, user_pk = await open_for_writing(request, uuid)
    await runtime.rewind(session, from_turn=wanted.from_turn, user_pk=user_pk)
    return await sync_to_async(session_records.read_session_record)(session.pk)


@router.post(
    "/sessions/{uuid:uuid}/turns/{int:number}/fork",
    auth=needs(WRITE),
    response={201: SessionOut},
    url_name="turn_fork",
)
def fork_at_turn(
    request: HttpRequest, uuid: UUID, number: Path[int]
) -> Status[session_records.SessionRecord]:
    """A session of its own, the caller's, that begins with what was said up to that turn: its last
    2,000 turns at most. It has the session as its ``parent``, and its ``channel`` unless that is
    one of the members, else ``api``."""
    session, _ = get_session_for(request, uuid, to=TO_WRITE)
    # Who reads the answers of a program is not known: it gets no session of the members.
    channel = "api" if session.channel in MEMBER_CHANNELS else session.channel
    made = fork_session(session, turn=number, owner=caller_of(request).user, channel=channel)
    belongs_to(request, made)
    return Status(201, session_records.read_session_record(made.pk))


class BranchOut(Schema):
    """A branch that the conversation has left. ``turn`` is its first turn that the active path
    lacks, ``turns`` how many it has from there to its ``tip``; ``begins`` is how the first one
    begins. It was left at ``left_at``, by an ``edit``, ``regenerate``, ``reset``, ``undo`` or
    ``switch``."""

    turn: int
    tip: int
    turns: int
    role: str
    begins: str
    left_at: datetime
    reason: str


class BranchesOut(Schema):
    """The latest first: 100 at most."""

    items: list[BranchOut]


@router.get(
    "/sessions/{uuid:uuid}/branches",
    auth=needs(READ),
    response=BranchesOut,
    url_name="session_branches",
)
def list_session_branches(request: HttpRequest, uuid: UUID) -> dict[str, list[LeftBranch]]:
    """What an edit, a new answer or a rewind has left."""
    session, _ = get_session_for(request, uuid)
    return {"items": list_branches(session)}


@router.post(
    "/sessions/{uuid:uuid}/branches/{int:number}/use",
    auth=needs(WRITE),
    response=SessionOut,
    url_name="session_branch_use",
)
async def use_branch(
    request: HttpRequest, uuid: UUID, number: Path[int]
) -> session_records.SessionRecord:
    """Go on from the branch with that turn, as it was when it was left. What was said since
    becomes a branch itself."""
    session, runtime, user_pk = await open_for_writing(request, uuid)
    await runtime.use_branch(session, turn=number, user_pk=user_pk)
    return await sync_to_async(session_records.read_session_record)(session.pk)


@router.post(
    "/sessions/{uuid:uuid}/turns/{int:number}/include",
    auth=needs(WRITE),
    response=SessionOut,
    url_name="turn_include",
)
async def include_turn(
    request: HttpRequest, uuid: UUID, number: Path[int]
) -> session_records.SessionRecord:
    """Give the model again a message that stands aside since the provider refused it, with what
    was refused together with it. The row of the type `info` with the code `set_aside` names the
    turns."""
    session, runtime, _ = await open_for_writing(request, uuid)
    await runtime.include_turn(session, turn=number)
    return await sync_to_async(session_records.read_session_record)(session.pk)


class ModelOut(Schema):
    """A model that a session can have as its ``model``. Limits are in tokens."""

    id: str
    name: str
    max_input_tokens: int
    max_output_tokens: int


@router.get(
    "/models", auth=needs(READ), response=Page[ModelOut], url_name="models", tags=["Models"]
)
def list_models_on_offer(request: HttpRequest) -> dict[str, Any]:
    """The models on offer."""
    return {"items": list_models()}


def require_model(model: str) -> None:
    """Raises Rejected for one that is not on offer."""
    if model not in {one.id for one in list_models()}:
        raise Rejected("This model is not available.", code="unknown_model")


def begun_as(start: SessionStart) -> dict[str, Any]:
    """For ``archive.sessions.create_session``. Raises Rejected."""
    if start.model:
        require_model(start.model)
    session_records.dump_metadata(start.metadata)
    session_records.require_future(start.expires_at)
    return {
        "title": start.title or "",
        "model": start.model or "",
        "instructions": start.instructions,
        "metadata": start.metadata,
        "expires_at": start.expires_at,
    }


def list_sessions_of(
    request: HttpRequest,
    slug: str | None,
    filters: SessionFilters,
    *,
    as_item: Callable[[session_records.SessionRecord], Any] = lambda record: record,
) -> dict[str, Any]:
    """A page of the sessions of a workspace, or of all (None) that the caller is in.
    Where somebody may not read what was said, nothing of it is shown."""
    if slug is None:
        workspaces = tuple(roles_of_person(caller_of(request).user.pk))
        is_member = True
    else:
        workspace, access = get_workspace_for(request, slug)
        workspaces, is_member = (workspace.pk,), access.role is not None
    walk = page_request_of(filters)
    wanted = filters.dict(include={"key", "channel", "archived", "expired", "parent"})
    found = session_records.list_session_records(
        session_records.SessionFilter(workspaces=workspaces, query=filters.q, **wanted),
        mark=parse_list_cursor(walk.place) if walk.place else None,
        is_back=walk.is_back,
        limit=walk.limit + 1,
    )
    return make_page(
        walk,
        found,
        as_item=lambda one: as_item(one if is_member else one.without_words()),
        place_of=lambda one: str(one.cursor),
    )


# Sessions by key: how another system finds its session again.

key_router = Router(tags=["Sessions by key"])

PATH = "/workspaces/{slug:slug}/keys/{path:key}"


@key_router.get(PATH, auth=needs(READ), response=SessionOut, url_name="session_by_key")
def get_session_by_key(request: HttpRequest, slug: str, key: str) -> session_records.SessionRecord:
    """The session of a key. One that has expired, or is to be purged, has it no more."""
    workspace, _ = get_workspace_for(request, slug)
    found = find_by_key(workspace, check_key(key))
    if found is None:
        raise NotFound("No session has this key.")
    session, _ = get_session_for(request, found.uuid)
    return session_records.read_session_record(session.pk)


@key_router.put(
    PATH, auth=needs(WRITE), response={200: SessionOut, 201: SessionOut}, url_name="session_by_key"
)
def open_session_by_key(
    request: HttpRequest,
    response: HttpResponse,
    slug: str,
    key: str,
    start: SessionStart | None = None,
) -> Status[session_records.SessionRecord]:
    """Find the session of a key, or begin it (201): at first use, and when the last one
    has expired; then that is its `parent`. The body counts for one that begins. Of any
    number of callers at once, one begins it."""
    workspace, _ = get_workspace_for(request, slug, to=TO_WRITE)
    begun = begun_as(start or SessionStart.model_validate({}))
    owner = caller_of(request).user
    session, is_new = open_by_key(workspace, key=check_key(key), owner=owner, **begun)
    return _located(response, session, status=201 if is_new else 200)


@key_router.post(PATH, auth=needs(WRITE), response={201: SessionOut}, url_name="session_by_key")
def begin_session_under_key(
    request: HttpRequest, response: HttpResponse, slug: str, key: str
) -> Status[session_records.SessionRecord]:
    """Begin a new session under a key. The one that had it stays as it is, without the
    key, and is the new one's `parent`."""
    workspace, _ = get_workspace_for(request, slug, to=TO_WRITE)
    session = begin_anew(workspace, key=check_key(key), owner=caller_of(request).user)
    belongs_to(request, session)
    return _located(response, session, status=201)


def _located(
    response: HttpResponse, session: Session, *, status: int
) -> Status[session_records.SessionRecord]:
    response["Location"] = reverse("api:session", args=[session.uuid])
    return Status(status, session_records.read_session_record(session.pk))
