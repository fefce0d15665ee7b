"""Finding or creating the session, workspace and owner of an imported session."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from django.contrib.auth.models import User
from django.utils import timezone
from django.utils.text import slugify

from conversations.archive.rights import role_of
from conversations.archive.workspaces import add_member, create_workspace
from conversations.domain.messages import say
from conversations.domain.text import first_digest, one_line, strip_invisible
from conversations.models import Membership, Session, Workspace

from .fields import NAMESPACE, SessionLine, UnusableLine, add_metadata, parse_moment, parse_object

IMPORTED_SLUG = "imported"  # The workspace of sessions that name none.

MAX_SLUG_CHARS = 60
MAX_TITLE_CHARS = 200

type Tell = Callable[[str], None]
"""A function that reports a warning about the session's line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTarget:
    """The destination of an import.

    ``owner`` and ``workspace`` override those in a file. ``default_owner`` gets sessions whose
    owner has no account. New workspaces get a folder below ``root``. If ``is_confined``, rows are
    added only to sessions of ``owner`` in ``workspace``; a session in the file whose uuid belongs
    to a session elsewhere gets a uuid of its own."""

    default_owner: User
    root: Path
    owner: User | None = None
    workspace: Workspace | None = None
    is_confined: bool = False

    def may_add_to(self, session: Session) -> bool:
        return not self.is_confined or (
            session.workspace_id == getattr(self.workspace, "pk", None)
            and session.owner_id == getattr(self.owner, "pk", None)
        )

    def resolve(self, uuid: UUID) -> UUID:
        """Return the uuid that the archive uses for a session with this uuid in a file."""
        if not self.is_confined:
            return uuid
        session = Session.objects.filter(uuid=uuid).first()
        if session is None or self.may_add_to(session):
            return uuid
        return uuid5(uuid, f"{self.workspace and self.workspace.slug} {self.owner}")

    def find_session(
        self, header: SessionLine, *, unnamed: UUID, following: bytes, warn: Tell
    ) -> tuple[Session, bool]:
        """Return the session of a session line, and whether it was created.

        If the line has no uuid, the session is found by its key. If it has no key either, the
        session has the uuid ``unnamed``. ``following`` is the line after the session line. Raise
        UnusableLine if the session may not be added to."""
        owner = self.owner
        if owner is None and header.owner:
            owner = User.objects.filter(username=header.owner).first()
        owner = owner or self.default_owner
        workspace = self.workspace or self._find_workspace(header.workspace, owner, warn)
        uuid, key = header.uuid, header.columns["key"]
        if uuid is None and key is not None:
            session = Session.objects.filter(workspace=workspace, key=key).first()
            if session is not None and self.may_add_to(session):
                return session, False
            if session is None:
                uuid = uuid5(NAMESPACE, f"key {workspace.slug} {key}")
        uuid = self.resolve(uuid or unnamed)
        session = Session.objects.filter(uuid=uuid).first()
        if session is None:
            return self._create(uuid, header, workspace, owner, following, warn), True
        if not self.may_add_to(session):
            raise UnusableLine("another person's session has its UUID")
        return session, False

    def _find_workspace(self, name: str, owner: User, warn: Tell) -> Workspace:
        slug = slugify(name)[:MAX_SLUG_CHARS].strip("-_") or IMPORTED_SLUG
        workspace = Workspace.objects.filter(slug=slug).first()
        if workspace is not None:
            return workspace
        folder = self.root / slug
        folder.mkdir(parents=True, exist_ok=True)
        message = say(
            "created the workspace %(workspace)s on the folder %(folder)s",
            workspace=slug,
            folder=str(folder),
        )
        warn(message)
        return create_workspace(root=folder.resolve(), name=slug, slug=slug, owner=owner)

    def _create(
        self,
        uuid: UUID,
        header: SessionLine,
        workspace: Workspace,
        owner: User,
        following: bytes,
        warn: Tell,
    ) -> Session:
        extra: dict[str, Any] = {}
        columns = dict(header.columns)
        key = columns["key"]
        if key is not None and Session.objects.filter(workspace=workspace, key=key).exists():
            warn(say("another session of the workspace has its key; imported without a key"))
            # A program with the key may have read the session, and ``former_key`` keeps it from
            # being treated as one that only members read.
            extra["original_key"] = columns["former_key"] = key
            columns["key"] = None
        if header.owner and header.owner != owner.username:
            extra["original_owner"] = header.owner
            if self.owner is None:
                message = say(
                    "its owner %(owner)s has no account here; it belongs to %(other)s",
                    owner=header.owner,
                    other=owner.username,
                )
                warn(message)
        if header.workspace and header.workspace != workspace.slug:
            extra["original_workspace"] = header.workspace
        # An owner whom the operator names becomes a member. A name in a file gives no access.
        if role_of(workspace, owner.pk) is None:
            if self.is_confined:
                raise UnusableLine("its owner is no longer a member of the workspace")
            if owner == self.owner:
                add_member(workspace, user_pk=owner.pk, role=Membership.Role.MEMBER)
            else:
                message = say(
                    "its owner %(owner)s is not a member of the workspace %(workspace)s",
                    owner=owner.username,
                    workspace=workspace.slug,
                )
                warn(message)
        created_at = columns["created_at"] or _time_of_row(following) or timezone.now()
        columns |= {
            "title": one_line(strip_invisible(columns["title"]), limit=MAX_TITLE_CHARS),
            "floor_turn": max(1, columns["floor_turn"]),
            "created_at": created_at,
            "last_active_at": columns["last_active_at"] or created_at,
            "metadata": add_metadata(columns["metadata"], extra),
        }
        if workspace.retention_days is not None:  # else retention might delete the new session
            columns["last_active_at"] = timezone.now()
        return Session.objects.create(
            uuid=uuid,
            workspace=workspace,
            owner=owner,
            turn_digest=first_digest(uuid, chain="turns"),
            event_digest=first_digest(uuid, chain="events"),
            **columns,
        )


def _time_of_row(line: bytes) -> datetime | None:
    """Return the time in the line of a turn or an event, or None if it has none."""
    try:
        row = parse_object(line)
    except UnusableLine:
        return None
    return None if row.get("type") == "session" else parse_moment(row.get("created_at"))
