"""One message of Discord on its way into a session: its text, its files, its session.

Whoever writes acts by an account of this installation: their own, where the settings name
it, else the bot's. Rights are asked for with that account, as on the pages.
"""

import re
from collections.abc import Sequence

import discord
from django.contrib.auth.models import User

from conversations.archive.attachments import check_size, examine, save_attachment
from conversations.archive.rights import WRITE
from conversations.archive.sessions import get_or_create_by_key
from conversations.archive.workspaces import find_user, owner_of
from conversations.domain.discord_rules import CHANNEL, Spot
from conversations.domain.errors import LoomError
from conversations.domain.text import one_line
from conversations.models import Session, Workspace
from conversations.runtime.engine import Runtime
from conversations.web.access import AccessContext, get_session_for, get_workspace_for

NAME_CHARS = 60

TAKEN_TYPES = (discord.MessageType.default, discord.MessageType.reply)
"""What people write; the others are notices of the service."""


def is_from_a_person(message: discord.Message) -> bool:
    return not message.author.bot and message.webhook_id is None and message.type in TAKEN_TYPES


def is_addressed(message: discord.Message, bot: discord.abc.User) -> bool:
    """The bot is mentioned, or one of its messages is replied to."""
    if any(person.id == bot.id for person in message.mentions):
        return True
    replied_to = message.reference.resolved if message.reference else None
    return isinstance(replied_to, discord.Message) and replied_to.author.id == bot.id


def text_of(message: discord.Message, bot: discord.abc.User) -> str:
    """What was said, mentions as names, without the mention of the bot that opens it."""
    opening = re.compile(rf"\s*<@!?{bot.id}>[\s,:]*")
    said = opening.sub("", message.content, count=1) if opening.match(message.content) else None
    if said is None:
        return message.clean_content.strip()
    names = {str(person.id): person.display_name for person in message.mentions}
    return re.sub(r"<@!?(\d+)>", lambda m: f"@{names.get(m[1], m[1])}", said).strip()


def name_of(author: discord.abc.User) -> str:
    """What somebody is called, so that it can stand before a colon."""
    plain = re.sub(r"[:\n\r]", " ", author.display_name)
    return one_line(plain, limit=NAME_CHARS) or str(author.id)


def with_speaker(text: str, author: discord.abc.User, spot: Spot) -> str:
    """Where several people speak, the text begins with who does, as the archive's search
    and the model expect it."""
    return text if spot.guild is None else f"{name_of(author)}: {text}".rstrip()


def account_for(name: str, workspace: Workspace) -> User:
    """The account of this name; empty: the workspace's owner. Raises Rejected."""
    return find_user(name) if name else owner_of(workspace)


def visit_by(account: User, key: str) -> AccessContext:
    return AccessContext(user=account, action="", place=key, address="", agent=CHANNEL)


def open_place_session(account: User, owner: User, *, slug: str, key: str) -> Session:
    """The session of a place, begun on first use and owned by ``owner`` then, if the
    account may write in the workspace. Raises NotFound, NotPermitted."""
    workspace, _ = get_workspace_for(visit_by(account, key), slug, to=WRITE)
    session = get_or_create_by_key(workspace, key=key, owner=owner, channel=CHANNEL)
    found, _ = get_session_for(visit_by(account, key), session.uuid, to=WRITE)
    return found


async def attach_files(
    runtime: Runtime, session: Session, files: Sequence[discord.Attachment], *, user_pk: int
) -> tuple[list[str], list[str]]:
    """Keep the files of a message: the uuids of those that can go with it, and what is
    wrong with the others."""
    kept: list[str] = []
    refused: list[str] = []
    for file in files:
        try:
            kept.append(await _attach(runtime, session, file, user_pk=user_pk))
        except LoomError as error:
            refused.append(error.message)
        except discord.NotFound:
            refused.append(f"{file.filename} is not there any more.")
    return kept, refused


async def _attach(
    runtime: Runtime, session: Session, file: discord.Attachment, *, user_pk: int
) -> str:
    check_size(file.size, file.filename)
    data = await file.read()
    content = await runtime.readers.read(examine, data, file.filename)
    attachment = await runtime.writer.write(
        save_attachment,
        session.pk,
        data=data,
        name=file.filename,
        user_pk=user_pk,
        content=content,
    )
    return str(attachment.uuid)
