"""Where an imported session goes: its workspace, its owner, the session itself."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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
"""Says something about the session's line that the operator should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTarget:
    """``owner`` and ``workspace`` win over what a file says; ``default_owner`` gets
    sessions whose owner nobody knows. New workspaces get a folder below ``root``.
    ``is_confined``: whatever the file says, only sessions of ``owner`` in ``workspace`` are
    added to; one that has another's uuid gets a uuid of its own."""

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
        """The uuid in the archive of the session that a file calls so."""
        if not self.is_confined:
            return uuid
        known = Session.objects.filter(uuid=uuid).first()
        if known is None or self.may_add_to(known):
            return uuid
        return uuid5(uuid, f"{self.workspace and self.workspace.slug} {self.owner}")

    def find_session(
        self, header: SessionLine, *, unnamed: UUID, following: bytes, warn: Tell
    ) -> tuple[Session, bool]:
        """The session that a line means, and whether it was made for it. A line without a
        uuid means the session with its key; without a key, the one with the uuid ``unnamed``.
        ``following`` is the line after it."""
        owner = self.owner
        if owner is None and header.owner:
            owner = User.objects.filter(username=header.owner).first()
        owner = owner or self.default_owner
        workspace = self.workspace or self._find_workspace(header.workspace, owner, warn)
        uuid, key = header.uuid, header.columns["key"]
        if uuid is None and key is not None:
            known = Session.objects.filter(workspace=workspace, key=key).first()
            if known is not None and self.may_add_to(known):
                return known, False
            if known is None:
                uuid = uuid5(NAMESPACE, f"key {workspace.slug} {key}")
        uuid = self.resolve(uuid or unnamed)
        known = Session.objects.filter(uuid=uuid).first()
        if known is None:
            return self._create(uuid, header, workspace, owner, following, warn), True
        if not self.may_add_to(known):
            raise UnusableLine("another person's session has its UUID")
        return known, False

    def _find_workspace(self, name: str, owner: User, warn: Tell) -> Workspace:
        slug = slugify(name)[:MAX_SLUG_CHARS].strip("-_") or IMPORTED_SLUG
        found = Workspace.objects.filter(slug=slug).first()
        if found is not None:
            return found
        folder = self.root / slug
        folder.mkdir(parents=True, exist_ok=True)
        told = say(
            "created the workspace %(workspace)s on the folder %(folder)s",
            workspace=slug,
            folder=str(folder),
        )
        warn(told)
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
            # Whoever holds the key may have read it: it is no session for members alone.
            extra["original_key"] = columns["former_key"] = key
            columns["key"] = None
        if header.owner and header.owner != owner.username:
            extra["original_owner"] = header.owner
            if self.owner is None:
                told = say(
                    "its owner %(owner)s has no account here; it belongs to %(other)s",
                    owner=header.owner,
                    other=owner.username,
                )
                warn(told)
        if header.workspace and header.workspace != workspace.slug:
            extra["original_workspace"] = header.workspace
        # Whom the operator names as owner may take part; a name in a file gives nobody access.
        if role_of(workspace, owner.pk) is None:
            if self.is_confined:
                raise UnusableLine("its owner is no longer a member of the workspace")
            if owner == self.owner:
                add_member(workspace, user_pk=owner.pk, role=Membership.Role.MEMBER)
            else:
                told = say(
                    "its owner %(owner)s is not a member of the workspace %(workspace)s",
                    owner=owner.username,
                    workspace=workspace.slug,
                )
                warn(told)
        created_at = columns["created_at"]
        if created_at is None:  # when the first row was written
            with suppress(UnusableLine):
                row = parse_object(following)
                if row.get("type") != "session":
                    created_at = parse_moment(row.get("created_at"))
            created_at = created_at or timezone.now()
        columns |= {
            "title": one_line(strip_invisible(columns["title"]), limit=MAX_TITLE_CHARS),
            "floor_turn": max(1, columns["floor_turn"]),
            "created_at": created_at,
            "last_active_at": columns["last_active_at"] or created_at,
            "metadata": add_metadata(columns["metadata"], extra),
        }
        if workspace.retention_days is not None:  # or the policy would delete what has just come
            columns["last_active_at"] = timezone.now()
        return Session.objects.create(
            uuid=uuid,
            workspace=workspace,
            owner=owner,
            turn_digest=first_digest(uuid, chain="turns"),
            event_digest=first_digest(uuid, chain="events"),
            **columns,
        )
