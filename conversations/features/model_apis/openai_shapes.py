"""The schemas of OpenAI's APIs, and reading requests for chat completions and responses."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ninja import Field, Schema
from pydantic import BaseModel, ConfigDict

from conversations.domain.errors import Rejected
from conversations.domain.formats import OPENAI
from conversations.domain.formats.contents import BAD_MESSAGE
from conversations.domain.runs import RunChoices
from conversations.domain.stream import STRICT
from conversations.domain.text import dump_json
from conversations.domain.turns import ASSISTANT, TOOL, USER
from conversations.providers.model_limits import is_claude, takes_sampling

from .client_request import (
    SYSTEM_ROLES,
    ClientRequest,
    join_instructions,
    make_choices,
    read_person_content,
    refused,
    require_tools,
    split_contents,
    split_messages,
)

CHANNEL = OPENAI

ROLES = (*SYSTEM_ROLES, USER, ASSISTANT, TOOL)

# Levels of thinking effort: OpenAI's values, mapped to those of the Messages API.
EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}

TOOL_CHOICES = {"none": "none", "required": "any"}

REFERENCE = "item_reference"
_ITEM_ID = re.compile(r"(?:msg|fc)_([0-9a-f]{32}(?:_\d+)?)_\d+")  # see ResponseWriter

# Unsupported parameters that would change the answer, with values that are accepted because they
# have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "background": (False,),
    "conversation": (),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "max_tool_calls": (),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "prompt": (),
    "top_logprobs": (0,),
    "web_search_options": (),
}


class StreamOptions(Schema):
    include_usage: bool | None = Field(False, description="Whether the last event has the tokens.")


class _AnyRequest(BaseModel):
    # Not a Schema, which would silently drop unknown parameters.

    model_config = ConfigDict(extra="allow")

    model: str = Field(max_length=120)
    tools: list[dict[str, Any]] | None = Field(
        None, description="Functions that the client executes itself."
    )
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="Whether the model may or must call functions."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="Whether it may call several at once."
    )
    temperature: float | None = Field(None, ge=0, le=2, description="For models that support it.")
    top_p: float | None = Field(None, ge=0, le=1, description="For models that support it.")
    stream: bool | None = False


class CompletionIn(_AnyRequest):
    """A request for a chat completion.

    Unsupported parameters that would change the answer are refused."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(
        None,
        ge=1,
        description="Maximum length of the answer in one model call, within the workspace's limit.",
    )
    stop: str | list[str] | None = Field(None, description="Text at which the answer ends.")
    reasoning_effort: str | None = Field(None, description="How much the model thinks.")
    response_format: dict[str, Any] | None = Field(None, description="The format of the answer.")
    stream_options: StreamOptions | None = None


class ResponseIn(_AnyRequest):
    """A request for a response.

    Unsupported parameters that would change the answer are refused."""

    input: str | list[dict[str, Any]] = Field(description="What was said, or a list of items.")
    instructions: str | None = Field(None, description="The session's instructions from now on.")
    previous_response_id: str | None = Field(
        None, description="The answer that this continues: it names the session."
    )
    max_output_tokens: int | None = Field(
        None,
        ge=1,
        description="Maximum length of the answer in one model call, within the workspace's limit.",
    )
    reasoning: dict[str, Any] | None = Field(None, description="How much the model thinks.")
    text: dict[str, Any] | None = Field(None, description="The format of the answer.")


class ChatCompletion(Schema):
    """A chat completion."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None = None


class ResponseOut(Schema):
    """A response."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None = None


def read_completion_request(body: CompletionIn) -> ClientRequest:
    """Convert a request for a chat completion. Raise Rejected for unsupported parameters."""
    return _read_request(
        body,
        body.messages,
        "",
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=_read_stop(body.stop),
        effort=body.reasoning_effort,
        format_=body.response_format,
        has_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def read_response_request(body: ResponseIn) -> ClientRequest:
    """Convert a request for a response. Raise Rejected for unsupported parameters."""
    items = [{"role": USER, "content": body.input}] if isinstance(body.input, str) else body.input
    return _read_request(
        body,
        list(make_messages(items)),
        body.instructions or "",
        max_tokens=body.max_output_tokens,
        effort=(body.reasoning or {}).get("effort"),
        format_=(body.text or {}).get("format"),
        answer_id=body.previous_response_id or find_referred(items),
        echoed=body.model_dump(include=set(ECHOED), exclude_none=True),
    )


# Parameters of a request that its response repeats, with their defaults.
ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
}


def _read_request(
    body: CompletionIn | ResponseIn,
    messages: Sequence[dict[str, Any]],
    instructions: str,
    *,
    max_tokens: int | None,
    effort: Any,
    format_: Any,
    stop: list[str] | None = None,
    **fields: Any,
) -> ClientRequest:
    for name, value in (body.model_extra or {}).items():
        if value is not None and name in NEUTRAL and value not in NEUTRAL[name]:
            raise refused(name, "This is not supported here.")
    tools = [_read_tool(place, tool) for place, tool in enumerate(body.tools or [])]
    choice = _read_tool_choice(body)
    require_tools(choice, tools)
    output = {"effort": _read_effort(effort), "format": _read_format(format_)}
    choices = make_choices(
        max_tokens,
        stop_sequences=stop,
        tool_choice=choice,
        thinking={"type": "disabled"} if effort == "none" else None,
        output_config={name: value for name, value in output.items() if value} or None,
        **_read_sampling(body),
    )
    return _make_request(body, messages, instructions, tools, choices, **fields)


def _make_request(
    body: CompletionIn | ResponseIn,
    messages: Sequence[dict[str, Any]],
    instructions: str,
    tools: list[dict[str, Any]],
    choices: RunChoices,
    **fields: Any,
) -> ClientRequest:
    for place, message in enumerate(messages):
        if message.get("role") not in ROLES:
            reason = f"Its role must be one of {', '.join(ROLES)}."
            raise Rejected(f"messages[{place}]: {reason}", code=BAD_MESSAGE)
    earlier_messages, new_messages = split_messages(
        [message for message in messages if message["role"] not in SYSTEM_ROLES]
    )
    if not new_messages:
        raise Rejected(
            "The last message must be one of the user or of a tool.", code="nothing_to_answer"
        )
    return ClientRequest(
        channel=CHANNEL,
        model=body.model,
        earlier_messages=earlier_messages,
        new_messages=split_contents(new_messages),
        content=read_person_content(new_messages),
        results=[_make_result(message) for message in new_messages if message["role"] == TOOL],
        choices=choices,
        identity=dump_json([list(messages), choices.as_json(), fields.get("answer_id", "")]),
        instructions=join_instructions(instructions, messages),
        tools=tools,
        stream=bool(body.stream),
        **fields,
    )


def _make_result(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": message.get("tool_call_id"),
        "content": message.get("content"),
    }


def _read_stop(stop: str | list[str] | None) -> list[str] | None:
    texts = [stop] if isinstance(stop, str) else stop or []
    if not all(text.strip() for text in texts):
        raise refused("stop", "Each must contain more than white space.")
    return texts or None


def _read_sampling(body: CompletionIn | ResponseIn) -> dict[str, float | None]:
    """Return the sampling parameters to pass on.

    They are left out for models that do not support them, because programs send them routinely.
    The temperature is limited to 1 for Claude, whose range ends there."""
    if not takes_sampling(body.model):
        return {}
    temperature = body.temperature
    if temperature is not None and is_claude(body.model):
        temperature = min(temperature, 1.0)
    return {"temperature": temperature, "top_p": body.top_p}


def _read_effort(effort: Any) -> str | None:
    if effort in (None, "none"):
        return None
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise refused("reasoning_effort", f"It must be one of none, {', '.join(EFFORTS)}.")
    return EFFORTS[effort]


def _read_format(value: Any) -> dict[str, Any] | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if value is None or kind == "text":
        return None
    # In chat completions the schema is one level deeper.
    holder = value.get("json_schema", value) if kind == "json_schema" else None
    if not isinstance(holder, dict):
        holder = {}
    schema = holder.get("schema")
    if not isinstance(schema, dict):
        raise refused("response_format", "It must be text or json_schema with a schema.")
    strict = {STRICT: True} if holder.get(STRICT) is True else {}
    return {"type": "json_schema", "schema": schema} | strict


def _read_tool(place: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        reason = f"Tools of type {tool.get('type')} are not supported. Send functions."
        raise refused(f"tools[{place}]", reason)
    function = tool.get("function", tool)  # In responses there is no level "function".
    if not isinstance(function, dict):
        raise refused(f"tools[{place}]", "Its function must be an object.")
    return {
        "name": function.get("name"),
        "description": function.get("description") or "",
        "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
    }


def _read_tool_choice(body: CompletionIn | ResponseIn) -> dict[str, Any] | None:
    choice = body.tool_choice
    single = {"disable_parallel_tool_use": True} if body.parallel_tool_calls is False else {}
    if choice in (None, "auto"):
        return {"type": "auto"} | single if single and body.tools else None
    if isinstance(choice, str) and choice in TOOL_CHOICES:
        kind = TOOL_CHOICES[choice]
        return {"type": kind} if kind == "none" else {"type": kind} | single
    named = choice.get("function", choice) if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    is_function = isinstance(choice, dict) and choice.get("type") == "function"
    if not is_function or not isinstance(name, str):
        raise refused("tool_choice", "It must be none, auto, required or name a function.")
    return {"type": "tool", "name": name} | single


# Items of a response's input.


def find_referred(items: Sequence[Mapping[str, Any]]) -> str:
    """Return the id of the response whose item the last item reference names, or ""."""
    for item in reversed(items):
        match = _ITEM_ID.fullmatch(str(item.get("id"))) if item.get("type") == REFERENCE else None
        if match is not None:
            return f"resp_{match[1]}"
    return ""


def make_messages(items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Convert items to chat messages. An answer's text and tool calls become one message.

    Raise Rejected for items that cannot be converted."""
    answer: dict[str, Any] | None = None
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        is_told_of = bool(find_referred([item]))
        is_answer = is_told_of or kind == "function_call" or item.get("role") == ASSISTANT
        if answer is not None and not is_answer and kind != "reasoning":
            yield answer
            answer = None
        if kind == "message" and is_answer:
            parts = _read_parts(item.get("content"))
            if not isinstance(parts, str | list | None):
                raise refused(f"input[{place}]", "Its content must be a text or a list of parts.")
            answer = _join_answers(answer, {"content": parts})
        elif kind == "message":
            yield {"role": item.get("role"), "content": _read_parts(item.get("content"))}
        elif is_told_of:
            answer = _join_answers(answer, {})  # its content is in the session
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            answer = _join_answers(answer, {"tool_calls": [call]})
        elif kind == "function_call_output":
            content = _read_parts(item.get("output"))
            yield {"role": TOOL, "tool_call_id": item.get("call_id"), "content": content}
        elif kind != "reasoning":  # the session has the model's reasoning already
            raise refused(f"input[{place}]", f"Items of type {kind} are not supported.")
    if answer is not None:
        yield answer


def _join_answers(answer: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    joined = {"role": ASSISTANT, "content": None} | (answer or {})
    if content := more.get("content"):
        if joined["content"] is None:
            joined["content"] = content
        else:
            joined["content"] = [*_as_parts(joined["content"]), *_as_parts(content)]
    if calls := more.get("tool_calls"):
        joined["tool_calls"] = [*joined.get("tool_calls", []), *calls]
    return joined


def _as_parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _read_parts(content: Any) -> Any:
    return [_read_part(part) for part in content] if isinstance(content, list) else content


def _read_part(part: Any) -> Any:
    """Convert a part to one of a chat message. Other parts stay unchanged and are refused later."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text")}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    if kind == "input_file" and isinstance(part.get("file_data"), str):
        return {
            "type": "file",
            "file": {k: part[k] for k in ("filename", "file_data") if k in part},
        }
    return part
