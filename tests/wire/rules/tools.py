"""Rules for ``tools``."""

import re
from typing import Any

from tests.wire.rules.errors import refuse
from tests.wire.rules.prompt import check_cache_control

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
TOOL_KEYS = frozenset(
    (
        "name",
        "description",
        "input_schema",
        "cache_control",
        "type",
        "strict",
        "eager_input_streaming",
        "defer_loading",
        "allowed_callers",
        "input_examples",
    )
)


def check_tools(body: dict[str, Any]) -> None:
    tools = body.get("tools", [])
    if not isinstance(tools, list):
        raise refuse("tools: Input should be a valid list")
    for number, tool in enumerate(tools):
        check_tool(tool, f"tools.{number}.custom")
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise refuse("tools: Tool names must be unique.")


def check_tool(tool: Any, where: str) -> None:
    if not isinstance(tool, dict):
        raise refuse(f"{where}: Input should be a valid dictionary")
    for key in tool:
        if key not in TOOL_KEYS:
            raise refuse(f"{where}.{key}: Extra inputs are not permitted")
    name = tool.get("name")
    if not isinstance(name, str):
        raise refuse(f"{where}.name: Field required")
    if not TOOL_NAME.fullmatch(name):
        raise refuse(f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if not isinstance(tool.get("description", ""), str):
        raise refuse(f"{where}.description: Input should be a valid string")
    if tool.get("type", "custom") == "custom":
        check_schema(tool.get("input_schema"), f"{where}.input_schema")
    check_cache_control(tool, where)


def check_schema(schema: Any, where: str) -> None:
    if not isinstance(schema, dict):
        raise refuse(f"{where}: Field required")
    if "type" not in schema:
        raise refuse(f"{where}.type: Field required")
    if schema["type"] != "object":
        raise refuse(f"{where}.type: Input should be 'object'")
    for key in ("oneOf", "allOf", "anyOf"):
        if key in schema:
            raise refuse(f"{where}: input_schema does not support {key} at the top level")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise refuse(f"{where}.properties: Input should be a valid dictionary")
    for name in properties:
        if not PROPERTY_NAME.fullmatch(name):
            raise refuse(
                f"{where}.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"
            )
    if not isinstance(schema.get("required", []), list):
        raise refuse(f"{where}.required: Input should be a valid list")
