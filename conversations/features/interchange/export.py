"""In which formats a session is exported, and all sessions of a person."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib.auth.models import User

from conversations.archive.rights import workspaces_of
from conversations.archive.row_sql import walk_rows
from conversations.archive.session_messages import walk_messages
from conversations.domain.digest import instant
from conversations.domain.formats import ANTHROPIC, OPENAI, Message
from conversations.domain.formats.messages_api import split_system
from conversations.domain.text import dump_json
from conversations.domain.turns import SYSTEM
from conversations.models import Session

from .export_markdown import session_markdown
from .export_sessions import session_lines


def session_messages(session: Session, *, format: str) -> Iterator[str]:
    """The session as one line of JSON, in pieces: what it is, then ``messages`` (and
    before them ``system``, where the format has that apart)."""
    facts = {
        "session": str(session.uuid),
        "workspace": session.workspace.slug,
        "key": session.key,
        "title": session.title,
        "model": session.model,
        "created_at": instant(session.created_at),
    }
    head = dump_json({name: value for name, value in facts.items() if value})
    messages = (message for _, message in walk_messages(session, format=format))
    if format == ANTHROPIC:
        system, first = _take_system(messages)
        yield head[:-1] + (f',"system":{dump_json(system)}' if system else "")
    else:
        first = next(messages, None)
        yield head[:-1]
    yield ',"messages":['
    if first is not None:
        yield dump_json(first)
    for message in messages:
        yield "," + dump_json(message)
    yield "]}\n"


def _take_system(messages: Iterator[Message]) -> tuple[list[Any], Message | None]:
    """The system messages in front, and the one after them."""
    front: list[Message] = []
    for message in messages:
        if message["role"] != SYSTEM:
            return split_system(front)[0], message
        front.append(message)
    return split_system(front)[0], None


def session_text(session: Session) -> Iterator[str]:
    """The interchange lines with their ends."""
    return (line + "\n" for line in session_lines(session))


def own_session_text(user: User) -> Iterator[bytes]:
    """One interchange file of a person's sessions, the oldest first. Memory does not grow
    with their number or length."""
    # What somebody has left is not theirs to read any more.
    own = Session.objects.filter(owner=user, workspace__in=workspaces_of(user.pk))
    for row in walk_rows(own, "pk", key="pk"):
        of_key = Session.objects.select_related("workspace", "owner", "parent")
        for found in of_key.filter(pk=row["pk"]):  # none, where it was purged meanwhile
            for line in session_text(found):
                yield line.encode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """``says`` what it is good for; ``ending`` is how the file's name ends."""

    says: str
    write: Callable[[Session], Iterator[str]]
    ending: str
    content_type: str


FORMATS = {
    "markdown": ExportFormat(
        "Markdown, for reading", session_markdown, "md", "text/markdown; charset=utf-8"
    ),
    "jsonl": ExportFormat(
        "JSON lines, with everything", session_text, "jsonl", "application/jsonl; charset=utf-8"
    ),
    **{
        name: ExportFormat(
            says, partial(session_messages, format=name), f"{name}.json", "application/json"
        )
        for name, says in (
            (ANTHROPIC, "Messages of the Messages API"),
            (OPENAI, "Messages of OpenAI's chat completions"),
        )
    },
}
"""The first is what one gets without saying a format."""
