"""API operations of sessions, their branches and their keys, and of models."""

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
from conversations.domain.errors import Conflict, NotFound
from conversations.domain.keyset import parse_list_cursor
from conversations.domain.session_keys import (
    MAX_KEY_CHARS,
    MEMBER_CHANNELS,
    channel_of,
    check_key,
)
from conversations.models import Session
from conversations.runtime.current import (
    announce,
    compact_at_end,
    list_models,
    model_of,
    require_model,
)

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
    """A session.

    ``state`` is the state of its run, or ``idle``. ``turns`` is the highest number of a turn, and
    ``events`` is the highest ``seq`` of an event. ``key`` is the session's key, or the key that it
    had until it expired. ``parent`` is the expired session that this one continues, or the session
    from which it was forked. Costs are in millionths of a US dollar.
    """

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
    """Filters of a list of sessions. A filter that is missing does not limit the list."""

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
    """The values of a new session. All fields are optional."""

    title: Title | None = None
    model: ShortText | None = Field(None, description="One of the available models.")
    instructions: LongText = Field("", description="For the model, in this session only.")
    metadata: Metadata = Field(default_factory=dict, description="At most 65,536 characters.")
    expires_at: Moment | None = Field(None, description="Null: the workspace's default.")


class NewSession(SessionStart):
    """The values of a new session. All fields are optional.

    ``key`` is unique in the workspace. The default of ``channel`` is the first part of the key.
    """

    key: str | None = Field(None, max_length=MAX_KEY_CHARS, examples=["cli:default"])
    channel: Channel | None = None
    messages: list[dict[str, Any]] = Field(
        default_factory=list,
        description="An earlier history, including its system messages. It is not answered.",
    )
    format: FormatName = Field("anthropic", description="The format of `messages`.")


class SessionPatch(Schema):
    """Changes of a session. Fields that are missing keep their value.

    ``metadata`` is merged: its names are set, and names whose value is null are removed. If
    ``expires_at`` is null, the session never expires.
    """

    title: Title | None = None
    model: ShortText | None = None
    archived: bool | None = None
    pinned: bool | None = None
    metadata: Metadata | None = None
    expires_at: Moment | None = None


class RewindIn(Schema):
    """The first turn that is taken back: a message of a person, or 1 for all turns."""

    from_turn: int = Field(ge=1, le=MAX_NUMBER)


@router.get("/sessions", auth=needs(READ), response=Page[SessionOut], url_name="sessions")
def list_all_sessions(request: HttpRequest, filters: Query[AllFilters]) -> dict[str, Any]:
    """List the sessions of your workspaces, the latest active first."""
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
    """List the sessions of one workspace, the latest active first."""
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
    values = begun_as(new)
    key = new.key and check_key(new.key)
    history = prepare_messages(new.messages, format=new.format, model=new.model or "")
    channel = new.channel or channel_of(key or "", otherwise="api")
    owner = caller_of(request).user
    try:
        with transaction.atomic():
            session = create_session(workspace, owner=owner, key=key, channel=channel, **values)
            import_history(session, history, user_pk=owner.pk)
    except IntegrityError as error:
        raise Conflict("Another session already has this key.", code="key_taken") from error
    belongs_to(request, session)
    return _located(response, session, status=201)


@router.get("/sessions/{uuid:uuid}", auth=needs(READ), response=SessionOut, url_name="session")
def get_one_session(request: HttpRequest, uuid: UUID) -> session_records.SessionRecord:
    """Return one session, with its counters, state and parent."""
    session, _ = get_session_for(request, uuid)
    return session_records.read_session_record(session.pk)


@router.patch("/sessions/{uuid:uuid}", auth=needs(WRITE), response=SessionOut, url_name="session")
def change_one_session(
    request: HttpRequest, uuid: UUID, patch: SessionPatch
) -> session_records.SessionRecord:
    """Change the given fields. If one value is refused, none is changed."""
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
    """Take back a message and everything after it.

    The archive keeps these turns, but they are no longer given to the model.
    """
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
    """Fork a session: create one of your own that begins with the turns up to this one.

    At most the last 2,000 of these turns are copied. The new session has the old one as its
    ``parent``. It has the same ``channel``, or ``api`` if only members read that channel.
    """
    session, _ = get_session_for(request, uuid, to=TO_WRITE)
    # A program may pass on answers to anybody, so the fork gets no channel of members.
    channel = "api" if session.channel in MEMBER_CHANNELS else session.channel
    fork = fork_session(session, turn=number, owner=caller_of(request).user, channel=channel)
    belongs_to(request, fork)
    return Status(201, session_records.read_session_record(fork.pk))


class BranchOut(Schema):
    """A branch of a session that is not the active path.

    ``turn`` is its first turn that is not on the active path. ``tip`` is its last turn, and
    ``turns`` is the number of turns from ``turn`` to ``tip``. ``begins`` is the beginning of the
    first turn's text. ``left_at`` is when the branch was left, and ``reason`` is ``edit``,
    ``regenerate``, ``reset``, ``undo`` or ``switch``.
    """

    turn: int
    tip: int
    turns: int
    role: str
    begins: str
    left_at: datetime
    reason: str


class BranchesOut(Schema):
    """At most 100 branches, the latest first."""

    items: list[BranchOut]


@router.get(
    "/sessions/{uuid:uuid}/branches",
    auth=needs(READ),
    response=BranchesOut,
    url_name="session_branches",
)
def list_session_branches(request: HttpRequest, uuid: UUID) -> dict[str, list[LeftBranch]]:
    """List the branches that were left by an edit, a new answer or a rewind."""
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
    """Switch to the branch with this turn, as it was when it was left.

    Turns of the active path that are not part of that branch become a branch themselves.
    """
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
    """Give the model again a message that was set aside, because the provider refused it.

    Turns that were refused together with the message are included, too. The row of the type `info`
    with the code `set_aside` names the turns.
    """
    session, runtime, _ = await open_for_writing(request, uuid)
    await runtime.include_turn(session, turn=number)
    return await sync_to_async(session_records.read_session_record)(session.pk)


class ModelOut(Schema):
    """A model that can be the ``model`` of a session. Limits are in tokens."""

    id: str
    name: str
    max_input_tokens: int
    max_output_tokens: int


@router.get(
    "/models", auth=needs(READ), response=Page[ModelOut], url_name="models", tags=["Models"]
)
def list_models_on_offer(request: HttpRequest) -> dict[str, Any]:
    """List the available models."""
    return {"items": list_models()}


def begun_as(start: SessionStart) -> dict[str, Any]:
    """Return arguments for ``archive.sessions.create_session``. Raise Rejected if any is bad."""
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
    """Return a page of the sessions of a workspace, or of all the caller's workspaces (None).

    Texts from sessions are left out if the caller is not a member of the workspace.
    """
    if slug is None:
        workspaces = tuple(roles_of_person(caller_of(request).user.pk))
        is_member = True
    else:
        workspace, access = get_workspace_for(request, slug)
        workspaces = (workspace.pk,)
        is_member = access.role is not None
    walk = page_request_of(filters)
    conditions = filters.dict(include={"key", "channel", "archived", "expired", "parent"})
    records = session_records.list_session_records(
        session_records.SessionFilter(workspaces=workspaces, query=filters.q, **conditions),
        mark=parse_list_cursor(walk.place) if walk.place else None,
        is_back=walk.is_back,
        limit=walk.limit + 1,
    )
    return make_page(
        walk,
        records,
        as_item=lambda record: as_item(record if is_member else record.without_words()),
        place_of=lambda record: str(record.cursor),
    )


# Sessions by key, for programs that find their session again by a name of their own.

key_router = Router(tags=["Sessions by key"])

PATH = "/workspaces/{slug:slug}/keys/{path:key}"


@key_router.get(PATH, auth=needs(READ), response=SessionOut, url_name="session_by_key")
def get_session_by_key(request: HttpRequest, slug: str, key: str) -> session_records.SessionRecord:
    """Return the session with a key.

    A session that has expired, or whose purge is ordered, is not found by its key.
    """
    workspace, _ = get_workspace_for(request, slug)
    keyed = find_by_key(workspace, check_key(key))
    if keyed is None:
        raise NotFound("No session has this key.")
    session, _ = get_session_for(request, keyed.uuid)
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
    """Return the session with a key, or begin it (201).

    A session is begun at first use, and when the last one has expired, which is then its `parent`.
    The body applies only to a session that is begun. If several callers send this request at once,
    only one session is begun.
    """
    workspace, _ = get_workspace_for(request, slug, to=TO_WRITE)
    values = begun_as(start or SessionStart.model_validate({}))
    owner = caller_of(request).user
    session, is_new = open_by_key(workspace, key=check_key(key), owner=owner, **values)
    return _located(response, session, status=201 if is_new else 200)


@key_router.post(PATH, auth=needs(WRITE), response={201: SessionOut}, url_name="session_by_key")
def begin_session_under_key(
    request: HttpRequest, response: HttpResponse, slug: str, key: str
) -> Status[session_records.SessionRecord]:
    """Begin a new session under a key.

    The session that had the key loses it, is otherwise not changed, and becomes the new session's
    `parent`.
    """
    workspace, _ = get_workspace_for(request, slug, to=TO_WRITE)
    session = begin_anew(workspace, key=check_key(key), owner=caller_of(request).user)
    belongs_to(request, session)
    return _located(response, session, status=201)


def _located(
    response: HttpResponse, session: Session, *, status: int
) -> Status[session_records.SessionRecord]:
    response["Location"] = reverse("api:session", args=[session.uuid])
    return Status(status, session_records.read_session_record(session.pk))
