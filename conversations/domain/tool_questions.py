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
from .messages import Message, say, say_number
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


def make_question(parameters: Mapping[str, Any], *, call: str, server: str) -> ToolQuestion:
    """Create a question from the parameters of the protocol. Raises BadQuestion.

    The parameters of sampling also have the ``model`` that is to answer.
    """
    message = storable(str(parameters.get("message") or ""))[:MAX_MESSAGE_CHARS]
    base: dict[str, Any] = {"id": str(uuid4()), "call": call, "server": server, "message": message}
    if parameters.get("mode") == SAMPLING:
        return ToolQuestion(prompt=_read_prompt(parameters), **base)
    if parameters.get("mode") == "url":
        url = str(parameters.get("url") or "")
        is_usable = url.startswith(("https://", "http://")) and storable(url) == url
        if not is_usable or len(url) > MAX_URL_CHARS or any(char.isspace() for char in url):
            raise BadQuestion("The URL must be an http or https address.")
        return ToolQuestion(url=url, **base)
    schema = parameters.get("requestedSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not isinstance(properties, dict):
        raise BadQuestion("The schema has no properties.")
    if len(properties) > MAX_FIELDS:
        raise BadQuestion(f"A question can have at most {MAX_FIELDS} fields.")
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    fields = [_make_field(name, form, name in names) for name, form in properties.items()]
    return ToolQuestion(fields=fields, **base)


def _read_prompt(parameters: Mapping[str, Any]) -> dict[str, Any]:
    messages = [
        {"role": str(message["role"]), "text": _read_texts(message["content"])}
        for message in parameters["messages"]
    ]
    if not messages or messages[-1]["role"] != "user":
        raise BadQuestion("The last message must be the user's.")
    if not all(message["text"].strip() for message in messages):
        raise BadQuestion("A message is empty.")
    if parameters.get("tools"):
        raise BadQuestion("The model is not given tools.")
    system = storable(str(parameters.get("systemPrompt") or ""))
    if len(system) + sum(len(message["text"]) for message in messages) > MAX_PROMPT_CHARS:
        raise BadQuestion(f"The messages can have at most {MAX_PROMPT_CHARS:,} characters.")
    stops = [storable(text)[:100] for text in parameters.get("stopSequences") or () if text.strip()]
    return {
        "model": parameters["model"],
        "max_tokens": parameters["maxTokens"],
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
        raise BadQuestion(f"The field {_short_text(name)!r} is of a kind that cannot be asked for.")
    choice_schema = schema.get("items") if kind == SEVERAL else schema
    choices = list(_read_choices(an_object(choice_schema)))
    if kind == SEVERAL and not choices:
        raise BadQuestion(f"The field {_short_text(name)!r} has no choices.")
    if len(choices) > MAX_CHOICES:
        raise BadQuestion(f"The field {_short_text(name)!r} has more than {MAX_CHOICES} choices.")
    min_key, max_key = {TEXT: ("minLength", "maxLength"), SEVERAL: ("minItems", "maxItems")}.get(
        kind, ("minimum", "maximum")
    )
    form = schema.get("format")
    return QuestionField(
        name=name,
        kind=ONE if kind == TEXT and choices else kind,
        title=_short_text(schema.get("title") or name),
        description=_short_text(schema.get("description") or ""),
        form=form if form in ("email", "uri", "date", "date-time") else "",
        is_required=is_required,
        default=_read_default(schema.get("default")),
        choices=choices,
        least=_number_or_none(schema.get(min_key)),
        most=_number_or_none(schema.get(max_key)),
    )


def _short_text(value: Any) -> str:
    return one_line(storable(str(value)), limit=MAX_WORDS_CHARS)


def _number_or_none(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read_default(value: Any) -> Any:
    if isinstance(value, list):
        return [_short_text(item) for item in value[:MAX_CHOICES]]
    if isinstance(value, str):
        return storable(value)[:MAX_ANSWER_CHARS]
    return value if isinstance(value, bool) else _number_or_none(value)


def _read_choices(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    titled = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(titled, list):
        for choice in titled:
            if isinstance(choice, dict) and isinstance(choice.get("const"), str):
                yield storable(choice["const"]), _short_text(choice.get("title") or choice["const"])
        return
    values, names = schema.get("enum"), schema.get("enumNames")
    titles = names if isinstance(names, list) else []
    for index, value in enumerate(values if isinstance(values, list) else []):
        if isinstance(value, str):
            yield storable(value), _short_text(titles[index] if index < len(titles) else value)


def read_question(data: Any) -> ToolQuestion | None:
    """Read a question from a row's data or a call's record. Return None if it is not valid."""
    try:
        fields = [
            QuestionField(**(row | {"choices": [tuple(pair) for pair in row.get("choices", [])]}))
            for row in data["fields"]
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
    for form_field in question.fields:
        # A field that is missing has its default. A field that a person emptied is empty.
        value = sent.get(form_field.name, form_field.default)
        if value in (None, "", []):
            if form_field.is_required and form_field.kind == FLAG:
                content[form_field.name] = False
            elif form_field.is_required:
                raise _refused(say("“%(title)s” is required.", title=form_field.title))
            continue
        content[form_field.name] = _read_value(form_field, value)
    return content


def _read_value(form_field: QuestionField, value: Any) -> Any:
    if form_field.kind == FLAG:
        return value in (True, "true", "on", "1")
    if form_field.kind in (NUMBER, WHOLE):
        return _read_number(form_field, value)
    values = [choice for choice, _ in form_field.choices]
    if form_field.kind == SEVERAL:
        chosen = value if isinstance(value, list) else [value]
        if any(text not in values for text in chosen):
            raise _refused(
                say("Choose one of the options for “%(title)s”.", title=form_field.title)
            )
        _require_bounds(form_field, len(chosen))
        return chosen
    if not isinstance(value, str) or storable(value) != value:
        raise _refused(say("“%(title)s” must be text.", title=form_field.title))
    if form_field.kind == ONE and value not in values:
        raise _refused(say("Choose one of the options for “%(title)s”.", title=form_field.title))
    if len(value) > MAX_ANSWER_CHARS:
        raise _refused(
            say_number(
                "“%(title)s” can have at most %(count)s character.",
                "“%(title)s” can have at most %(count)s characters.",
                MAX_ANSWER_CHARS,
                title=form_field.title,
                count=number_text(MAX_ANSWER_CHARS),
            )
        )
    if form_field.kind == TEXT:
        _require_bounds(form_field, len(value))
    if form_field.form == "email" and "@" not in value:
        raise _refused(say("“%(title)s” must be an e-mail address.", title=form_field.title))
    if form_field.form == "uri" and ":" not in value:
        raise _refused(say("“%(title)s” must be a web address.", title=form_field.title))
    return value


def _read_number(form_field: QuestionField, value: Any) -> int | float:
    try:
        number = float(value)
        whole = int(number)
    except (TypeError, ValueError, OverflowError):
        raise _refused(say("“%(title)s” must be a number.", title=form_field.title)) from None
    if form_field.kind == WHOLE and whole != number:
        raise _refused(say("“%(title)s” must be a whole number.", title=form_field.title))
    _require_bounds(form_field, number)
    return whole if form_field.kind == WHOLE else number


def _require_bounds(form_field: QuestionField, size: float) -> None:
    if form_field.least is not None and size < form_field.least:
        raise _refused(_too_little(form_field, form_field.least))
    if form_field.most is not None and size > form_field.most:
        raise _refused(_too_much(form_field, form_field.most))


def _too_little(form_field: QuestionField, limit: float) -> Message:
    number, values = _counted(form_field, limit)
    if form_field.kind == SEVERAL:
        return say_number(
            "Choose at least %(count)s option for “%(title)s”.",
            "Choose at least %(count)s options for “%(title)s”.",
            number,
            **values,
        )
    if form_field.kind == TEXT:
        return say_number(
            "“%(title)s” must have at least %(count)s character.",
            "“%(title)s” must have at least %(count)s characters.",
            number,
            **values,
        )
    return say("“%(title)s” must be at least %(count)s.", **values)


def _too_much(form_field: QuestionField, limit: float) -> Message:
    number, values = _counted(form_field, limit)
    if form_field.kind == SEVERAL:
        return say_number(
            "Choose at most %(count)s option for “%(title)s”.",
            "Choose at most %(count)s options for “%(title)s”.",
            number,
            **values,
        )
    if form_field.kind == TEXT:
        return say_number(
            "“%(title)s” can have at most %(count)s character.",
            "“%(title)s” can have at most %(count)s characters.",
            number,
            **values,
        )
    return say("“%(title)s” must be at most %(count)s.", **values)


def _counted(form_field: QuestionField, limit: float) -> tuple[int, dict[str, str]]:
    # A server's limit may have decimals or be infinite: only 1 takes the singular.
    return int(limit == 1), {"title": form_field.title, "count": f"{limit:g}"}


def _refused(message: Message) -> Rejected:
    return Rejected(message, code="bad_answer")


def make_asked_notice(question: ToolQuestion) -> Info:
    server, asked_text = question.server, _asked_text(question, limit=300)
    if question.prompt:
        text = say("%(server)s asks the model: %(question)s", server=server, question=asked_text)
    else:
        text = say("%(server)s asks: %(question)s", server=server, question=asked_text)
    return Info(text=text, kind=QUESTION, code=QUESTION_ASKED, data=question.as_data())


def make_answered_notice(
    question: ToolQuestion, *, action: str, by: str = "", content: Mapping[str, Any] | None = None
) -> Info:
    """Return the notice of an answer. ``by`` is empty if the call ended without an answer."""
    asked_text = _asked_text(question, limit=200)
    texts = {
        (ACCEPT, False): say("Answered by %(name)s: %(question)s", name=by, question=asked_text),
        (DECLINE, False): say("Declined by %(name)s: %(question)s", name=by, question=asked_text),
        (CANCEL, False): say("Not answered: %(question)s", question=asked_text),
        (ACCEPT, True): say(
            "Approved by %(name)s: %(server)s asks the model: %(question)s",
            name=by,
            server=question.server,
            question=asked_text,
        ),
        (DECLINE, True): say(
            "Denied by %(name)s: %(server)s asks the model: %(question)s",
            name=by,
            server=question.server,
            question=asked_text,
        ),
        (CANCEL, True): say(
            "Not answered: %(server)s asks the model: %(question)s",
            server=question.server,
            question=asked_text,
        ),
    }
    ended = action if action in ACTIONS else CANCEL
    return Info(
        text=texts[ended, bool(question.prompt)],
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


def _asked_text(question: ToolQuestion, *, limit: int) -> str:
    """Return the text of the question to the person or to the model, on one line."""
    prompt = question.prompt
    text = prompt["messages"][-1]["text"] if prompt else question.message
    return one_line(text, limit=limit)
