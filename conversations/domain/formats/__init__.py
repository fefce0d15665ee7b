"""Conversion between turns and the message formats of other programs.

A format is one module with two functions: ``read_messages`` converts messages to turns, and
``write_messages`` converts turns to messages. The turns are the same for all formats, so messages
that were read in one format can be written in another.

Messages that are read and written in the same format lose nothing. If the turn alone would not give
exactly the same message again (because of an unknown key, or another spelling of a text), the
difference is stored in the turn's metadata (``contents``). ``docs/formats.md`` lists the contents
that a format cannot express.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any, NamedTuple

from conversations.domain.attachments import TEXT_TYPE
from conversations.domain.errors import Rejected
from conversations.domain.messages import say

from . import messages_api, openai_chat
from .contents import BAD_MESSAGE, Block, lacks_text, text_block
from .openai_chat import block_of

ANTHROPIC, OPENAI = messages_api.NAME, openai_chat.NAME


# The function that reads each format. It raises Rejected, which names the message, for a message
# that is not valid in the format.
READERS = {ANTHROPIC: messages_api.read_messages, OPENAI: openai_chat.read_messages}

# The function that writes turns, which are in order, in each format. A message may stand for
# several turns, so it yields the number of the first turn with each message. For turns without
# numbers, that is the index.
WRITERS = {ANTHROPIC: messages_api.write_messages, OPENAI: openai_chat.write_messages}


# The content of one message of a person, read from blocks or parts of either format.
class MessageFile(NamedTuple):
    """A file that is sent with a message. Its type is determined later from its content."""

    name: str
    data: bytes


class MessageContent(NamedTuple):
    text: str
    files: list[MessageFile]


def read_content(contents: Sequence[Any]) -> MessageContent:
    """Return the text and the files of these contents.

    Each content is a text or a list of blocks or parts. Raises Rejected for blocks other than
    texts, and images and documents with their data.
    """
    texts: list[str] = []
    files: list[MessageFile] = []
    for content in contents:
        blocks = [text_block(content)] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise _refused(say("Content must be a text or a list of blocks."))
        for block in map(block_of, blocks):
            if lacks_text(block):
                raise _refused(say("The text of a block must be a text."))
            if block.get("type") == "text":
                texts.append(block["text"])
            else:
                files.append(read_new_file(block))
    return MessageContent(text="\n\n".join(text for text in texts if text.strip()), files=files)


def read_file(block: Block) -> MessageFile:
    """Return the file of an image or document block with its data. Raises Rejected for others."""
    kind, source = block.get("type"), block.get("source")
    if kind not in ("image", "document") or not isinstance(source, dict):
        raise _refused(say("Content of type %(kind)s is not supported.", kind=str(kind)))
    content, media_type = source.get("data"), str(source.get("media_type") or "")
    if not isinstance(content, str):
        raise _refused(say("The %(kind)s has no data. URLs are not loaded.", kind=kind))
    title = block.get("title")
    if not isinstance(title, str) or not title:
        ending = "txt" if media_type == TEXT_TYPE else media_type.partition("/")[2] or "bin"
        title = f"{kind}.{ending}"
    if source.get("type") == "text":
        return MessageFile(name=title, data=content.encode("utf-8", "replace"))
    try:
        # MIME breaks base64 into lines, so remove white space. Without ``validate``, all other
        # characters outside the alphabet would be ignored.
        data = base64.b64decode("".join(content.split()), validate=True)
        return MessageFile(name=title, data=data)
    except (binascii.Error, ValueError) as error:
        raise _refused(say("The data is not valid base64.")) from error


def read_new_file(block: Block) -> MessageFile:
    """Return the file of a block in a new message, as :func:`read_file` does.

    Also raises Rejected for a context or citations, which are not stored with a file.
    """
    file = read_file(block)
    if block.get("context"):
        raise _refused(say("The context of a document is not stored. Send it as text beside it."))
    citations = block.get("citations")
    if isinstance(citations, dict):
        citations = citations.get("enabled")
    if citations:
        raise _refused(say("Citations are not supported. Leave them out."))
    return file


def _refused(reason: str) -> Rejected:
    return Rejected(reason, code=BAD_MESSAGE)
