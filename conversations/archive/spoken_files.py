"""Files that are within a message, as programs send them."""

from collections.abc import Sequence
from hashlib import sha256

from conversations.domain.formats.spoken import SpokenFile
from conversations.models import Run, Session

from .attachments import list_attachments, read_uuids, upload_attachment


def save_spoken_files(
    session: Session, files: Sequence[SpokenFile], *, client_id: str, user_pk: int
) -> list[str]:
    """Keep the files as attachments and return their uuids; those of the message of this
    ``client_id``, where it was sent before with them. Raises as ``upload_attachment``."""
    known = _known_files(session, client_id) if files else {}
    kept: list[str] = []
    for file in reversed(files):  # those that were named by their uuids stand before them
        same = known.get(sha256(file.data).hexdigest())
        kept.insert(0, same.pop() if same else _keep(session, file, user_pk))
    return kept


def _known_files(session: Session, client_id: str) -> dict[str, list[str]]:
    """Digest to uuids."""
    run = Run.objects.filter(session=session.pk, client_id=client_id).first()
    known: dict[str, list[str]] = {}
    for attachment in list_attachments(session.pk, read_uuids(run)) if run is not None else []:
        known.setdefault(attachment.digest, []).append(str(attachment.uuid))
    return known


def _keep(session: Session, file: SpokenFile, user_pk: int) -> str:
    kept = upload_attachment(session.pk, data=file.data, name=file.name, user_pk=user_pk)
    return str(kept.uuid)
