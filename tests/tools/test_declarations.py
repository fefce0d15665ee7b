"""Declarations of the product's tools: one source for the schema and the parsing."""

from typing import Any

import pytest

from conversations.agent.tools.registry import TOOLS
from conversations.agent.tools.tool import Tool, ToolArguments, ToolResult, schema_of

WRONG: dict[str, tuple[Any, ...]] = {
    "string": (3, 1.5, True, [], ["a"], {}),
    "integer": ("many", "1.5", 1.5, -1, True, [], {}, float("inf"), float("nan"), "9" * 5000),
    "boolean": ("maybe", 7, [], {}),
    "anyOf": (3, True, [3], {}),
}
RIGHT: dict[str, Any] = {"string": "a", "integer": 2, "boolean": True, "anyOf": "a"}


def declaration_of(tool: Tool) -> type[ToolArguments]:
    assert not isinstance(tool.arguments, dict), f"{tool.name} declares no arguments"
    return tool.arguments


def form_of(rule: dict[str, Any]) -> str:
    return "anyOf" if "anyOf" in rule else str(rule["type"])


def right(rule: dict[str, Any]) -> Any:
    return rule["enum"][0] if "enum" in rule else RIGHT[form_of(rule)]


def wrong(rule: dict[str, Any]) -> tuple[Any, ...]:
    return (*WRONG[form_of(rule)], *(["no such choice"] if "enum" in rule else []))


def example(tool: Tool, *, whole: bool = True) -> dict[str, Any]:
    schema = tool.input_schema
    chosen = schema["properties"] if whole else schema["required"]
    return {name: right(schema["properties"][name]) for name in chosen}


PROPERTIES = [
    pytest.param(tool, name, id=f"{tool.name}-{name}")
    for tool in TOOLS.values()
    for name in tool.input_schema["properties"]
]
every_tool = pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)


@every_tool
def test_schema_comes_from_the_declaration(tool: Tool) -> None:
    declared, schema = declaration_of(tool), tool.input_schema
    assert schema == schema_of(declared)
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert list(schema["properties"]) == list(declared.model_fields)
    needed = [name for name, field in declared.model_fields.items() if field.is_required()]
    assert schema["required"] == needed
    for rule in schema["properties"].values():
        assert rule["description"].endswith((".", "…]."))
        assert form_of(rule) in WRONG
        assert not {"title", "default"} & set(rule)


def test_tool_without_a_declaration_is_detected() -> None:
    async def run(*_: Any) -> ToolResult:
        return ToolResult(ok=True, output="")

    with pytest.raises(AssertionError, match="new_tool declares no arguments"):
        declaration_of(Tool(name="new_tool", description="", arguments={}, run=run))


@every_tool
def test_arguments_that_fit_the_schema_are_accepted(tool: Tool) -> None:
    declared = declaration_of(tool)
    sent = example(tool)
    assert declared.read(sent).model_dump() == sent
    assert declared.read({**sent, "no_such_argument": 1}) == declared.read(sent)


@every_tool
def test_null_is_the_same_as_a_missing_argument(tool: Tool) -> None:
    declared, needed = declaration_of(tool), example(tool, whole=False)
    optional = {name: None for name in tool.input_schema["properties"] if name not in needed}
    assert declared.read({**needed, **optional}) == declared.read(needed)


@every_tool
def test_numbers_and_booleans_may_be_sent_as_texts(tool: Tool) -> None:
    declared, sent = declaration_of(tool), example(tool)
    texts = {name: " 2 " for name, value in sent.items() if value == 2}
    texts |= {name: "True" for name, value in sent.items() if value is True}
    assert declared.read(sent | texts) == declared.read(sent)


@pytest.mark.parametrize(("tool", "name"), PROPERTIES)
async def test_argument_of_a_wrong_type_is_refused_before_any_action(tool: Tool, name: str) -> None:
    nowhere: Any = None
    for value in wrong(tool.input_schema["properties"][name]):
        for step in (tool.run, tool.plan):
            answer = await step(nowhere, example(tool) | {name: value}) if step else None
            assert answer is None or isinstance(answer, ToolResult)
            assert answer is None or not answer.ok
            assert answer is None or answer.output.startswith(f"'{name}' must be "), value


@every_tool
async def test_all_missing_arguments_are_named_at_once(tool: Tool) -> None:
    nowhere: Any = None
    answer = await tool.run(nowhere, {}) if tool.input_schema["required"] else None
    for name in tool.input_schema["required"]:
        assert answer is not None
        assert not answer.ok
        assert f"'{name}' " in answer.output


@pytest.mark.parametrize(
    ("tool", "ours", "theirs"),
    [
        ("read_file", "path", "file_path"),
        ("write_file", "path", "file_path"),
        ("write_file", "content", "text"),
        ("edit_file", "path", "file_path"),
        ("edit_file", "old_text", "old_string"),
        ("edit_file", "new_text", "new_string"),
        ("delete_file", "path", "file_path"),
        ("move_file", "source", "path"),
        ("move_file", "source", "from"),
        ("move_file", "destination", "target"),
        ("move_file", "destination", "to"),
        ("search_files", "pattern", "query"),
    ],
)
async def test_argument_names_of_well_known_tools_are_accepted(
    tool: str, ours: str, theirs: str
) -> None:
    declared, sent = declaration_of(TOOLS[tool]), example(TOOLS[tool])
    named = {theirs if name == ours else name: value for name, value in sent.items()}
    assert declared.read(named) == declared.read(sent)
    nowhere: Any = None
    answer = await TOOLS[tool].run(nowhere, named | {theirs: 3})
    assert answer.output == f"'{theirs}' must be a text."
