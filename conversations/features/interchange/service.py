"""Saving, starting, listing and ending imports that were started on the page or by the API.

One process at a time executes imports (``features.interchange.worker``), in the order in which
they were saved. If a process ends during an import, the import stays ``running`` and is started
again. That is safe because importing a file twice adds nothing twice.
"""

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import UploadedFile
from django.db.models import F, QuerySet
from django.utils import timezone

from conversations.archive.storage import require_space
from conversations.domain.attachments import clean_name
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.messages import say
from conversations.domain.text import storable
from conversations.models import Workspace
from conversations.rendering.source_text import size_text

from .models import OPEN_STATES, RUNNING, Import

MAX_OPEN_IMPORTS = 10  # Waiting or running imports of one person.
MAX_KEPT_IMPORTS = 100  # Ended imports of one person; older ones are deleted.
MAX_SHOWN_IMPORTS = 50

FOLDER = "imports"  # The folder of the uploads in the data folder.


def require_imports() -> None:
    """Raise NotFound if imports are turned off."""
    if not settings.LOOM.max_import_bytes:
        raise NotFound("Imports are turned off on this server.")


def check_size(file: "UploadedFile[Any]") -> None:
    """Raise Rejected if the file is larger than the limit."""
    limit = settings.LOOM.max_import_bytes
    if (file.size or 0) > limit:
        raise Rejected(
            "The file is too large. The limit is %(limit)s.",
            code="import_too_large",
            limit=size_text(limit),
        )


def import_path(data_dir: Path, uuid: UUID) -> Path:
    """Return the path at which an upload is stored until its import ends."""
    return data_dir / FOLDER / str(uuid)


def save_upload(
    workspace: Workspace, user: User, file: "UploadedFile[Any]", *, format: str
) -> Import:
    """Store the uploaded file and create its import.

    Delete the person's oldest ended imports beyond MAX_KEPT_IMPORTS. Raise Conflict if the person
    has MAX_OPEN_IMPORTS open imports, and StorageFull if storage space is low."""
    require_space(say("Imports"))
    own = Import.objects.filter(user=user)
    uuid = uuid4()
    path = import_path(settings.LOOM.data_dir, uuid)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    try:
        with path.open("wb") as upload:
            for chunk in file.chunks():
                upload.write(chunk)
        if own.filter(state__in=OPEN_STATES).count() >= MAX_OPEN_IMPORTS:
            raise Conflict(
                "%(count)s of your imports are still running. Wait for them to finish.",
                code="too_many_imports",
                count=MAX_OPEN_IMPORTS,
            )
        new_import = Import.objects.create(
            uuid=uuid,
            workspace=workspace,
            user=user,
            name=storable(clean_name(file.name or ""))[:255],
            size=file.size or 0,
            format=format,
            created_at=timezone.now(),
        )
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    ended = own.exclude(state__in=OPEN_STATES).order_by("-id")
    oldest = ended.values_list("pk", flat=True)[MAX_KEPT_IMPORTS : MAX_KEPT_IMPORTS + 1].first()
    if oldest is not None:
        ended.filter(pk__lte=oldest).delete()
    return new_import


def get_import(user: User, uuid: UUID) -> Import:
    """Return the user's import. Raise NotFound if it does not exist or is another user's."""
    row = Import.objects.select_related("workspace").filter(user=user, uuid=uuid).first()
    if row is None:
        raise NotFound("This import does not exist, or it is not yours.")
    return row


def list_imports(user: User, *, limit: int = MAX_SHOWN_IMPORTS) -> list[Import]:
    """Return the user's imports, newest first."""
    rows = Import.objects.select_related("workspace").filter(user=user)
    return list(rows.order_by("-id")[:limit])


def open_imports() -> QuerySet[Import]:
    """Return waiting and running imports, oldest first. Their uploads are still needed."""
    return Import.objects.filter(state__in=OPEN_STATES).order_by("id")


def begin_next_import() -> Import | None:
    """Mark the oldest open import as running and return it.

    The caller must hold the lock that lets one process at a time execute imports."""
    row = open_imports().select_related("workspace", "user").first()
    if row is None:
        return None
    open_imports().filter(pk=row.pk).update(
        state=RUNNING, attempts=F("attempts") + 1, started_at=row.started_at or timezone.now()
    )
    row.refresh_from_db(fields=("state", "attempts"))
    return row


def end_import(row: Import, state: str, *, error: str = "") -> None:
    """Set the final state of an open import and delete its upload.

    Sessions that were imported stay. An import that has already ended does not change."""
    open_imports().filter(pk=row.pk).update(
        state=state, error=storable(error)[:500], finished_at=timezone.now()
    )
    import_path(settings.LOOM.data_dir, row.uuid).unlink(missing_ok=True)
