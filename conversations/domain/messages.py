"""Sentences for people, as data: the same one can be said in any language.

What raises an error or writes a notice does not know who reads it, and in which language.
It says the sentence once, in English, with its values; whoever shows it translates it
(``rendering.messages``). Logs, the API, tools and the archive have the English text.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_VALUE = re.compile(r"%\((\w+)\)s|%%")
MAX_LEVELS = 8  # Of messages that are values of others
MAX_READ_CHARS = 100_000  # Of a message that is made of stored data


class Message(str):
    """An English sentence that knows what it is made of. ``template`` is the sentence with
    ``%(name)s`` for each of the ``values``; ``plural`` is the one for any ``number`` but one,
    where it depends on one. A value may be a Message in turn."""

    template: str
    plural: str
    number: int
    values: dict[str, Any]


def say(template: str, /, **values: Any) -> Message:
    """The sentence with these values."""
    return _make(template, "", 0, values)


def say_number(one: str, many: str, number: int, /, **values: Any) -> Message:
    """The sentence for one or for many; ``%(count)s`` is the number, unless it is given as a
    value, written otherwise."""
    return _make(one, many, number, {"count": number} | values)


def _make(template: str, plural: str, number: int, values: dict[str, Any]) -> Message:
    used = plural if plural and number != 1 else template
    message = Message(put_values(used, values) if values else used)
    message.template, message.plural = template, plural
    message.number, message.values = number, values
    return message


def join_messages(messages: Iterable[str], separator: str = " ") -> str:
    """One after the other, as a message of its own; empty where there are none."""
    told = [one for one in messages if one]
    if len(told) < 2:
        return next(iter(told), "")
    values = {f"part{number}": one for number, one in enumerate(told, 1)}
    return _make(separator.join(f"%({name})s" for name in values), "", 0, values)


def head_of(text: str, most: int) -> str:
    """The text, a message as it is; of more than ``most`` characters the beginning."""
    return text if len(text) <= most else text[:most]


def put_values(text: str, values: Mapping[str, Any]) -> str:
    """The text with its values, and nothing else that ``%`` could do: it may be a stored one.
    Raises KeyError."""
    return _VALUE.sub(lambda found: str(values[found[1]]) if found[1] else "%", text)


def message_data(message: Message) -> dict[str, Any]:
    """A message as JSON; :func:`restore_message` makes it again."""
    values = {
        name: message_data(value) if isinstance(value, Message) else value
        for name, value in message.values.items()
    }
    numbers = {"plural": message.plural, "number": message.number} if message.plural else {}
    return {"template": message.template, **numbers, "values": values}


def restore_message(text: str, data: Any) -> str:
    """The stored text as the message that its data make (``message_data``); the text itself
    where they make another one or none."""
    message = read_message(data)
    return message if message == text else text


def as_message(text: str) -> Message:
    """A text that is no message yet is its own template."""
    return text if isinstance(text, Message) else say(text)


def read_message(data: Any, *, levels: int = MAX_LEVELS) -> str:
    """The message of stored JSON; an empty text where that is of another form, or larger than
    any of ours: each level could repeat the one below it."""
    match data if levels else None:
        case {"template": str() as one, "plural": str() as many, "number": int() as number}:
            template, plural = one, many
        case {"template": str() as template}:
            plural, number = "", 0
        case _:
            return ""
    given = data.get("values")
    values = {
        name: read_message(value, levels=levels - 1) if isinstance(value, dict) else value
        for name, value in (given if isinstance(given, dict) else {}).items()
    }
    used = plural if plural and number != 1 else template
    chars = sum(len(str(values.get(name, ""))) for name in _VALUE.findall(used))
    try:
        return "" if chars > MAX_READ_CHARS else _make(template, plural, number, values)
    except KeyError:
        return ""
