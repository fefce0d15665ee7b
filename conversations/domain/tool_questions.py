"""Questions that a tool server asks a person during a call, and their answers.

The fields are those of the Model Context Protocol's elicitation: texts, numbers, booleans and
choices, without nesting. If a server wants to ask the model (sampling), a person is asked first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

from .errors import Rejected
from .events import Info
from .messages import Message, say
from .text import an_object, number_text, one_line, storable

QUESTION = "question"  # The kind of notices about a question.

# The codes of these notices. The data of QUESTION_ASKED is a ``ToolQuestion``. The data of
# QUESTION_ANSWERED is ``{"call", "question", "action", "by", "content"}``. The data of
# MODEL_ANSWERED is ``{"call", "question"}``.
QUESTION_ASKED, QUESTION_ANSWERED = "question_asked", "question_answered"
MODEL_ANSWERED = "model_answered"

ACCEPT, DECLINE, CANCEL = "accept", "decline", "cancel"
ACTIONS = (ACCEPT, DECLINE, CANCEL)
SAMPLING = "sampling"  # The mode of a question whether the model may be asked.

TEXT, NUMBER, WHOLE, FLAG, ONE, SEVERAL = "text", "number", "whole", "flag", "one", "several"

_KINDS = {"string": TEXT, "number": NUMBER, "integer": WHOLE, "boolean": FLAG, "array": SEVERAL}

MAX_MESSAGE_CHARS = 4_000
MAX_FIELDS = 20
MAX_CHOICES = 100
MAX_WORDS_CHARS = 300  # Of a title, a description or a choice.
MAX_ANSWER_CHARS = 10_000  # Of one text.
MAX_URL_CHARS = 2_000
MAX_PROMPT_CHARS = 100_000  # Of the system prompt and all messages in a request to the model.
MAX_STOP_SEQUENCES = 8


class BadQuestion(Exception):
    """A question cannot be shown. The text of the error tells the server why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionField:
    """A field of a question.

    ``choices`` are pairs of a value and its title. ``form`` is the format of a text: ``email``,
    ``uri``, ``date``, ``date-time`` or empty. ``least`` and ``most`` limit a number, the number of
    characters of a text, or the number of choices.
    """

    name: str
    kind: str
    title: str = ""
    description: str = ""
    form: str = ""
    is_required: bool = False
    default: Any = None
    choices: list[tuple[str, str]] = field(default_factory=list)
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolQuestion:
    """A question that ``server`` asks during the call with the uuid ``call``.

    With ``url``, the person opens the URL and answers whether they have done so. With ``prompt``,
    the model is asked if the person approves. Otherwise the person fills in ``fields``. A prompt is
    ``{"model", "max_tokens", "system", "messages": [{"role", "text"}], "stop"}``.
    """

    id: str
    call: str
    server: str
    message: str
    fields: list[QuestionField] = field(default_factory=list)
    url: str = ""
    prompt: dict[str, Any] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def make_question(asked: Mapping[str, Any], *, call: str, server: str) -> ToolQuestion:
    """Create a question from the parameters of the protocol. Raises BadQuestion.

    The parameters of sampling also have the ``model`` that is to answer.
    """
    message = storable(str(asked.get("message") or ""))[:MAX_MESSAGE_CHARS]
    made: dict[str, Any] = {"id": str(uuid4()), "call": call, "server": server, "message": message}
    if asked.get("mode") == SAMPLING:
        return ToolQuestion(prompt=_read_prompt(asked), **made)
    if asked.get("mode") == "url":
        url = str(asked.get("url") or "")
        is_usable = url.startswith(("https://", "http://")) and storable(url) == url
        if not is_usable or len(url) > MAX_URL_CHARS or any(char.isspace() for char in url):
            raise BadQuestion("The URL must be an http or https address.")
        return ToolQuestion(url=url, **made)
    schema = asked.get("requestedSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not isinstance(properties, dict):
        raise BadQuestion("The schema has no properties.")
    if len(properties) > MAX_FIELDS:
        raise BadQuestion(f"A question can have at most {MAX_FIELDS} fields.")
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    fields = [_make_field(name, one, name in names) for name, one in properties.items()]
    return ToolQuestion(fields=fields, **made)


def _read_prompt(asked: Mapping[str, Any]) -> dict[str, Any]:
    messages = [
        {"role": str(one["role"]), "text": _read_texts(one["content"])} for one in asked["messages"]
    ]
    if not messages or messages[-1]["role"] != "user":
        raise BadQuestion("The last message must be the user's.")
    if not all(one["text"].strip() for one in messages):
        raise BadQuestion("A message is empty.")
    if asked.get("tools"):
        raise BadQuestion("The model is not given tools.")
    system = storable(str(asked.get("systemPrompt") or ""))
    if len(system) + sum(len(one["text"]) for one in messages) > MAX_PROMPT_CHARS:
        raise BadQuestion(f"The messages can have at most {MAX_PROMPT_CHARS:,} characters.")
    stops = [storable(text)[:100] for text in asked.get("stopSequences") or () if text.strip()]
    return {
        "model": asked["model"],
        "max_tokens": asked["maxTokens"],
        "system": system,
        "messages": messages,
        "stop": stops[:MAX_STOP_SEQUENCES],
    }


def _read_texts(content: Any) -> str:
    blocks = content if isinstance(content, list) else [content]
    if any(block.get("type") != "text" for block in blocks):
        raise BadQuestion("The messages can contain text only.")
    return "\n\n".join(storable(block["text"]) for block in blocks)


def _make_field(name: str, schema: Any, is_required: bool) -> QuestionField:
    kind = _KINDS.get(schema.get("type", "")) if isinstance(schema, dict) else None
    if kind is None or storable(name) != name or not 0 < len(name) <= MAX_WORDS_CHARS:
        raise BadQuestion(f"The field {_words(name)!r} is of a kind that cannot be asked for.")
    chosen_from = schema.get("items") if kind == SEVERAL else schema
    choices = list(_read_choices(an_object(chosen_from)))
    if kind == SEVERAL and not choices:
        raise BadQuestion(f"The field {_words(name)!r} has no choices.")
    if len(choices) > MAX_CHOICES:
        raise BadQuestion(f"The field {_words(name)!r} has more than {MAX_CHOICES} choices.")
    least, most = {TEXT: ("minLength", "maxLength"), SEVERAL: ("minItems", "maxItems")}.get(
        kind, ("minimum", "maximum")
    )
    form = schema.get("format")
    return QuestionField(
        name=name,
        kind=ONE if kind == TEXT and choices else kind,
        title=_words(schema.get("title") or name),
        description=_words(schema.get("description") or ""),
        form=form if form in ("email", "uri", "date", "date-time") else "",
        is_required=is_required,
        default=_read_default(schema.get("default")),
        choices=choices,
        least=_number_or_none(schema.get(least)),
        most=_number_or_none(schema.get(most)),
    )


def _words(value: Any) -> str:
    return one_line(storable(str(value)), limit=MAX_WORDS_CHARS)


def _number_or_none(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read_default(value: Any) -> Any:
    if isinstance(value, list):
        return [_words(one) for one in value[:MAX_CHOICES]]
    return storable(value)[:MAX_ANSWER_CHARS] if isinstance(value, str) else _flag_or_number(value)


def _flag_or_number(value: Any) -> bool | float | None:
    return value if isinstance(value, bool) else _number_or_none(value)


def _read_choices(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    titled = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(titled, list):
        for one in titled:
            if isinstance(one, dict) and isinstance(one.get("const"), str):
                yield storable(one["const"]), _words(one.get("title") or one["const"])
        return
    values, names = schema.get("enum"), schema.get("enumNames")
    titles = names if isinstance(names, list) else []
    for place, value in enumerate(values if isinstance(values, list) else []):
        if isinstance(value, str):
            yield storable(value), _words(titles[place] if place < len(titles) else value)


def read_question(data: Any) -> ToolQuestion | None:
    """Read a question from a row's data or a call's record. Return None if it is not valid."""
    try:
        fields = [
            QuestionField(**(one | {"choices": [tuple(pair) for pair in one.get("choices", [])]}))
            for one in data["fields"]
        ]
        texts = {name: str(data[name]) for name in ("id", "call", "server", "message", "url")}
        return ToolQuestion(fields=fields, prompt=data.get("prompt") or {}, **texts)
    except (KeyError, TypeError, AttributeError):
        return None


def read_content(question: ToolQuestion, given: Any) -> dict[str, Any]:
    """Return the values of the fields in the form of the protocol. Raises Rejected.

    A value may be given as itself or as the text from an HTML form. The error names the field.
    """
    sent = an_object(given)
    content = {}
    for one in question.fields:
        # A field that is missing has its default. A field that a person emptied is empty.
        value = sent.get(one.name, one.default)
        if value in (None, "", []):
            if one.is_required and one.kind == FLAG:
                content[one.name] = False
            elif one.is_required:
                raise _refused(say("“%(title)s” is required.", title=one.title))
            continue
        content[one.name] = _read_value(one, value)
    return content


def _read_value(one: QuestionField, value: Any) -> Any:
    if one.kind == FLAG:
        return value in (True, "true", "on", "1")
    if one.kind in (NUMBER, WHOLE):
        return _read_number(one, value)
    values = [choice for choice, _ in one.choices]
    if one.kind == SEVERAL:
        chosen = value if isinstance(value, list) else [value]
        if any(text not in values for text in chosen):
            raise _refused(say("“%(title)s” must be among the choices.", title=one.title))
        _require_bounds(one, len(chosen))
        return chosen
    if not isinstance(value, str) or storable(value) != value:
        raise _refused(say("“%(title)s” must be a text.", title=one.title))
    if one.kind == ONE and value not in values:
        raise _refused(say("“%(title)s” must be among the choices.", title=one.title))
    if len(value) > MAX_ANSWER_CHARS:
        raise _refused(
            say(
                "“%(title)s” can have at most %(limit)s characters.",
                title=one.title,
                limit=number_text(MAX_ANSWER_CHARS),
            )
        )
    if one.kind == TEXT:
        _require_bounds(one, len(value))
    if one.form == "email" and "@" not in value:
        raise _refused(say("“%(title)s” must be an e-mail address.", title=one.title))
    if one.form == "uri" and ":" not in value:
        raise _refused(say("“%(title)s” must be an address.", title=one.title))
    return value


def _read_number(one: QuestionField, value: Any) -> int | float:
    try:
        number = float(value)
        whole = int(number)
    except (TypeError, ValueError, OverflowError):
        raise _refused(say("“%(title)s” must be a number.", title=one.title)) from None
    if one.kind == WHOLE and whole != number:
        raise _refused(say("“%(title)s” must be a whole number.", title=one.title))
    _require_bounds(one, number)
    return whole if one.kind == WHOLE else number


_TOO_LITTLE_AND_TOO_MUCH = {
    SEVERAL: (
        say("“%(title)s” must have at least %(limit)s choices."),
        say("“%(title)s” must have at most %(limit)s choices."),
    ),
    TEXT: (
        say("“%(title)s” must have at least %(limit)s characters."),
        say("“%(title)s” must have at most %(limit)s characters."),
    ),
    NUMBER: (
        say("“%(title)s” must be at least %(limit)s."),
        say("“%(title)s” must be at most %(limit)s."),
    ),
}
_TOO_LITTLE_AND_TOO_MUCH[WHOLE] = _TOO_LITTLE_AND_TOO_MUCH[NUMBER]


def _require_bounds(one: QuestionField, size: float) -> None:
    too_little, too_much = _TOO_LITTLE_AND_TOO_MUCH[one.kind]
    if one.least is not None and size < one.least:
        raise _refused(say(too_little, title=one.title, limit=f"{one.least:g}"))
    if one.most is not None and size > one.most:
        raise _refused(say(too_much, title=one.title, limit=f"{one.most:g}"))


def _refused(message: Message) -> Rejected:
    return Rejected(message, code="bad_answer")


def make_asked_notice(question: ToolQuestion) -> Info:
    asked = _read_asked(question, limit=300)
    text = (
        say("%(server)s asks the model: %(question)s", server=question.server, question=asked)
        if question.prompt
        else say("%(server)s asks: %(question)s", server=question.server, question=asked)
    )
    return Info(
        text=text,
        kind=QUESTION,
        code=QUESTION_ASKED,
        data=question.as_data(),
    )


def make_answered_notice(
    question: ToolQuestion, *, action: str, by: str = "", content: Mapping[str, Any] | None = None
) -> Info:
    """Return the notice of an answer. ``by`` is empty if the call ended without an answer."""
    asked = _read_asked(question, limit=200)
    words = {
        (ACCEPT, False): say("Answered by %(name)s: %(question)s", name=by, question=asked),
        (DECLINE, False): say("Declined by %(name)s: %(question)s", name=by, question=asked),
        (CANCEL, False): say("Not answered: %(question)s", question=asked),
        (ACCEPT, True): say(
            "Approved by %(name)s: %(server)s asks the model: %(question)s",
            name=by,
            server=question.server,
            question=asked,
        ),
        (DECLINE, True): say(
            "Denied by %(name)s: %(server)s asks the model: %(question)s",
            name=by,
            server=question.server,
            question=asked,
        ),
        (CANCEL, True): say(
            "Not answered: %(server)s asks the model: %(question)s",
            server=question.server,
            question=asked,
        ),
    }
    ended = action if action in ACTIONS else CANCEL
    return Info(
        text=words[ended, bool(question.prompt)],
        kind=QUESTION,
        code=QUESTION_ANSWERED,
        data={
            "call": question.call,
            "question": question.id,
            "action": action,
            "by": by,
            "content": dict(content or {}),
        },
    )


def make_model_answered_notice(question: ToolQuestion, *, model: str, answer: str) -> Info:
    """Return the notice of the model's answer to a tool server."""
    return Info(
        text=say("%(model)s answered %(server)s.", model=model, server=question.server),
        kind=QUESTION,
        code=MODEL_ANSWERED,
        detail=answer,
        data={"call": question.call, "question": question.id},
    )


def _read_asked(question: ToolQuestion, *, limit: int) -> str:
    """Return the text of the question to the person or to the model, on one line."""
    prompt = question.prompt
    asked = prompt["messages"][-1]["text"] if prompt else question.message
    return one_line(asked, limit=limit)
