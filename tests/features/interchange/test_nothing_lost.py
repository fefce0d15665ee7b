"""Every text of an export is stored in the archive, or named in ``LEFT``."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conversations.archive.blobs import read_blob
from conversations.domain.text import dump_json
from conversations.models import Attachment, Compaction, Session, Turn
from tests.archive.files import image_bytes

from .conftest import Importing

pytestmark = pytest.mark.django_db

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z$")

FIXTURES = Path(__file__).parent / "fixtures"

IMAGE = b64encode(image_bytes()).decode()

LEFT = {
    "chatgpt.json": {"root", "finished_successfully", "file-service://file-Abc123"},
    "claude.json": {"00000000-0000-4000-8000-000000000000", "human", "Let me look. In March."},
    "openwebui.json": {"Tool Executed", "Thought for 3 seconds"},
    "claude-code.jsonl": {"bash_progress", "elsewhere"},
}
"""Texts that need not be stored.

ChatGPT: the empty root, the status and the address of an imported image. Claude.ai: the parent
of the first message, the name of a role and a text that its blocks repeat. Open WebUI: the
page's headings for thinking and calls. Claude Code: a progress line and a line about another
session.
"""

MARKUP = {"reasoning", "tool_calls", "details", "/details", "summary", "/summary", "quot", "true"}


def leaves(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, name)
    elif isinstance(value, str) and name not in ("type", "userType"):
        if "<details" in value:
            parts = re.split(r"[<>\"&;]", re.sub(r' [\w-]+="', '"', value))
            yield from {part.strip() for part in parts} - MARKUP
        elif not _MOMENT.match(value):
            yield value.removeprefix("data:image/png;base64,")


def everything() -> str:
    """Return the stored values as one text."""
    found: list[Any] = []
    for session in Session.objects.all():
        found += [str(session.uuid), session.title, session.system_prompt, session.metadata]
        found += [session.model, session.created_at, session.last_active_at]
    for turn in Turn.objects.all():
        found += [turn.content, turn.blocks, turn.metadata, turn.tool_call_id, turn.tool_name]
        found += [turn.created_at, turn.stop_reason, turn.role]
    for attachment in Attachment.objects.all():
        found += [attachment.name, attachment.media_type]
        if attachment.size:
            content = read_blob(attachment.digest)
            found += [content.decode(errors="replace"), b64encode(content).decode()]
    found += Compaction.objects.values_list("summary", flat=True)
    return "\n".join(str(item) for item in found)


@pytest.mark.parametrize("name", sorted(LEFT))
def test_every_text_of_an_export_is_kept(importing: Importing, name: str) -> None:
    text = (FIXTURES / name).read_text().replace("IMAGE", IMAGE)
    importing.text(text)
    values = (
        [json.loads(line) for line in text.splitlines()] if "jsonl" in name else json.loads(text)
    )
    stored = everything()
    missing = {
        leaf
        for leaf in leaves(values)
        if len(leaf) > 3 and leaf not in stored and dump_json(leaf)[1:-1] not in stored
    }
    assert missing - LEFT[name] == set()
