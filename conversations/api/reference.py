"""The description of the API as a page shows it: plain values, made from OpenAPI."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

BASE = "/api/v1"
"""What ``$LOOM`` ends with, here and in docs/api.md."""

DEEPEST = 3
"""Levels of an example."""

FIRST = (
    "Workspaces",
    "Sessions",
    "Sessions by key",
    "Messages and runs",
    "Streams",
    "Turns and events",
    "Calls of tools",
    "Search",
    "Files",
)

type Node = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A parameter, or a field of a body or an answer."""

    name: str
    kind: str
    required: bool
    says: str
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: str
    says: str
    media: str
    shape: str
    fields: list[Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An operation. ``can_be_tried``: it changes nothing and answers with JSON."""

    id: str
    method: str
    path: str
    title: str
    says: str
    scope: str
    parameters: list[Value]
    body: list[Value]
    body_media: str
    answers: list[Answer]
    curl: str
    can_be_tried: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationGroup:
    name: str
    operations: list[Described]

    @property
    def anchor(self) -> str:
        return self.name.lower().replace(" ", "-")


class Reference:
    """Reads one description."""

    def __init__(self, schema: Node) -> None:
        self._schema = schema

    def groups(self) -> list[OperationGroup]:
        """What most programs begin with comes first."""
        found = list(self._operations())
        order = list(dict.fromkeys([*FIRST, *(tag for tag, _ in found)]))
        found.sort(key=lambda one: order.index(one[0]))
        return [
            OperationGroup(name=name, operations=[operation for _, operation in some])
            for name, some in groupby(found, key=lambda one: one[0])
        ]

    def refusals(self) -> list[tuple[str, str]]:
        """Statuses that any operation may answer, with what they mean."""
        operation: Node = next(iter(next(iter(self._schema["paths"].values())).values()))
        return [
            (str(status), answer["description"])
            for status, answer in operation["responses"].items()
            if int(status) >= 400
        ]

    def _operations(self) -> Iterator[tuple[str, Described]]:
        for path, methods in self._schema["paths"].items():
            for method, operation in methods.items():
                tag = (operation.get("tags") or ["Others"])[0]
                yield tag, self._operation(path, method.upper(), operation)

    def _operation(self, path: str, method: str, operation: Node) -> Described:
        parameters = [self._parameter(one) for one in operation.get("parameters", ())]
        request: Node = operation.get("requestBody") or {}
        content: Node = request.get("content", {})
        media, body = _first(content)
        shape = self._resolve(body.get("schema", {}))
        answers = [
            self._answer(str(status), answer)
            for status, answer in operation["responses"].items()
            if int(status) < 400
        ]
        return Described(
            id=operation["operationId"],
            method=method,
            path=path,
            title=operation["operationId"].replace("_", " ").capitalize(),
            says=operation.get("description", ""),
            scope=operation["x-scope"],
            parameters=parameters,
            body=self._fields(shape),
            body_media=media,
            answers=answers,
            curl=self._curl(path, method, operation, media, shape),
            can_be_tried=method == "GET" and answers[0].media == "application/json",
        )

    def _parameter(self, given: Node) -> Value:
        schema = self._resolve(given.get("schema", {}))
        return Value(
            name=given["name"],
            kind=self._kind(schema),
            required=given.get("required", False),
            says=given.get("description") or schema.get("description", ""),
            place=given["in"],
        )

    def _answer(self, status: str, answer: Node) -> Answer:
        media, body = _first(answer.get("content", {}))
        schema = body.get("schema", {})
        shape = self._resolve(schema)
        return Answer(
            status=status,
            says=shape.get("description") or answer.get("description", ""),
            media=media,
            shape=schema.get("$ref", "").rpartition("/")[2] or self._kind(shape),
            fields=self._fields(shape),
        )

    def _fields(self, shape: Node) -> list[Value]:
        required = shape.get("required", ())
        return [
            Value(
                name=name,
                kind=self._kind(one),
                required=name in required,
                says=one.get("description", ""),
            )
            for name, one in shape.get("properties", {}).items()
        ]

    def _kind(self, schema: Node) -> str:
        """What a value is, in a few words."""
        if "$ref" in schema:
            return str(schema["$ref"].rpartition("/")[2])
        if "enum" in schema:
            return " | ".join(map(str, schema["enum"]))
        if "const" in schema:
            return str(schema["const"])
        if options := schema.get("anyOf"):
            return " or ".join(dict.fromkeys(self._kind(one) for one in options))
        kind = str(schema.get("format") or schema.get("type", "anything"))
        if schema.get("type") == "array":
            return f"list of {self._kind(schema.get('items', {}))}"
        return kind

    def _resolve(self, schema: Node) -> Node:
        found = self._schema
        if "$ref" not in schema:
            return schema
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return found

    def _curl(self, path: str, method: str, operation: Node, media: str, shape: Node) -> str:
        asked = [
            one
            for one in operation.get("parameters", ())
            if one["in"] == "query" and one.get("required")
        ]
        query = "?" + "&".join(f"{one['name']}=…" for one in asked) if asked else ""
        below = path.removeprefix(BASE)
        lines = [
            f'curl "$LOOM{below}{query}"',
            '-H "Authorization: Bearer $LOOM_TOKEN"',
        ]
        if method not in ("GET", "POST") or (method == "POST" and not media):
            lines[0] = lines[0].replace("curl ", f"curl -X {method} ")
        if media == "multipart/form-data":
            lines += [f"-F {name}=@notes.txt" for name in shape.get("properties", {})]
        elif media:
            example = json.dumps(self._example(shape, 0), ensure_ascii=False)
            lines += [f"-H 'Content-Type: {media}'", f"-d '{example}'"]
        return " \\\n  ".join(lines)

    def _example(self, schema: Node, depth: int) -> Any:
        schema = self._resolve(schema)
        if examples := schema.get("examples"):
            return examples[0]
        if "properties" in schema and depth < DEEPEST:
            wanted = schema.get("required") or list(schema["properties"])[:1]
            return {name: self._example(schema["properties"][name], depth + 1) for name in wanted}
        if "enum" in schema:
            return schema["enum"][0]
        if options := schema.get("anyOf"):
            return self._example(options[0], depth)
        if schema.get("type") == "array":
            return [self._example(schema.get("items", {}), depth + 1)] if depth < DEEPEST else []
        plain = {"integer": 1, "number": 1, "boolean": True, "object": {}}
        return plain.get(str(schema.get("type")), "…")


def _first(content: Node) -> tuple[str, Node]:
    """The media type of a body, and what it is; empty without one."""
    for media, body in content.items():
        return media, body
    return "", {}
