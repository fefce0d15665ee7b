"""Turns as the messages of other programs, and their messages as turns.

A format is one module with two functions: ``read_messages`` makes turns of messages, and
``write_messages`` makes messages of turns. What a turn holds is the same for all of them,
so what was read in one format can be written in another.

What is read is never lost in its own format: where the plain reading of a message would
not give exactly the same message again (an unknown key, a text in another spelling), the
difference is kept in the turn's metadata (``kept``). What a format has no word for is
listed in ``docs/formats.md``.
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


# How each format is read: raises Rejected, which names the message, for what is none of its.
READERS = {ANTHROPIC: messages_api.read_messages, OPENAI: openai_chat.read_messages}

# How turns, in order, are written. A message may stand for several of them, so each comes with
# the number of its first one (its place, for turns without numbers).
WRITERS = {ANTHROPIC: messages_api.write_messages, OPENAI: openai_chat.write_messages}


# What a person says in one message, out of content in either format's shape.
class MessageFile(NamedTuple):
    """A file that goes with a message; what it is, is found out from its content."""

    name: str
    data: bytes


class MessageContent(NamedTuple):
    text: str
    files: list[MessageFile]


def read_content(contents: Sequence[Any]) -> MessageContent:
    """Text and files of these contents, each a text or a list of blocks or parts. Raises
    Rejected for what a message cannot have: anything but texts, and images and documents
    with their data."""
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
    """An image or a document with its content. Raises Rejected for any other block."""
    kind, source = block.get("type"), block.get("source")
    if kind not in ("image", "document") or not isinstance(source, dict):
        raise _refused(say("Content of type %(kind)s is not supported.", kind=str(kind)))
    given, media_type = source.get("data"), str(source.get("media_type") or "")
    if not isinstance(given, str):
        raise _refused(say("The %(kind)s has no data. URLs are not loaded.", kind=kind))
    title = block.get("title")
    if not isinstance(title, str) or not title:
        ending = "txt" if media_type == TEXT_TYPE else media_type.partition("/")[2] or "bin"
        title = f"{kind}.{ending}"
    if source.get("type") == "text":
        return MessageFile(name=title, data=given.encode("utf-8", "replace"))
    try:
        # MIME breaks base64 into lines. All else that is none would be passed over.
        data = base64.b64decode("".join(given.split()), validate=True)
        return MessageFile(name=title, data=data)
    except (binascii.Error, ValueError) as error:
        raise _refused(say("The data is not valid base64.")) from error


def read_new_file(block: Block) -> MessageFile:
    """The same of what is said now. Raises Rejected for one that says more than is kept with
    a file, of which the title is the name."""
    file = read_file(block)
    if block.get("context"):
        raise _refused(say("The context of a document is not stored. Send it as text beside it."))
    citations = block.get("citations")
    if citations.get("enabled") if isinstance(citations, dict) else citations:
        raise _refused(say("Citations are not supported. Leave them out."))
    return file


def _refused(reason: str) -> Rejected:
    return Rejected(reason, code=BAD_MESSAGE)
