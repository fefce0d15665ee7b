"""Several columns of a session changed at once, or none of them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from conversations.domain.errors import Conflict, Rejected, TooLarge
from conversations.domain.jsontext import dump_json
from conversations.models import Session

from .locks import EXPIRED, lock_session
from .session_records import read_metadata
from .sessions import archive_session, choose_model, pin_session, rename_session

MAX_METADATA_CHARS = 65_536
"""Characters of a session's metadata as JSON."""


class _Kept:
    """Stands for a value that stays what it is."""


KEPT: Final = _Kept()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChange:
    """None: that stays as it is. ``metadata`` is merged: its names are set, those with
    null are removed. ``expires_at`` None: never."""

    title: str | None = None
    model: str | None = None
    archived: bool | None = None
    pinned: bool | None = None
    metadata: dict[str, Any] | None = None
    expires_at: datetime | _Kept | None = KEPT


def change_session(session: Session, change: SessionChange) -> None:
    """Raises Rejected and Conflict as the functions do that change one thing, TooLarge for
    too much metadata; then nothing has changed."""
    with transaction.atomic():
        closed = lock_session(session.pk)
        if change.title is not None:
            rename_session(session, title=change.title)
        if change.model is not None:
            choose_model(session, model=change.model)
        if change.metadata is not None:
            _merge_metadata(session.pk, change.metadata)
        if not isinstance(change.expires_at, _Kept):
            _set_expiry(session.pk, change.expires_at, is_expired=closed == EXPIRED)
        if change.pinned is not None:
            pin_session(session, pinned=change.pinned)
        if change.archived is not None:
            archive_session(session, archived=change.archived)


def _merge_metadata(session_pk: int, changes: dict[str, Any]) -> None:
    text = Session.objects.values_list("metadata", flat=True).get(pk=session_pk)
    merged = read_metadata(text) | changes
    merged = {name: value for name, value in merged.items() if value is not None}
    Session.objects.filter(pk=session_pk).update(metadata=dump_metadata(merged))


def dump_metadata(metadata: dict[str, Any]) -> str:
    """As it is stored. Raises TooLarge."""
    text = dump_json(metadata)
    if len(text) > MAX_METADATA_CHARS:
        raise TooLarge(
            f"Metadata has at most {MAX_METADATA_CHARS:,} characters as JSON; this has {len(text):,}.",
            code="metadata_too_large",
        )
    return text


def require_future(moment: datetime | None) -> None:
    """Raises Rejected for a moment at which a session cannot expire any more."""
    if moment is not None and moment <= timezone.now():
        raise Rejected("expires_at lies in the future, or is null.", code="bad_expiry")


def _set_expiry(session_pk: int, moment: datetime | None, *, is_expired: bool) -> None:
    """An expired session stays so: its key may be another's by now."""
    if is_expired:
        raise Conflict("This session has expired already.", code="session_expired")
    require_future(moment)
    Session.objects.filter(pk=session_pk).update(expires_at=moment)
