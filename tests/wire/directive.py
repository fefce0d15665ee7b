"""Scenarios from directives in the last text of the person.

Another process can ask for a scenario with a directive::

    [[wire: words=300 rate=30 chunk=7]]
    [[wire: tool=read_file input={"path": "a b.txt"} thinking=20]]

A directive's keys are the fields of :class:`~tests.wire.scenario.Scenario`. A value that begins
with ``{``, ``[`` or ``"`` is JSON. Any other value is a word that ends at a space. ``tool`` with
``input`` is short for one entry of ``tools``.
"""

import json
import re
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tests.wire.scenario import Scenario, ToolCall

DIRECTIVE = "[[wire:"


class BadDirective(ValueError):
    """A directive that cannot be read. The message says where."""


def plain_type(hint: Any) -> type:
    """Return the type to which a directive's word is converted."""
    if isinstance(hint, UnionType):
        kinds: list[type] = [kind for kind in get_args(hint) if kind is not NoneType]
        return kinds[0]
    origin: type = get_origin(hint) or hint
    return origin


KINDS = {name: plain_type(hint) for name, hint in get_type_hints(Scenario).items()}


def parse_directive(text: str) -> Scenario | None:
    """Return the scenario of the last directive in ``text``, or None if it has none."""
    start = text.rfind(DIRECTIVE)
    if start < 0:
        return None
    return make_scenario(read_pairs(text, start + len(DIRECTIVE)))


def read_pairs(text: str, at: int) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    while True:
        at += len(text[at:]) - len(text[at:].lstrip())
        if text.startswith("]]", at):
            return pairs
        key = re.compile(r"([a-z_]+)=").match(text, at)
        if key is None:
            raise BadDirective(f"a key is expected at {text[at : at + 20]!r}")
        pairs[key[1]], at = read_value(text, key.end())


def read_value(text: str, at: int) -> tuple[Any, int]:
    if text[at : at + 1] in ("{", "[", '"'):
        try:
            return json.JSONDecoder().raw_decode(text, at)
        except ValueError as error:
            raise BadDirective(f"bad JSON at {text[at : at + 20]!r}") from error
    word = re.compile(r"(?:(?!\]\])\S)*").match(text, at)
    assert word is not None
    return word[0], word.end()


def make_scenario(pairs: dict[str, Any]) -> Scenario:
    values = dict(pairs)
    tools = list(values.pop("tools", []))
    if "tool" in values:
        tools.append({"name": values.pop("tool"), "input": values.pop("input", {})})
    made: dict[str, Any] = {"tools": tuple(make_tool(tool) for tool in tools)}
    for key, value in values.items():
        made[key] = make_value(key, value)
    return Scenario(**made)


def make_tool(tool: dict[str, Any]) -> ToolCall:
    try:
        return ToolCall(**tool)
    except TypeError as error:
        raise BadDirective(f"bad tool {tool!r}") from error


def make_value(key: str, value: Any) -> Any:
    if key == "thinking":
        return int(value) if str(value).isdigit() else str(value)
    kind = KINDS.get(key)
    if kind is None or kind is tuple:
        raise BadDirective(f"unknown key {key!r}")
    if kind is bool:
        return str(value).lower() in ("1", "true", "yes", "on")
    try:
        return kind(value)
    except (TypeError, ValueError) as error:
        raise BadDirective(f"bad value for {key}: {value!r}") from error
