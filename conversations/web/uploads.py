"""Files that come with a form."""

from collections.abc import Sequence
from typing import Any

from django.core.files.uploadedfile import UploadedFile

from conversations.archive.attachments import attachment_block, check_size, upload_attachment
from conversations.archive.storage import translate_storage_error
from conversations.domain.attachments import clean_name, shown_attachment
from conversations.domain.errors import Rejected, StorageFull


class FilesRefused(Rejected):
    """Some files cannot be attached; ``kept`` are the uuids of the others."""

    code = "attachment_refused"

    def __init__(self, message: str, *, kept: Sequence[str], is_full: bool) -> None:
        super().__init__(message)
        self.kept = kept
        if is_full:
            self.status = StorageFull.status


def save_files(
    session_pk: int, files: Sequence["UploadedFile[Any]"], *, user_pk: int
) -> list[dict[str, Any]]:
    """Of each file its name and, as ``attachment``, what is shown of it; or ``code`` and
    ``reason`` where it cannot be attached."""
    return [_keep_file(session_pk, file, user_pk) for file in files]


def _keep_file(session_pk: int, file: "UploadedFile[Any]", user_pk: int) -> dict[str, Any]:
    name = clean_name(file.name or "")
    try:
        check_size(file.size or 0, name)
        kept = upload_attachment(session_pk, data=file.read(), name=name, user_pk=user_pk)
    except OSError as error:
        full = translate_storage_error(error)
        if full is None:
            raise
        return {"name": name, "code": full.code, "reason": full.message}
    except (Rejected, StorageFull) as error:
        return {"name": name, "code": error.code, "reason": error.message}
    return {"name": name, "attachment": shown_attachment(attachment_block(kept))}


def require_files(
    session_pk: int, files: Sequence["UploadedFile[Any]"], *, user_pk: int
) -> list[str]:
    """Keep the files; returns their uuids. Raises FilesRefused."""
    results = save_files(session_pk, files, user_pk=user_pk)
    kept = [result["attachment"]["uuid"] for result in results if "attachment" in result]
    if reasons := [result["reason"] for result in results if "reason" in result]:
        reason = " ".join(dict.fromkeys(reasons))
        raise FilesRefused(reason, kept=kept, is_full=lacks_space(results))
    return kept


def lacks_space(results: Sequence[dict[str, Any]]) -> bool:
    """Whether a file was refused only since the server has no room for it."""
    return any(result.get("code") == StorageFull.code for result in results)
