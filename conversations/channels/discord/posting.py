"""One message to Discord: sent, edited, removed. Nobody is ever pinged by it, and
Discord fetches no page that it links to."""

from io import BytesIO
from uuid import UUID

import discord
from discord import ButtonStyle

from .items import FILE_NAME, LABEL_CHARS, ReplyItem

type Channel = discord.PartialMessageable


async def post(
    channel: Channel, item: ReplyItem, *, nonce: str, source: int, session: UUID
) -> discord.Message:
    """Send a message as a reply to ``source`` (0: to none). A second time with the same
    nonce, within some minutes, Discord gives the first message back."""
    reference = (
        discord.MessageReference(message_id=source, channel_id=channel.id, fail_if_not_exists=False)
        if source
        else None
    )
    options: dict[str, object] = {"reference": reference} if reference else {}
    if item.file:
        options["file"] = _file_of(item)
    view = _view_of(item, session)
    if view is not None:
        options["view"] = view
    return await channel.send(  # type: ignore[call-overload, no-any-return]
        item.text, nonce=nonce, suppress_embeds=True, mention_author=False, **options
    )


async def edit(channel: Channel, message: int, item: ReplyItem, *, session: UUID) -> None:
    await channel.get_partial_message(message).edit(
        content=item.text,
        view=_view_of(item, session),
        attachments=[_file_of(item)] if item.file else [],
    )


async def remove(channel: Channel, message: int) -> None:
    await channel.get_partial_message(message).delete()


def _file_of(item: ReplyItem) -> discord.File:
    return discord.File(BytesIO(item.file.encode("utf-8", "replace")), FILE_NAME)


def _view_of(item: ReplyItem, session: UUID) -> discord.ui.View | None:
    """The buttons, if there are any. What they do is known by their names alone, so that
    they work after a restart too: the library keeps nothing of them."""
    buttons = _buttons(item, session)
    if not buttons:
        return None
    view = discord.ui.View(timeout=None)
    for button in buttons:
        view.add_item(button)
    view.stop()
    return view


def _buttons(item: ReplyItem, session: UUID) -> list[discord.ui.Button[discord.ui.View]]:
    if item.action:
        return [_button(item.action.title(), ButtonStyle.primary, item.action, session, "")]
    if not item.call:
        return []
    found = [_button("Approve", ButtonStyle.success, "once", session, item.call)]
    if item.always:
        label = f"Always: {item.always}"
        label = label if len(label) <= LABEL_CHARS else "Always"  # the message says what
        found.append(_button(label, ButtonStyle.secondary, "always", session, item.call))
    return [*found, _button("Deny", ButtonStyle.danger, "deny", session, item.call)]


def _button(
    label: str, style: ButtonStyle, act: str, session: UUID, call: str
) -> discord.ui.Button[discord.ui.View]:
    name = f"loom:{act}:{session.hex}:{call}"
    return discord.ui.Button(label=label, style=style, custom_id=name)
