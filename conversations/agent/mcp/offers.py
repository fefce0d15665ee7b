"""What a server lists, as tools that a model can be told of.

One tool that the provider cannot take would make every request fail: what is not in order is left
out, and that is said. Names are made so that the same list gives the same names, in the same order:
the provider's prompt cache holds.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from conversations.domain.text import one_line, storable
from conversations.domain.tool_calls import READS

from .config import ServerConfig

PREFIX = "mcp__"
MAX_NAME_CHARS = 128  # The provider's limit
MAX_OWN_NAME_CHARS = 200
MAX_DESCRIPTION_CHARS = 2000
MAX_SCHEMA_CHARS = 20_000
MAX_TOOLS = 128
MAX_NOTES = 20

_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_AT_TOP = ("oneOf", "anyOf", "allOf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool of a server: under which ``name`` the model knows it, and the server."""

    name: str
    own_name: str
    description: str
    input_schema: dict[str, Any]
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """``left_out`` says which tools are not there, and why; a sentence each."""

    offers: tuple[Offer, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class _Sorting:
    wanted: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, name: Any, reason: str) -> None:
        shown = one_line(storable(str(name)), limit=60)
        self.notes.append(f"{shown or 'A tool without a name'}: {reason}")


def make_offers(config: ServerConfig, listed: Sequence[Mapping[str, Any]]) -> Offers:
    """The tools of a list that can be offered, by name. It may take some milliseconds."""
    sorting = _Sorting()
    for tool in listed:
        _sort_in(sorting, config, tool)
    # Names that a model can use: unfit characters replaced; where that makes two the same, or one
    # too long, part of a digest tells them apart.
    server = config.name
    plain = {own: f"{PREFIX}{server}__{_UNFIT.sub('_', own)}" for own in sorting.wanted}
    uses = Counter(plain.values())
    names = {}
    for own, name in plain.items():
        is_own = name == f"{PREFIX}{server}__{own}"
        if len(name) > MAX_NAME_CHARS or (uses[name] > 1 and not is_own):
            digest = sha256(f"{server}\0{own}".encode()).hexdigest()[:8]
            name = f"{name[: MAX_NAME_CHARS - 9]}_{digest}"
        names[own] = name
    offers = [
        _make_offer(config, names[own], own, sorting.wanted[own])
        for own in sorted(sorting.wanted, key=lambda own: names[own])
    ]
    if len(offers) > MAX_TOOLS:
        sorting.notes.append(f"{len(offers) - MAX_TOOLS} more: there are too many tools.")
    known = {str(tool.get("name")) for tool in listed}
    if missing := sorted((config.tools or frozenset()) - known):
        sorting.notes.append(f"Wanted, but not there: {one_line(', '.join(missing), limit=200)}")
    notes = sorting.notes[:MAX_NOTES]
    return Offers(offers=tuple(offers[:MAX_TOOLS]), left_out=tuple(notes))


def _sort_in(sorting: _Sorting, config: ServerConfig, tool: Mapping[str, Any]) -> None:
    name = tool.get("name")
    if not isinstance(name, str) or not name or storable(name) != name:
        return sorting.leave_out(name, "this is no name.")
    if config.tools is not None and name not in config.tools:
        return None
    if len(name) > MAX_OWN_NAME_CHARS:
        return sorting.leave_out(name, "the name is too long.")
    if name in sorting.wanted:
        return sorting.leave_out(name, "there are two of this name.")
    if problem := find_problem(tool.get("inputSchema")):
        return sorting.leave_out(name, problem)
    sorting.wanted[name] = tool
    return None


def find_problem(schema: Any) -> str:
    """Why the provider would not take this schema; empty if it does."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "its arguments are no object."
    try:
        text = json.dumps(schema, allow_nan=False)
    except (ValueError, RecursionError):
        return "its schema cannot be written as JSON."
    if len(text) > MAX_SCHEMA_CHARS:
        return f"its schema is too long ({len(text):,} characters)."
    if any(word in schema for word in _NOT_AT_TOP):
        return "its schema leaves open at the top what the arguments are."
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return "its properties are no object."
    if unfit := [name for name in properties if not _PROPERTY.fullmatch(name)]:
        return f"the model cannot use the argument {one_line(storable(unfit[0]), limit=60)!r}."
    # Against the draft that the provider asks for. Nothing of it is carried out.
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema({k: v for k, v in schema.items() if k != "$schema"})
    except SchemaError as error:
        return f"its schema is not valid: {one_line(storable(error.message), limit=120)}"
    except RecursionError:
        return "its schema is nested too deeply."
    return ""


def _make_offer(config: ServerConfig, name: str, own: str, tool: Mapping[str, Any]) -> Offer:
    annotations = tool.get("annotations")
    hints = annotations if isinstance(annotations, dict) else {}
    is_believed = config.trust_hints and hints.get("readOnlyHint") is True
    words = tool.get("description")
    text = storable(words).strip() if isinstance(words, str) else ""
    if len(text) > MAX_DESCRIPTION_CHARS:
        text = text[: MAX_DESCRIPTION_CHARS - 1] + "…"
    return Offer(
        name=name,
        own_name=own,
        description=(
            f"The tool {own!r} of the tool server {config.name!r}, in the server's own words: "
            f"{text or '(none)'}"
        ),
        input_schema=dict(tool["inputSchema"]),
        effect=READS if is_believed else config.effect,
    )
