"""Rows for people who are not members: the same template, without anything that leads
into the product, and without what tools did unless that is shared too. No separators of
days stand between them, so their times have the day."""

from dataclasses import replace
from typing import Any

from django.utils.safestring import mark_safe

from conversations.domain import events
from conversations.domain.events import Fallback, Payload
from conversations.domain.text import storable
from conversations.rendering.rows import RowPosition, render_row_with, row_extra
from conversations.rendering.source_text import show_hidden
from conversations.rendering.tool_rows import tool_word

_SAID = (events.UserMessage, events.AssistantText)
_BY_TOOLS = (events.ToolCallStarted, events.ToolCallCompleted, events.ContentIndicator)


def render_shared(
    payload: Payload | Fallback, *, place: RowPosition, with_tools: bool, files_url: str
) -> str:
    """The row's HTML; empty for what is not shared. ``files_url`` is the address below
    which the link's attachments are."""
    if isinstance(payload, events.ToolCallCompleted) and not with_tools:
        row = render_row_with(payload, _name_only(payload), place=place, partial="tool_name")
        return storable(row)
    if not isinstance(payload, _SAID + (_BY_TOOLS if with_tools else ())):
        return ""
    if isinstance(payload, events.AssistantText) and not with_tools:
        payload = replace(payload, thinking="")
        if not payload.text.strip():
            return ""
    extra = _without_links(row_extra(payload, place), place, files_url)
    row = render_row_with(payload, extra, place=place)
    return storable(row.replace("<time datetime", "<time data-relative datetime"))


def _name_only(payload: events.ToolCallCompleted) -> dict[str, Any]:
    word, icon = tool_word(payload.name)
    return {
        "name": storable(payload.name),
        "word": mark_safe(show_hidden(word)),
        "icon": icon,
    }


def _without_links(extra: dict[str, Any], place: RowPosition, files_url: str) -> dict[str, Any]:
    inside = f"/s/{place.session}/attachments/"
    kept = extra | {"record_url": "", "changes_url": "", "decision_html": ""}
    if "blocks" in kept:
        kept["blocks"] = [block | {"more_url": ""} for block in kept["blocks"]]
    if "files" in kept:
        kept["files"] = [_moved(file, inside, files_url) for file in kept["files"]]
    if "file" in kept:
        kept["file"] = _moved(kept["file"], inside, files_url)
    return kept


def _moved(file: dict[str, Any], inside: str, files_url: str) -> dict[str, Any]:
    url = str(file.get("url") or "")
    return file | {"url": files_url + url.removeprefix(inside) if url else ""}
