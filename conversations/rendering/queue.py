"""The messages that wait, as HTML: for the page and for the socket."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.template.loader import render_to_string

from conversations.domain.text import storable

type Waiting = tuple[UUID, str, Sequence[dict[str, Any]]]


def render_queue(messages: Iterable[Waiting]) -> str:
    """``messages``: of each the run, the text, and what is shown of its attachments."""
    items = [
        {
            "run": run,
            "text": storable(text),
            "names": ", ".join(file["name"] for file in attachments),
            "files": " ".join(file["uuid"] for file in attachments),
        }
        for run, text, attachments in messages
    ]
    html = render_to_string("conversations/queue.html", {"items": items}) if items else ""
    return html.strip()
