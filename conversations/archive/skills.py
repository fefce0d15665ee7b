"""What was loaded of the workspace's skills, kept with the session."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from django.db.models import QuerySet
from django.utils import timezone

from conversations.models import Rewind, SessionSkill


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSkill:
    """``content`` is the text that loading it gave, ``path`` its file within the
    workspace's folder and ``turn`` the turn that holds the call."""

    pk: int
    name: str
    content: str
    turn: int
    path: str = ""
    digest: str = ""


def read_loaded_skills(session_pk: int) -> list[LoadedSkill]:
    """The skills of the session on its active path, one of each name (the newest),
    in the order of loading."""
    loaded = _stored(SessionSkill.objects.filter(session=session_pk))
    if not loaded:
        return []
    rewound = list(
        Rewind.objects.filter(session=session_pk).values_list("from_turn", "to_turn").order_by("pk")
    )
    active = [s for s in loaded if not any(low <= s.turn <= high for low, high in rewound)]
    newest = {skill.name: skill for skill in active}
    return [skill for skill in active if newest[skill.name] is skill]


def read_skills(pks: Sequence[int]) -> list[LoadedSkill]:
    """These loads, in the order of loading."""
    return _stored(SessionSkill.objects.filter(pk__in=pks)) if pks else []


def _stored(rows: QuerySet[SessionSkill]) -> list[LoadedSkill]:
    columns = ("pk", "name", "content", "turn_number", "path", "digest")
    return [
        LoadedSkill(pk=pk, name=name, content=content, turn=turn, path=path, digest=digest)
        for pk, name, content, turn, path, digest in rows.order_by("pk").values_list(*columns)
    ]


def append_loaded_skill(
    session_pk: int, *, name: str, path: str, content: str, turn: int
) -> LoadedSkill | None:
    """Keep a skill that the model loads. None when the same text of it is loaded on
    the active path already."""
    digest = digest_of(content)
    known = next((s for s in read_loaded_skills(session_pk) if s.name == name), None)
    if known is not None and known.digest == digest:
        return None
    row = SessionSkill.objects.create(
        session_id=session_pk,
        name=name,
        path=path,
        content=content,
        digest=digest,
        turn_number=turn,
        loaded_at=timezone.now(),
    )
    return LoadedSkill(pk=row.pk, name=name, content=content, turn=turn, path=path, digest=digest)


def digest_of(content: str) -> str:
    return sha256(content.encode("utf-8", "replace")).hexdigest()
