"""Where an imported session goes: its workspace, its owner, the session itself."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from django.contrib.auth.models import User
from django.utils import timezone
from django.utils.text import slugify

from conversations.archive.rights import role_of
from conversations.archive.workspaces import add_member, create_workspace
from conversations.domain.text import first_digest, load_json, one_line, without_unseen
from conversations.models import Membership, Session, Turn, Workspace

from .fields import (
    NAMESPACE,
    SessionLine,
    Unusable,
    add_metadata,
    parse_moment,
    parse_object,
    read_turn,
)

IMPORTED_SLUG = "imported"
"""The workspace of sessions that name none."""

SOURCE_ID = "source_id"
"""In a turn's metadata: the node of another program's tree that it was made of."""

WORDS = ("role", "content", "blocks", "tool_calls", "tool_call_id")
"""What a turn says, beside its name, time and metadata."""

PAGE = 500

SLUG_LIMIT = 60
TITLE_LIMIT = 200

type Note = Callable[[str], None]
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


@dataclass(slots=True)
class SessionFinder:
    """Finds or makes the session that a line means. A line without a uuid means the
    session with its key; without a key, one whose uuid is made from the line and the
    one after it, so that the same file means the same sessions again."""

    target: ImportTarget
    _unnamed: Counter[bytes] = field(default_factory=Counter)

    def open(
        self, header: SessionLine, *, raw: bytes, following: bytes, note: Note
    ) -> tuple[Session, bool]:
        """The session, and whether it is new."""
        owner = self._owner(header)
        workspace = self._workspace(header, owner, note)
        uuid = header.uuid
        key = header.columns["key"]
        if uuid is None and key is not None:
            known = Session.objects.filter(workspace=workspace, key=key).first()
            if known is not None and self.target.may_add_to(known):
                return known, False
            if known is None:
                uuid = uuid5(NAMESPACE, f"key {workspace.slug} {key}")
        uuid = self.resolve(uuid or self._uuid_of_content(raw, following))
        known = Session.objects.filter(uuid=uuid).first()
        if known is not None:
            if not self.target.may_add_to(known):
                raise Unusable("a session of somebody else has its uuid")
            return known, False
        header.columns["created_at"] = (
            header.columns["created_at"] or _moment_of(following) or timezone.now()
        )
        return self._create(uuid, header, workspace, owner, note), True

    def resolve(self, uuid: UUID) -> UUID:
        """The uuid in the archive of the session that a file calls so."""
        if not self.target.is_confined:
            return uuid
        known = Session.objects.filter(uuid=uuid).first()
        if known is None or self.target.may_add_to(known):
            return uuid
        target = self.target
        return uuid5(uuid, f"{target.workspace and target.workspace.slug} {target.owner}")

    def reached(self, uuid: UUID) -> tuple[str, bool] | None:
        """Of a session that was imported from a tree: the node of its last such turn, and
        whether turns follow that are not from there. None where there is none."""
        session = Session.objects.filter(uuid=self.resolve(uuid)).first()
        if session is None:
            return None
        turns = Turn.objects.filter(session=session.pk, metadata__contains=f'"{SOURCE_ID}":')
        last = turns.order_by("-number").values_list("number", "metadata").first()
        if last is None:
            return None
        number, metadata = last
        return str(load_json(metadata).get(SOURCE_ID)), number < session.turn_count

    def told(self, uuid: UUID) -> Iterator[tuple[str | None, ...]]:
        """What the turns of a session say, in order."""
        turns = Turn.objects.filter(session__uuid=self.resolve(uuid)).order_by("number")
        last = 0
        while page := list(turns.filter(number__gt=last).values_list("number", *WORDS)[:PAGE]):
            last = page[-1][0]
            yield from (row[1:] for row in page)

    def _uuid_of_content(self, raw: bytes, following: bytes) -> UUID:
        digest = sha256(raw.strip() + b"\n" + following.strip()).digest()
        self._unnamed[digest] += 1
        return uuid5(NAMESPACE, f"content {digest.hex()} {self._unnamed[digest]}")

    def _owner(self, header: SessionLine) -> User:
        if self.target.owner is not None:
            return self.target.owner
        named = User.objects.filter(username=header.owner).first() if header.owner else None
        return named or self.target.default_owner

    def _workspace(self, header: SessionLine, owner: User, note: Note) -> Workspace:
        if self.target.workspace is not None:
            return self.target.workspace
        slug = slugify(header.workspace)[:SLUG_LIMIT].strip("-_") or IMPORTED_SLUG
        found = Workspace.objects.filter(slug=slug).first()
        if found is not None:
            return found
        folder = self.target.root / slug
        folder.mkdir(parents=True, exist_ok=True)
        note(f"made the workspace {slug} on the folder {folder}")
        return create_workspace(root=folder.resolve(), name=slug, slug=slug, owner=owner)

    def _create(
        self, uuid: UUID, header: SessionLine, workspace: Workspace, owner: User, note: Note
    ) -> Session:
        extra: dict[str, Any] = {}
        columns = dict(header.columns)
        key = columns["key"]
        if key is not None and Session.objects.filter(workspace=workspace, key=key).exists():
            note("another session of the workspace has its key; kept without one")
            extra["original_key"], columns["key"] = key, None
        if header.owner and header.owner != owner.username:
            extra["original_owner"] = header.owner
        if header.workspace and header.workspace != workspace.slug:
            extra["original_workspace"] = header.workspace
        self._admit(workspace, owner, note)
        columns |= {
            "title": one_line(without_unseen(columns["title"]), limit=TITLE_LIMIT),
            "floor_turn": max(1, columns["floor_turn"]),
            "last_active_at": columns["last_active_at"] or columns["created_at"],
            "metadata": add_metadata(columns["metadata"], extra),
        }
        return Session.objects.create(
            uuid=uuid,
            workspace=workspace,
            owner=owner,
            turn_digest=first_digest(uuid, chain="turns"),
            event_digest=first_digest(uuid, chain="events"),
            **columns,
        )

    def _admit(self, workspace: Workspace, owner: User, note: Note) -> None:
        """Whom the operator names as owner may take part in the workspace; a name
        in a file gives nobody access."""
        if role_of(workspace, owner.pk) is not None:
            return
        if self.target.is_confined:
            raise Unusable("its owner is no member of the workspace any more")
        if owner == self.target.owner:
            add_member(workspace, user_pk=owner.pk, role=Membership.Role.MEMBER)
        else:
            note(f"its owner {owner.username} is no member of the workspace {workspace.slug}")


def words_of_line(line: dict[str, Any]) -> tuple[str | None, ...] | None:
    """What the turn of a line says; None for a line that cannot be one."""
    try:
        turn = read_turn(line).turn
    except (Unusable, RecursionError):
        return None
    return tuple(getattr(turn, name) for name in WORDS)


def _moment_of(raw: bytes) -> datetime | None:
    """When the row on the line after the session's was written."""
    try:
        value = parse_object(raw)
    except Unusable:
        return None
    return None if value.get("type") == "session" else parse_moment(value.get("created_at"))
