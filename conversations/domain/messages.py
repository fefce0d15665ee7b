"""Messages: sentences for people that can be translated when they are shown.

The code that raises an error or writes a notice does not know who reads the message, and in which
language. So it creates the message in English, with its values. The code that shows the message
translates it (``rendering.messages``). Logs, the API, tools and the archive have the English text.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_VALUE = re.compile(r"%\((\w+)\)s|%%")
MAX_LEVELS = 8  # Of messages nested as values of others.
MAX_READ_CHARS = 100_000  # Of a message that is restored from stored data.


class Message(str):
    """An English sentence that keeps its template and values.

    ``template`` is the sentence with ``%(name)s`` for each of the ``values``. If the sentence
    depends on a ``number``, ``plural`` is the template for all numbers except 1. A value may itself
    be a Message.
    """

    template: str
    plural: str
    number: int
    values: dict[str, Any]


def say(template: str, /, **values: Any) -> Message:
    """Return the message with these values."""
    return _make(template, "", 0, values)


def say_number(one: str, many: str, number: int, /, **values: Any) -> Message:
    """Return the message in the singular or plural.

    ``%(count)s`` is the number, unless ``values`` has another form of it.
    """
    return _make(one, many, number, {"count": number} | values)


def _make(template: str, plural: str, number: int, values: dict[str, Any]) -> Message:
    used = plural if plural and number != 1 else template
    message = Message(put_values(used, values) if values else used)
    message.template, message.plural = template, plural
    message.number, message.values = number, values
    return message


def join_messages(messages: Iterable[str], separator: str = " ") -> str:
    """Return the messages joined into one message, or an empty text if there are none."""
    parts = [part for part in messages if part]
    if len(parts) < 2:
        return next(iter(parts), "")
    values = {f"part{number}": part for number, part in enumerate(parts, 1)}
    return _make(separator.join(f"%({name})s" for name in values), "", 0, values)


def head_of(text: str, limit: int) -> str:
    """Return the text itself, or its beginning if it has more than ``limit`` characters.

    A message that is not cut remains a message.
    """
    return text if len(text) <= limit else text[:limit]


def put_values(text: str, values: Mapping[str, Any]) -> str:
    """Return the text with its values. Raises KeyError for a missing value.

    Only ``%(name)s`` and ``%%`` are replaced, because the text may come from stored data, in which
    other uses of ``%`` would fail.
    """
    return _VALUE.sub(lambda match: str(values[match[1]]) if match[1] else "%", text)


def message_data(message: Message) -> dict[str, Any]:
    """Return a message as JSON data, from which :func:`restore_message` restores it."""
    values = {
        name: message_data(value) if isinstance(value, Message) else value
        for name, value in message.values.items()
    }
    numbers = {"plural": message.plural, "number": message.number} if message.plural else {}
    return {"template": message.template, **numbers, "values": values}


def restore_message(text: str, data: Any) -> str:
    """Return the message that the data (see :func:`message_data`) describe.

    Return the stored text itself if the data are invalid or describe another text.
    """
    message = read_message(data)
    return message if message == text else text


def as_message(text: str) -> Message:
    """Return the text as a message. A text that is not a message becomes its own template."""
    return text if isinstance(text, Message) else say(text)


def read_message(data: Any, *, levels: int = MAX_LEVELS) -> str:
    """Return the message of stored JSON, or an empty text if the data have another form.

    The size is limited, because each level of crafted data could repeat the level below it.
    """
    match data if levels else None:
        case {"template": str() as one, "plural": str() as many, "number": int() as number}:
            template, plural = one, many
        case {"template": str() as template}:
            plural, number = "", 0
        case _:
            return ""
    stored = data.get("values")
    values = {
        name: read_message(value, levels=levels - 1) if isinstance(value, dict) else value
        for name, value in (stored if isinstance(stored, dict) else {}).items()
    }
    used = plural if plural and number != 1 else template
    chars = sum(len(str(values.get(name, ""))) for name in _VALUE.findall(used))
    try:
        return "" if chars > MAX_READ_CHARS else _make(template, plural, number, values)
    except KeyError:
        return ""
