"""What a call of a server's tool gave, as a result for the model and the row."""

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from conversations.archive.attachments import examine
from conversations.domain.errors import Rejected
from conversations.domain.text import one_line, storable
from conversations.tools.kept_files import ExaminedFile, save_file
from conversations.tools.tool import ToolContext, ToolResult

MAX_FILES = 10
"""Images and PDFs of one result that are kept."""

_SHOWN = ("image/", "application/pdf")


@dataclass(slots=True)
class _Reading:
    texts: list[str] = field(default_factory=list)
    files: list[tuple[bytes, str]] = field(default_factory=list)


async def make_result(context: ToolContext, server: str, data: Mapping[str, Any]) -> ToolResult:
    """From a result as the server gave it: text as it is, images and PDFs kept and
    shown, everything else described."""
    output, files = await asyncio.to_thread(_take_apart, server, data)
    blocks = [await save_file(context, file) for file in files]
    output = output or ("Shown below." if blocks else "(The tool gave no output.)")
    return ToolResult(ok=data.get("isError") is not True, output=output, blocks=blocks)


def _take_apart(server: str, data: Mapping[str, Any]) -> tuple[str, list[ExaminedFile]]:
    reading = _read(server, data)
    files, problems = _examine(reading.files)
    texts = [text for text in (*reading.texts, *problems) if text]
    return _capped(storable("\n\n".join(texts))), files


def _read(server: str, data: Mapping[str, Any]) -> _Reading:
    reading = _Reading()
    content = data.get("content")
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict):
            _read_part(reading, server, part)
    structured = data.get("structuredContent")
    if structured is not None and not any(reading.texts):
        reading.texts.append(json.dumps(structured, ensure_ascii=False, indent=2))
    return reading


def _read_part(reading: _Reading, server: str, part: Mapping[str, Any]) -> None:
    kind = part.get("type")
    if kind == "text":
        reading.texts.append(str(part.get("text", "")))
    elif kind == "image":
        _take(reading, part.get("data"), f"{server}-{len(reading.files) + 1}")
    elif kind == "audio":
        reading.texts.append(f"[Audio, {_line(part.get('mimeType'))}: it cannot be heard here.]")
    elif kind == "resource_link":
        _link(reading, part)
    elif kind == "resource":
        resource = part.get("resource")
        _read_resource(reading, resource if isinstance(resource, dict) else {})
    else:
        reading.texts.append(f"[Something of the kind {_line(kind)}, which is not known here.]")


def _link(reading: _Reading, part: Mapping[str, Any]) -> None:
    words = [_line(part.get(name)) for name in ("title", "name", "description", "mimeType")]
    about = ", ".join(word for word in words if word)
    reading.texts.append(f"[Resource {_line(part.get('uri'))}: {about}]")


def _read_resource(reading: _Reading, resource: Mapping[str, Any]) -> None:
    uri, kind = _line(resource.get("uri")), _line(resource.get("mimeType"))
    if "text" in resource:
        reading.texts.append(f"[Resource {uri}]\n{resource['text']}")
    elif kind.startswith(_SHOWN):
        _take(reading, resource.get("blob"), uri.rpartition("/")[2] or "resource")
    else:
        size = len(str(resource.get("blob", ""))) * 3 // 4
        reading.texts.append(f"[Resource {uri}: {kind or 'data'}, about {size:,} bytes]")


def _take(reading: _Reading, data: Any, name: str) -> None:
    try:
        raw = base64.b64decode(str(data), validate=True)
    except (binascii.Error, ValueError):
        reading.texts.append("[An image that is damaged.]")
        return
    if len(raw) > settings.LOOM.max_attachment_bytes:
        reading.texts.append(f"[An image of {len(raw):,} bytes, too large to be shown.]")
    elif len(reading.files) >= MAX_FILES:
        reading.texts.append("[One more image.]")
    else:
        reading.files.append((raw, name))


def _examine(found: list[tuple[bytes, str]]) -> tuple[list[ExaminedFile], list[str]]:
    files, problems = [], []
    for data, name in found:
        try:
            content = examine(data, name)
        except Rejected as error:
            problems.append(f"[An image that cannot be shown: {error.message}]")
            continue
        ending = content.media_type.rpartition("/")[2]
        named = name if name.lower().endswith(f".{ending}") else f"{name}.{ending}"
        files.append(ExaminedFile(data=data, name=named, content=content))
    return files, problems


def _capped(output: str) -> str:
    limit: int = settings.LOOM.max_output_bytes
    data = output.encode()
    if len(data) <= limit:
        return output
    kept = data[:limit].decode("utf-8", "ignore")
    return f"{kept}\n\n[{len(data) - limit:,} more bytes of output were not kept.]"


def _line(value: Any) -> str:
    return one_line(storable(str(value)), limit=300) if value is not None else ""
