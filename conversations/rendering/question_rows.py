"""The rows of a question that a tool server asks during a call."""

from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from conversations.domain.events import Info
from conversations.domain.messages import head_of, say
from conversations.domain.text import an_object, number_text
from conversations.domain.tool_questions import (
    FLAG,
    NUMBER,
    WHOLE,
    QuestionField,
    ToolQuestion,
    read_question,
)

from .messages import mark_notice, mark_text
from .source_text import show_hidden
from .tool_rows import STEPS, call_url

# Input types by the form of a text field.
INPUT_TYPES = {"email": "email", "uri": "url", "date": "date"}

MAX_SHOWN_CHARS = 2_000  # Characters of an answer.


def question_row(payload: Info, session: UUID) -> dict[str, Any] | None:
    """Return the context of the card that asks, or None if the notice names no call."""
    question = read_question(payload.data)
    url = call_url(session, question.call) if question else ""
    if question is None or not url:
        return None
    host = urlsplit(question.url).hostname or ""
    return {
        "call": question.id,
        "of": question.call,
        "step": STEPS["asked"],
        "asks_html": mark_text(
            say("%(server)s asks the model", server=question.server)
            if question.prompt
            else say("%(server)s asks", server=question.server)
        ),
        "message_html": show_hidden(question.message),
        "fields": [_describe(question, one) for one in question.fields],
        "url": question.url,
        "url_html": show_hidden(question.url),
        "host_html": show_hidden(host),
        "opens": mark_text(say("Open %(host)s in a new tab", host=host)),
        "record_url": url,
        "prompt": question.prompt and _describe_prompt(question.prompt),
    }


def _describe_prompt(prompt: dict[str, Any]) -> dict[str, Any]:
    system = [(say("Instructions"), prompt["system"])] if prompt["system"] else []
    names = {"user": say("User"), "assistant": say("Assistant")}
    said = [(names.get(one["role"], one["role"]), one["text"]) for one in prompt["messages"]]
    note = say(
        "%(model)s would answer with at most %(limit)s tokens. It is given nothing else of this "
        "session. Its answer goes to this server and into the archive.",
        model=prompt["model"],
        limit=number_text(prompt["max_tokens"]),
    )
    return {
        "note_html": mark_text(note),
        "parts": [(mark_text(name), show_hidden(text)) for name, text in system + said],
    }


def _describe(question: ToolQuestion, one: QuestionField) -> dict[str, Any]:
    default = one.default
    chosen = default if isinstance(default, list) else [default]
    is_number = one.kind in (NUMBER, WHOLE)
    return {
        "id": f"{question.id}:{one.name}",
        "name": one.name,
        "title_html": show_hidden(one.title),
        "description_html": show_hidden(one.description),
        "kind": one.kind,
        "type": INPUT_TYPES.get(one.form, "text"),
        "mode": "decimal" if is_number else "",
        "hint": "2026-01-31T09:00:00Z" if one.form == "date-time" else "",
        "is_required": one.is_required and one.kind != FLAG,
        "default": "" if default is None or one.kind == FLAG else default,
        "is_on": default is True,
        "choices": [
            {"value": value, "title_html": show_hidden(title), "is_on": value in chosen}
            for value, title in one.choices
        ],
    }


def answered_row(payload: Info, session: UUID) -> dict[str, Any] | None:
    """Return the context of the line that replaces a card, or None if no question is named."""
    data = payload.data or {}
    asked, content = data.get("question"), data.get("content")
    if not isinstance(asked, str) or not asked:
        return None
    given = an_object(content)
    return {
        "call": asked,
        "step": STEPS["decided"],
        "answer_html": mark_notice(head_of(payload.text, MAX_SHOWN_CHARS)),
        "given": [
            (show_hidden(str(name)), mark_text(_write(value))) for name, value in given.items()
        ],
    }


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return say("yes") if value else say("no")
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text[:MAX_SHOWN_CHARS]
