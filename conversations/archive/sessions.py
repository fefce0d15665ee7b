"""Sessions: creating, finding, renaming, pinning and archiving them, and facts for the window."""

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

from .append import lock_session, read_row, require_first, walk_by_key
from .asides import MARKER_SQL
from .rights import may_write_sql, roles_of_person
from .workspaces import WorkspaceDir

# Expiry: an expired session cannot be continued. Nothing in it is deleted.


def is_over(now: datetime) -> Q:
    """Return a condition for sessions that have expired at ``now``."""
    return Q(expires_at__lte=now)


def is_current(now: datetime) -> Q:
    """Return a condition for sessions that have not expired at ``now``."""
    # The negation of ``is_over`` would leave out sessions that never expire.
    return Q(expires_at=None) | Q(expires_at__gt=now)


def has_expired(expires_at: datetime | None) -> bool:
    """Return whether a session with this expiry has expired."""
    return expires_at is not None and expires_at <= timezone.now()


def list_due(now: datetime) -> Iterator[Session]:
    """Yield the expired sessions whose expiry is not recorded yet, with their workspaces."""
    due = Session.objects.filter(is_over(now), expired_at=None)
    return walk_by_key(
        due.select_related("workspace").only("uuid", "expires_at", "key", "workspace__slug")
    )


def release_expired_key(session: UUID, *, now: datetime) -> bool:
    """Release the key of an expired session, and record its expiry.

    Return False if the session has not expired or its expiry is already recorded.
    """
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
    """Create a session.

    If ``expires_at`` is None, the workspace's setting determines when the session expires.
    ``continues`` is the session in whose place the new one continues. Raise IntegrityError if the
    key or UUID is taken.
    """
    uuid = uuid or uuid4()
    title = one_line(strip_invisible(storable(title)), limit=MAX_TITLE_CHARS)
    now = created_at or timezone.now()
    expires_at = expires_at or _first_expiry(workspace, now)
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


def _first_expiry(workspace: Workspace, now: datetime) -> datetime | None:
    hours = workspace.expire_after_hours
    return now + timedelta(hours=hours) if hours else None


def open_empty_session(
    workspace: Workspace, *, owner: User, is_taken: Callable[[Session], bool] | None = None
) -> Session:
    """Return a session without messages.

    This is the person's last unused session that is not taken, or a new one. The expiry of an
    unused session is set as for a new one.
    """
    now = timezone.now()
    unused = (
        Session.objects.filter(
            is_current(now),
            workspace=workspace,
            owner=owner,
            next_turn=1,
            next_seq=1,
            key=None,
            channel="web",  # a program's session could not quote other sessions
            instructions="",
            archived_at=None,
            title="",
            model=workspace.default_model,
        )
        .exclude(runs__isnull=False)
        .order_by("-id")
    )
    free = (session for session in unused if is_taken is None or not is_taken(session))
    session = next(free, None)
    expires_at = _first_expiry(workspace, now)
    if session is None:
        return create_session(workspace, owner=owner)
    if session.expires_at != expires_at:
        session.expires_at = expires_at
        Session.objects.filter(pk=session.pk).update(expires_at=expires_at)
    return session


def get_or_create_by_key(
    workspace: Workspace, *, key: str, owner: User, channel: str = "api", **columns: Any
) -> Session:
    """Return the session with this key and create it if needed, see :func:`open_by_key`."""
    return open_by_key(workspace, key=key, owner=owner, channel=channel, **columns)[0]


def open_by_key(
    workspace: Workspace, *, key: str, owner: User, channel: str = "api", **columns: Any
) -> tuple[Session, bool]:
    """Return the session with this key, and whether this call has created it.

    The session is created on first use without a race, with ``columns`` as further arguments of
    :func:`create_session`. A session that has expired or is scheduled for a purge counts as not
    found. ``channel`` is only used if the key does not name a channel itself.
    """
    session = find_by_key(workspace, key)
    if session is not None:
        return session, False
    to_be_purged = Session.objects.filter(workspace=workspace, key=key).exclude(purge_order=None)
    return _begin_under(key, workspace, owner, channel, columns, to_be_purged)


def begin_anew(
    workspace: Workspace, *, key: str, owner: User, channel: str = "api", **columns: Any
) -> Session:
    """Create a new session under a key that another session may have.

    The earlier session loses the key, otherwise stays as it is, and becomes the parent of the new
    one. ``columns`` holds further arguments of :func:`create_session`. If several callers do this
    at the same time, only one of them creates the session.
    """
    holders = Session.objects.filter(workspace=workspace, key=key)
    return _begin_under(key, workspace, owner, channel, columns, holders)[0]


def _begin_under(
    key: str,
    workspace: Workspace,
    owner: User,
    channel: str,
    columns: dict[str, Any],
    released: QuerySet[Session],
) -> tuple[Session, bool]:
    now = timezone.now()
    with_key = Session.objects.filter(workspace=workspace, key=key)
    try:
        with transaction.atomic():
            holder = with_key.first()
            for earlier in with_key.filter(is_over(now)).order_by("pk"):
                release_expired_key(earlier.uuid, now=now)
            released.update(former_key=F("key"), key=None)
            former = Session.objects.filter(workspace=workspace, former_key=key)
            session = create_session(
                workspace,
                owner=owner,
                key=key,
                channel=channel_of(key, otherwise=channel),
                # The last session that had the key. An imported session whose key was already taken
                # never had the key here.
                continues=holder
                or former.order_by(F("expired_at").desc(nulls_last=True), "-created_at").first(),
                **columns,
            )
            return session, True
    except IntegrityError:  # another caller has created the session
        return with_key.get(), False


def find_by_key(workspace: Workspace, key: str) -> Session | None:
    """Return the current session with this key, or None."""
    return next(iter(find_in_workspaces([workspace.pk], key)), None)


def find_in_workspaces(workspaces: Collection[int], key: str) -> list[Session]:
    """Return the current sessions with this key in these workspaces, which are primary keys."""
    sessions = Session.objects.select_related("workspace", "owner")
    with_key = sessions.filter(is_current(timezone.now()), workspace__in=workspaces, key=key)
    return list(with_key.filter(purge_order=None).order_by("pk"))


def get_session(uuid: UUID) -> Session:
    """Return a session. Raise NotFound if it does not exist.

    This does not check rights: entry points use ``access``.
    """
    sessions = Session.objects.select_related("workspace", "owner").filter(uuid=uuid)
    return require_first(sessions, say("This session does not exist."))


def refuse_purged(session_pk: int) -> None:
    """Raise Conflict if the session was purged.

    Call this after reading a session page by page, because after a purge the next page is empty, as
    it is after the last page.
    """
    if not Session.objects.filter(pk=session_pk).exists():
        text = say(
            "The session was permanently deleted while it was being read. The output is incomplete."
        )
        raise Conflict(text, code="session_purged")


def find_session(name: str) -> Session:
    """Return the session with this UUID, with a UUID that begins with this text, or with this key.

    Raise NotFound if there is none, and Rejected if there are several.
    """
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
        raise Rejected("Several sessions match. Enter the full UUID.")
    return found[0]


def rename_session(session: Session, *, title: str) -> str:
    """Set a title that a person has chosen. Raise Rejected if it is empty."""
    chosen = one_line(strip_invisible(storable(title)), limit=MAX_TITLE_CHARS)
    if not chosen:
        raise Rejected("A title must have at least one character.", code="title_empty")
    Session.objects.filter(pk=session.pk).update(title=chosen, title_is_chosen=True)
    return chosen


def read_untitled(session_pk: int) -> str | None:
    """Return the model of a session without a chosen title, or None if a title was chosen."""
    sessions = Session.objects.filter(pk=session_pk, title_is_chosen=False)
    return sessions.values_list("model", flat=True).first()


def choose_model(session: Session, *, model: str) -> None:
    Session.objects.filter(pk=session.pk).update(model=model)


def instruct_session(session: Session, *, instructions: str) -> None:
    """Set the session's own instructions, which apply from the next answer on."""
    Session.objects.filter(pk=session.pk).update(instructions=storable(instructions))


def pin_session(session: Session, *, pinned: bool) -> None:
    sessions = Session.objects.filter(pk=session.pk, pinned_at__isnull=pinned)
    sessions.update(pinned_at=timezone.now() if pinned else None)


def archive_session(session: Session, *, archived: bool) -> bool:
    """Archive or unarchive a session, and return whether this call archived it.

    Nothing is deleted. Raise Conflict when unarchiving a session that is scheduled for a purge,
    because the purge has to be cancelled first.
    """
    with transaction.atomic():
        lock_session(session.pk)
        if not archived and PurgeOrder.objects.filter(session=session.pk).exists():
            raise Conflict(
                "This session is scheduled for deletion. Cancel the deletion to unarchive it.",
                code="purge_ordered",
            )
        sessions = Session.objects.filter(pk=session.pk, archived_at__isnull=archived)
        return bool(sessions.update(archived_at=timezone.now() if archived else None)) and archived


def save_reading_position(session_pk: int, *, user_pk: int) -> None:
    """Record that the person has read all current turns."""
    position = ReadingPosition.objects.filter(session=session_pk, user=user_pk).values("turn")
    rows = Session.objects.filter(pk=session_pk).values_list(
        "next_turn", Subquery(position), Exists(User.objects.filter(pk=user_pk))
    )
    next_turn, read_turn, exists = rows.first() or (1, None, False)
    # If the session or the user was deleted meanwhile, an insert would fail, and with it everything
    # that is written in the same transaction.
    if not exists or read_turn == next_turn - 1:
        return
    ReadingPosition.objects.bulk_create(
        [ReadingPosition(session_id=session_pk, user_id=user_pk, turn=next_turn - 1)],
        update_conflicts=True,
        unique_fields=("user", "session"),
        update_fields=("turn",),
    )


def read_reading_position(session_pk: int, *, user_pk: int) -> int | None:
    """Return the last turn that the person has read, or None if they never opened the session."""
    row = read_row(
        "SELECT turn FROM conversations_readingposition WHERE session_id = %s AND user_id = %s",
        [session_pk, user_pk],
    )
    return None if row is None else int(row[0])


def save_system_prompt(session_pk: int, *, system_prompt: str) -> None:
    Session.objects.filter(pk=session_pk).exclude(system_prompt=system_prompt).update(
        system_prompt=system_prompt
    )


def save_floor(session_pk: int, *, floor: int) -> None:
    """Store the first turn of the window."""
    Session.objects.filter(pk=session_pk).update(floor_turn=floor)


# The SQL equivalent of ``Session.chosen_model``.
CHOSEN_MODEL_SQL = "COALESCE(NULLIF(s.model, ''), w.default_model)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFacts:
    """The facts about a session that are needed to assemble a window, with the SQL that reads them.

    ``root`` is the workspace's folder. ``strategy``, ``keep_recent``, ``high_water`` and
    ``low_water`` are the workspace's settings; an empty value or None stands for the installation's
    setting.
    """

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
        """Return which tools are offered to the person whose message is answered."""
        return ToolScope(
            workspace=self.workspace_slug,
            policy=self.tool_policy,
            may_change=bool(self.may_change),
            allows_network=bool(self.allows_network),
        )


def read_workspace_dir(session_pk: int) -> WorkspaceDir:
    """Return the folder of the session's workspace."""
    slug, root = Session.objects.values_list("workspace__slug", "workspace__root").get(
        pk=session_pk
    )
    return WorkspaceDir(workspace=slug, root=Path(root))


def read_window_facts(session_pk: int, *, user_pk: int | None = None) -> WindowFacts:
    """Return the facts for the window of a session.

    ``user_pk`` is the person whose message is answered. None stands for a program of the server,
    which has the rights of members. An inactive user may not change anything.
    """
    limits = [feature.has_call_limits_sql for feature in features() if feature.has_call_limits_sql]
    names = [column.name for column in fields(WindowFacts)]
    columns = [column.metadata["sql"] for column in fields(WindowFacts) if column.metadata]
    columns.append(" OR ".join(limits) or "FALSE")
    # This uses raw SQL because the query delays the first word of each answer.
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {', '.join(columns)} FROM conversations_session s"  # noqa: S608 (our own)
            " JOIN conversations_workspace w ON w.id = s.workspace_id WHERE s.id = %s",
            [*[user_pk] * 4, session_pk],
        )
        facts = dict(zip(names, cursor.fetchone(), strict=True))
    reads = facts["reads_instruction_files"]  # SQLite stores booleans as numbers
    facts["reads_instruction_files"] = None if reads is None else bool(reads)
    facts["root"] = Path(locate_folder(facts["root"]))
    return WindowFacts(**facts)


def open_first_session(user: User) -> Session | None:
    """Return the session in which a person's work begins.

    If the person has only one workspace, this is their latest session of the pages there, or an
    empty session. Return None if they have several workspaces or none, or may not write in the
    workspace.
    """
    roles = roles_of_person(user.pk)
    if len(roles) != 1 or VIEWER in roles.values():
        return None
    workspace = Workspace.objects.get(pk__in=roles)
    latest = Session.objects.filter(
        is_current(timezone.now()),
        workspace=workspace,
        owner=user.pk,
        key=None,
        channel="web",  # not a session of a program
        archived_at=None,
    ).first()
    return latest or open_empty_session(workspace, owner=user)
