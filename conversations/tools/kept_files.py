"""Images and PDFs that a tool gives: kept with the session, for the model and the row."""

from dataclasses import dataclass
from typing import Any

from conversations.archive.attachments import attachment_block, save_attachment
from conversations.archive.contents import FileType

from .tool import ToolContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedFile:
    """A file whose content is known to be one that can be shown."""

    data: bytes
    name: str
    content: FileType


async def save_file(context: ToolContext, file: ExaminedFile) -> dict[str, Any]:
    """Keep the file at the turn of the call; the content block that refers to it."""
    attachment = await context.write(
        save_attachment,
        context.session_pk,
        data=file.data,
        name=file.name,
        user_pk=None,
        turn=context.call_turn,
        content=file.content,
    )
    return attachment_block(attachment)
