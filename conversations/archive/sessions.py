"""Sessions: create, find, list, rename, pin, archive; the window's state."""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, F, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.messages import say
from conversations.domain.people import VIEWER
from conversations.domain.session_keys import channel_of
from conversations.domain.text import (
    dump_json,
    first_digest,
    is_storable,
    one_line,
    storable,
    strip_invisible,
)
from conversations.domain.tool_calls import ToolScope
from conversations.feature import features
from conversations.models import PurgeOrder, ReadingPosition, Session, Workspace
from conversations.models.fields import locate_folder

from .append import lock_session, read_row, require_first, walk_by_pk
from .asides import MARKER_SQL
from .rights import may_write_sql, roles_of_person
from .workspaces import WorkspaceDir

# Expiry: from a moment on a session is not gone on with. Nothing of it is removed.


def is_over(now: datetime) -> Q:
    """Of sessions that have expired by then."""
    return Q(expires_at__lte=now)


def is_current(now: datetime) -> Q:
    """Of sessions that have not expired by then."""
    # The negation of ``is_over`` would leave out those that never expire.
    return Q(expires_at=None) | Q(expires_at__gt=now)


def list_due(now: datetime) -> Iterator[Session]:
    """The expired sessions of which nobody took note yet, in order, with their workspaces."""
    due = Session.objects.filter(is_over(now), expired_at=None)
    return walk_by_pk(
        due.select_related("workspace").only("uuid", "expires_at", "key", "workspace__slug")
    )


def release_expired_key(session: UUID, *, now: datetime) -> bool:
    """Free the key of a session that has expired. False: it has not, or that was done."""
    with transaction.atomic():
        sessions = Session.objects.filter(is_over(now), uuid=session, expired_at=None)
        return bool(
            sessions.update(expired_at=now, former_key=Coalesce("key", "former_key"), key=None)
        )


MAX_TITLE_CHARS = 120

_UUID_START = re.compile(r"[0-9a-fA-F]{4}[0-9a-fA-F-]{0,31}")


def create_session(
    workspace: Workspace,
    *,
    owner: User,
    uuid: UUID | None = None,
    model: str = "",
    system_prompt: str = "",
    instructions: str = "",
    key: str | None = None,
    channel: str = "web",
    title: str = "",
    metadata: dict[str, Any] | None = None,
    created_at: datetime | None = None,
    expires_at: datetime | None = None,
    continues: Session | None = None,
) -> Session:
    """Start a session, which expires as the workspace has it unless ``expires_at`` is
    given. ``continues`` is the one in whose place it goes on. Raises IntegrityError when
    the key or uuid is taken."""
    uuid = uuid or uuid4()
    title = one_line(strip_invisible(storable(title)), limit=MAX_TITLE_CHARS)
    now = created_at or timezone.now()
    expires_at = expires_at or _expiry_of_new(workspace, now)
    return Session.objects.create(
        uuid=uuid,
        workspace=workspace,
        owner=owner,
        model=model or workspace.default_model,
        system_prompt=system_prompt,
        instructions=storable(instructions),
        key=key,
        channel=channel,
        title=title,
        title_is_chosen=bool(title),
        metadata=dump_json(metadata or {}),
        turn_digest=first_digest(uuid, chain="turns"),
        event_digest=first_digest(uuid, chain="events"),
        created_at=now,
        last_active_at=now,
        expires_at=expires_at,
        parent=continues,
    )


def _expiry_of_new(workspace: Workspace, now: datetime) -> datetime | None:
    hours = workspace.expire_after_hours
    return now + timedelta(hours=hours) if hours else None


def open_empty_session(
    workspace: Workspace, *, owner: User, is_taken: Callable[[Session], bool] | None = None
) -> Session:
    """A session without any message yet: the person's last unused one that is not taken, which
    expires as if it were new, or a new one."""
    now = timezone.now()
    unused = (
        Session.objects.filter(
            is_current(now),
            workspace=workspace,
            owner=owner,
            next_turn=1,
            next_seq=1,
            key=None,
            channel="web",  # one of a program would quote itself only
            instructions="",
            archived_at=None,
            title="",
            model=workspace.default_model,
        )
        .exclude(runs__isnull=False)
        .order_by("-id")
    )
    free = (session for session in unused if is_taken is None or not is_taken(session))
    found, expires_at = next(free, None), _expiry_of_new(workspace, now)
    if found is None:
        return create_session(workspace, owner=owner)
    if found.expires_at != expires_at:
        found.expires_at = expires_at
        Session.objects.filter(pk=found.pk).update(expires_at=expires_at)
    return found


def get_or_create_by_key(
    workspace: Workspace, *, key: str, owner: User, channel: str = "api", **begun: Any
) -> Session:
    """The same as :func:`open_by_key`, for who need not know whether it is new."""
    return open_by_key(workspace, key=key, owner=owner, channel=channel, **begun)[0]


def open_by_key(
    workspace: Workspace, *, key: str, owner: User, channel: str = "api", **begun: Any
) -> tuple[Session, bool]:
    """The session with this key, created without a race on first use, as ``begun`` says
    (see :func:`create_session`), and whether this call has created it. One that has
    expired, or of which a purge is ordered, counts as not found. A key names its ``channel``
    itself; that counts for one that does not."""
    found = find_by_key(workspace, key)
    if found is not None:
        return found, False
    ordered = Session.objects.filter(workspace=workspace, key=key).exclude(purge_order=None)
    return _begin_under(key, workspace, owner, channel, begun, ordered)


def begin_anew(
    workspace: Workspace, *, key: str, owner: User, channel: str = "api", **begun: Any
) -> Session:
    """A new session under a key, as ``begun`` says (see :func:`create_session`): the one
    that had it stays as it is, without the key, and is continued. Of several callers at
    once, one begins it."""
    had_it = Session.objects.filter(workspace=workspace, key=key)
    return _begin_under(key, workspace, owner, channel, begun, had_it)[0]


def _begin_under(
    key: str,
    workspace: Workspace,
    owner: User,
    channel: str,
    begun: dict[str, Any],
    released: QuerySet[Session],
) -> tuple[Session, bool]:
    now = timezone.now()
    of_key = Session.objects.filter(workspace=workspace, key=key)
    try:
        with transaction.atomic():
            held = of_key.first()
            for earlier in of_key.filter(is_over(now)).order_by("pk"):
                release_expired_key(earlier.uuid, now=now)
            released.update(former_key=F("key"), key=None)
            had_it = Session.objects.filter(workspace=workspace, former_key=key)
            new = create_session(
                workspace,
                owner=owner,
                key=key,
                channel=channel_of(key, otherwise=channel),
                # The one that has had it last. Those that were imported without it, since it was
                # taken, never had it here.
                continues=held
                or had_it.order_by(F("expired_at").desc(nulls_last=True), "-created_at").first(),
                **begun,
            )
            return new, True
    except IntegrityError:  # another caller was first
        return of_key.get(), False


def find_by_key(workspace: Workspace, key: str) -> Session | None:
    """The session that is to be gone on with under this key."""
    return next(iter(find_in_workspaces([workspace.pk], key)), None)


def find_in_workspaces(workspaces: Collection[int], key: str) -> list[Session]:
    """The same in each of these workspaces (keys)."""
    sessions = Session.objects.select_related("workspace", "owner")
    of_key = sessions.filter(is_current(timezone.now()), workspace__in=workspaces, key=key)
    return list(of_key.filter(purge_order=None).order_by("pk"))


def get_session(uuid: UUID) -> Session:
    """Raises NotFound. Authorises nobody: entry points use ``access``."""
    sessions = Session.objects.select_related("workspace", "owner").filter(uuid=uuid)
    return require_first(sessions, say("This session does not exist."))


def refuse_purged(session_pk: int) -> None:
    """For the end of what was read a page at a time: after a purge the next page is empty, as
    after the last one. Raises Conflict."""
    if not Session.objects.filter(pk=session_pk).exists():
        text = say("The session was purged while it was read. What was read is not all of it.")
        raise Conflict(text, code="session_purged")


def find_session(name: str) -> Session:
    """The session of this uuid, of a uuid that begins so, or of this key. Raises
    NotFound, and Rejected where it could be several."""
    try:
        return get_session(UUID(name))
    except (ValueError, NotFound):
        named = Q(key=name)
    if _UUID_START.fullmatch(name):
        named |= Q(uuid__istartswith=name)
    sessions = Session.objects.select_related("workspace", "owner")
    found = list(sessions.filter(named).order_by("pk")[:2]) if is_storable(name) else []
    if not found:
        raise NotFound("This session does not exist.")
    if len(found) > 1:
        raise Rejected("Several sessions match: give the whole UUID.")
    return found[0]


def rename_session(session: Session, *, title: str) -> str:
    """Give the session a title of the person's choice; empty is refused."""
    chosen = one_line(strip_invisible(storable(title)), limit=MAX_TITLE_CHARS)
    if not chosen:
        raise Rejected("A title must have at least one character.", code="title_empty")
    Session.objects.filter(pk=session.pk).update(title=chosen, title_is_chosen=True)
    return chosen


def read_untitled(session_pk: int) -> str | None:
    """The model of a session whose title nobody has chosen; None for one with a chosen
    title."""
    found = Session.objects.filter(pk=session_pk, title_is_chosen=False)
    return found.values_list("model", flat=True).first()


def choose_model(session: Session, *, model: str) -> None:
    Session.objects.filter(pk=session.pk).update(model=model)


def instruct_session(session: Session, *, instructions: str) -> None:
    """Give the session other instructions of its own, from the next answer on."""
    Session.objects.filter(pk=session.pk).update(instructions=storable(instructions))


def pin_session(session: Session, *, pinned: bool) -> None:
    found = Session.objects.filter(pk=session.pk, pinned_at__isnull=pinned)
    found.update(pinned_at=timezone.now() if pinned else None)


def archive_session(session: Session, *, archived: bool) -> bool:
    """Take a session off the list (True: it was on it), or bring it back. Nothing is removed.
    Raises Conflict for bringing back one whose purge is ordered: that has to be called off."""
    with transaction.atomic():
        lock_session(session.pk)
        if not archived and PurgeOrder.objects.filter(session=session.pk).exists():
            raise Conflict(
                "This session is scheduled for deletion. Cancel the deletion to unarchive it.",
                code="purge_ordered",
            )
        found = Session.objects.filter(pk=session.pk, archived_at__isnull=archived)
        return bool(found.update(archived_at=timezone.now() if archived else None)) and archived


def save_reading_position(session_pk: int, *, user_pk: int) -> None:
    """The person has read all that is there now."""
    known = ReadingPosition.objects.filter(session=session_pk, user=user_pk).values("turn")
    found = Session.objects.filter(pk=session_pk).values_list(
        "next_turn", Subquery(known), Exists(User.objects.filter(pk=user_pk))
    )
    next_turn, read, is_there = found.first() or (1, None, False)
    # Either may be gone meanwhile, which would fail with all that is written together with it.
    if not is_there or read == next_turn - 1:
        return
    ReadingPosition.objects.bulk_create(
        [ReadingPosition(session_id=session_pk, user_id=user_pk, turn=next_turn - 1)],
        update_conflicts=True,
        unique_fields=("user", "session"),
        update_fields=("turn",),
    )


def read_reading_position(session_pk: int, *, user_pk: int) -> int | None:
    """The last turn that the person has read; None: they never had the session open."""
    row = read_row(
        "SELECT turn FROM conversations_readingposition WHERE session_id = %s AND user_id = %s",
        [session_pk, user_pk],
    )
    return None if row is None else int(row[0])


def save_system_prompt(session_pk: int, *, system_prompt: str) -> None:
    Session.objects.filter(pk=session_pk).exclude(system_prompt=system_prompt).update(
        system_prompt=system_prompt
    )


def has_expired(expires_at: datetime | None) -> bool:
    """Whether a session that expires then has done so by now."""
    return expires_at is not None and expires_at <= timezone.now()


def save_floor(session_pk: int, *, floor: int) -> None:
    """Remember where the window starts."""
    Session.objects.filter(pk=session_pk).update(floor_turn=floor)


# ``Session.chosen_model``, in queries that do not make objects.
CHOSEN_MODEL_SQL = "COALESCE(NULLIF(s.model, ''), w.default_model)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFacts:
    """What assembling a window needs to know of a session, and from where. ``root`` is the
    workspace's folder; ``strategy`` and what follows are the workspace's rules; empty
    or None: the installation's."""

    floor: int = field(metadata={"sql": "s.floor_turn"})
    system_prompt: str = field(metadata={"sql": "s.system_prompt"})
    workspace_name: str = field(metadata={"sql": "w.name"})
    root: Path = field(metadata={"sql": "w.root"})
    instructions: str = field(metadata={"sql": "w.instructions"})
    own_instructions: str = field(metadata={"sql": "s.instructions"})
    rewinds: int = field(metadata={"sql": "s.rewind_count"})
    model: str = field(metadata={"sql": CHOSEN_MODEL_SQL})
    reads_instruction_files: bool | None = field(metadata={"sql": "w.reads_instruction_files"})
    context_limit: int = field(metadata={"sql": "s.context_limit"})
    token_ratio: float = field(metadata={"sql": "s.token_ratio"})
    token_model: str = field(metadata={"sql": "s.token_model"})
    strategy: str = field(metadata={"sql": "w.window_strategy"})
    keep_recent: int | None = field(metadata={"sql": "w.keep_recent"})
    high_water: int | None = field(metadata={"sql": "w.high_water"})
    low_water: int | None = field(metadata={"sql": "w.low_water"})
    has_compactions: bool = field(
        metadata={
            "sql": "EXISTS(SELECT 1 FROM conversations_compaction c WHERE c.session_id = s.id)"
        }
    )
    has_skills: bool = field(
        metadata={
            "sql": "EXISTS(SELECT 1 FROM conversations_sessionskill k WHERE k.session_id = s.id)"
        }
    )
    has_asides: bool = field(
        metadata={
            "sql": "EXISTS(SELECT 1 FROM conversations_turn t"  # noqa: S608 (our own)
            f" WHERE t.session_id = s.id AND {MARKER_SQL})"
        }
    )
    has_parent: bool = field(metadata={"sql": "s.parent_id IS NOT NULL"})
    context_tokens: int = field(metadata={"sql": "s.context_tokens"})
    workspace_slug: str = field(metadata={"sql": "w.slug"})
    tool_policy: str = field(metadata={"sql": "w.tool_policy"})
    allows_network: bool = field(metadata={"sql": "w.allows_network"})
    may_change: bool = field(
        metadata={
            "sql": "CAST(%s AS bigint) IS NULL"  # noqa: S608 (our own)
            " OR EXISTS(SELECT 1 FROM auth_user u WHERE u.id = %s AND u.is_active)"
            f" AND {may_write_sql('w.id')}"
        }
    )
    has_call_limits: bool

    @property
    def scope(self) -> ToolScope:
        """Which tools are on offer to the person whose message is answered."""
        return ToolScope(
            workspace=self.workspace_slug,
            policy=self.tool_policy,
            may_change=bool(self.may_change),
            allows_network=bool(self.allows_network),
        )


def read_workspace_dir(session_pk: int) -> WorkspaceDir:
    """Of the session's workspace."""
    slug, root = Session.objects.values_list("workspace__slug", "workspace__root").get(
        pk=session_pk
    )
    return WorkspaceDir(workspace=slug, root=Path(root))


def read_window_facts(session_pk: int, *, user_pk: int | None = None) -> WindowFacts:
    """``user_pk`` is the person whose message is answered; None: a program of the server,
    which may what members may. A closed account may change nothing."""
    limits = [one.has_call_limits_sql for one in features() if one.has_call_limits_sql]
    names = [one.name for one in fields(WindowFacts)]
    columns = [one.metadata["sql"] for one in fields(WindowFacts) if one.metadata]
    columns.append(" OR ".join(limits) or "FALSE")
    # Raw SQL, because every first word waits for it.
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {', '.join(columns)} FROM conversations_session s"  # noqa: S608 (our own)
            " JOIN conversations_workspace w ON w.id = s.workspace_id WHERE s.id = %s",
            [*[user_pk] * 4, session_pk],
        )
        facts = dict(zip(names, cursor.fetchone(), strict=True))
    reads = facts["reads_instruction_files"]  # SQLite's truths are numbers
    facts["reads_instruction_files"] = None if reads is None else bool(reads)
    facts["root"] = Path(locate_folder(facts["root"]))
    return WindowFacts(**facts)


def open_first_session(user: User) -> Session | None:
    """The chat to begin in: the latest session of the pages, or an empty one, of the person's
    only workspace. None when they have several or none, or may not write there."""
    roles = roles_of_person(user.pk)
    if len(roles) != 1 or VIEWER in roles.values():
        return None
    workspace = Workspace.objects.get(pk__in=roles)
    latest = Session.objects.filter(
        is_current(timezone.now()),
        workspace=workspace,
        owner=user.pk,
        key=None,
        channel="web",  # not one of a program
        archived_at=None,
    ).first()
    return latest or open_empty_session(workspace, owner=user)
