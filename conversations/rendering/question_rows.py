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
    if question.prompt:
        asks = say("%(server)s asks the model", server=question.server)
    else:
        asks = say("%(server)s asks", server=question.server)
    return {
        "call": question.id,
        "of": question.call,
        "step": STEPS["asked"],
        "asks_html": mark_text(asks),
        "message_html": show_hidden(question.message),
        "fields": [_describe_field(question, field) for field in question.fields],
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
    messages = [(names.get(m["role"], m["role"]), m["text"]) for m in prompt["messages"]]
    note = say(
        "%(model)s would answer with at most %(limit)s tokens. It gets nothing else from "
        "this session. The answer is sent to this server and stored in the archive.",
        model=prompt["model"],
        limit=number_text(prompt["max_tokens"]),
    )
    return {
        "note_html": mark_text(note),
        "parts": [(mark_text(name), show_hidden(text)) for name, text in system + messages],
    }


def _describe_field(question: ToolQuestion, field: QuestionField) -> dict[str, Any]:
    default = field.default
    chosen = default if isinstance(default, list) else [default]
    is_number = field.kind in (NUMBER, WHOLE)
    return {
        "id": f"{question.id}:{field.name}",
        "name": field.name,
        "title_html": show_hidden(field.title),
        "description_html": show_hidden(field.description),
        "kind": field.kind,
        "type": INPUT_TYPES.get(field.form, "text"),
        "mode": "decimal" if is_number else "",
        "hint": "2026-01-31T09:00:00Z" if field.form == "date-time" else "",
        "is_required": field.is_required and field.kind != FLAG,
        "default": "" if default is None or field.kind == FLAG else default,
        "is_on": default is True,
        "choices": [
            {"value": value, "title_html": show_hidden(title), "is_on": value in chosen}
            for value, title in field.choices
        ],
    }


def answered_row(payload: Info, session: UUID) -> dict[str, Any] | None:
    """Return the context of the line that replaces a card, or None if no question is named."""
    data = payload.data or {}
    question, content = data.get("question"), data.get("content")
    if not isinstance(question, str) or not question:
        return None
    values = an_object(content)
    return {
        "call": question,
        "step": STEPS["decided"],
        "answer_html": mark_notice(head_of(payload.text, MAX_SHOWN_CHARS)),
        "given": [
            (show_hidden(str(name)), mark_text(_value_text(value)))
            for name, value in values.items()
        ],
    }


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return say("yes") if value else say("no")
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text[:MAX_SHOWN_CHARS]
