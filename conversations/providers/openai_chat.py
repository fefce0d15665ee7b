"""The provider for servers that speak OpenAI's chat completions, through the ``openai`` SDK.

Nearly every server of local models speaks this protocol. The servers differ in what they leave out,
so answers are read leniently: an answer that comes as one document, calls without ids or numbers,
thinking between tags, no usage, a wrong stop reason. If a server refuses something by name
(``max_tokens``, ``stream_options``, ids of calls, the order of messages) or misses something
(``reasoning_content``), later requests are sent to it in another form.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from conversations.domain.errors import ProviderError
from conversations.domain.stream import Block, ModelInfo, ModelRequest, sealed_of
from conversations.domain.text import dump_json

from .local_servers import read_local_models
from .message_assembly import WAS_THINKING, Event
from .model_limits import SAMPLING
from .openai_shapes import (
    data_url,
    file_name,
    files_of_result,
    nine_letter_call_id,
    read_effort,
    read_usage,
    schema_format,
    short_call_id,
    short_name,
    short_names,
    text_of,
    text_of_part,
    text_of_result,
    text_of_system,
)
from .provider_errors import ROLES_REFUSED, make_error
from .sdk_client import SdkProvider, make_http_options

if TYPE_CHECKING:
    import openai

DEFAULT_BASE_URL = "https://api.openai.com/v1"

# Parameters that some servers refuse by name, and their replacements
REPLACED = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
LEFT_OUT = ("stream_options", "parallel_tool_calls", "reasoning_effort", *SAMPLING)

_A_RANGE = re.compile(
    r"(less|greater|more) than|between|range|at (most|least)|(maxi|mini)mum|<=|>=|≤|≥",
    re.IGNORECASE,
)

# DeepSeek and Kimi want this key back with each answer, and other servers may not know it. Some
# servers treat an empty value as missing.
THOUGHT, NO_THOUGHT = "reasoning_content", " "

# Mistral only accepts its own form: "Tool call id was toolu_1 but must be a-z, A-Z, 0-9, with a
# length of 9."
CALL_IDS, CALL_IDS_WORDS = "tool_call_id", "with a length of 9"

# Mistral wants an answer between the results of tools and a message of the person, as its models'
# templates do. READ stands in for that answer.
ROLES, READ = "role", "I have read the results."


class OpenAIProvider(SdkProvider):
    """The common part of the providers for both of OpenAI's protocols."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._base_url = self._base_url or DEFAULT_BASE_URL
        self._refused: dict[str, set[str]] = {}  # Parameters by model

    def import_sdk(self) -> ModuleType:
        import openai
        import openai.resources.models

        return openai

    def make_client(self) -> "openai.AsyncOpenAI":
        import openai

        timeout, limits = make_http_options(self._timeout)
        return openai.AsyncOpenAI(
            api_key=self._api_key,
            # Otherwise the SDK reads them from the environment.
            organization="",
            project="",
            base_url=self._base_url,
            max_retries=0,
            timeout=timeout,
            http_client=openai.DefaultAioHttpClient(timeout=timeout, limits=limits),
        )

    async def fetch_models(self, client: "openai.AsyncOpenAI") -> list[ModelInfo]:
        return await read_local_models(client)

    def adapt_to_refusal(self, request: ModelRequest, error: ProviderError) -> bool:
        if error.code != "invalid_request":
            return False
        refused = self._refused.setdefault(request.model, set())
        sent = self.make_body(request)
        for name, pattern in self.refusable(sent).items():
            if name in SAMPLING and _A_RANGE.search(error.message):
                continue  # the value is refused, not the parameter
            if name not in refused and re.search(pattern, error.message):
                refused.add(name)
                return True
        return False

    def refusable(self, body: Mapping[str, Any]) -> dict[str, str]:
        """Return the parameters that can be left out, each with a pattern for its refusal."""
        return {name: name for name in (*REPLACED, *LEFT_OUT) if name in body}

    def adapt(self, model: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body without the parameters that the server has refused for this model."""
        refused = self._refused.get(model, ())
        for name in refused:
            if name in body:
                value = body.pop(name)
                if name in REPLACED and REPLACED[name] not in refused:
                    body[REPLACED[name]] = value
        return body


class OpenAIChatProvider(OpenAIProvider):
    """Answers model calls through the chat completions at ``base_url``."""

    path = "/chat/completions"

    def make_body(self, request: ModelRequest) -> dict[str, Any]:
        is_openai = self._base_url.startswith(DEFAULT_BASE_URL)
        limit = "max_completion_tokens" if is_openai else "max_tokens"
        refused = self._refused.get(request.model, ())
        make_id = nine_letter_call_id if CALL_IDS in refused else short_call_id
        body = make_body(
            request,
            limit=limit,
            has_thoughts=THOUGHT in refused,
            answers_results=ROLES in refused,
            make_id=make_id,
        )
        return self.adapt(request.model, body)

    def refusable(self, body: Mapping[str, Any]) -> dict[str, str]:
        # A refusal names THOUGHT if it is missing; the other two are within the messages.
        patterns = {THOUGHT: THOUGHT, CALL_IDS: CALL_IDS_WORDS, ROLES: ROLES_REFUSED}
        return super().refusable(body) | patterns

    def make_translator(self, request: ModelRequest) -> "ChatTranslator":
        return ChatTranslator(names=short_names(request))


# The request


def make_body(
    request: ModelRequest,
    *,
    limit: str = "max_tokens",
    has_thoughts: bool = False,
    answers_results: bool = False,
    make_id: Callable[[str], str] = short_call_id,
) -> dict[str, Any]:
    """Return the request in the shape of ``POST /chat/completions``.

    ``limit`` is the name of the parameter for the longest answer. With ``has_thoughts`` answers are
    sent back with their thinking. With ``answers_results`` an answer is inserted between results of
    tools and a message of the person. ``make_id`` returns the id of a call that the server accepts,
    the same each time."""
    system = text_of_system(request.system)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in request.messages:
        write = _write_answer if message["role"] == "assistant" else _write_person
        for written in write(message["content"], make_id):
            if has_thoughts and written["role"] == "assistant":
                written[THOUGHT] = thinking_of(message["content"]) or NO_THOUGHT
            last = messages[-1]["role"] if messages else ""
            if answers_results and (last, written["role"]) == ("tool", "user"):
                messages.append({"role": "assistant", "content": READ})
            # Templates of local models require the roles to alternate.
            if written["role"] == last == "user":
                messages[-1]["content"] = _join(messages[-1]["content"], written["content"])
            else:
                messages.append(written)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        limit: request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [{"type": "function", "function": make_function(t)} for t in request.tools]
    return body | _write_choices(request.choices)


def make_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": short_name(tool["name"]),
        "description": tool.get("description", ""),
        "parameters": tool["input_schema"],
    }


def _write_choices(choices: Mapping[str, Any]) -> dict[str, Any]:
    written = {name: choices[name] for name in SAMPLING if name in choices}
    if sequences := choices.get("stop_sequences"):
        written["stop"] = sequences
    if effort := read_effort(choices):
        written["reasoning_effort"] = effort
    if schema := schema_format(choices):
        written["response_format"] = {"type": "json_schema", "json_schema": schema}
    if choice := choices.get("tool_choice"):
        kinds: dict[str, Any] = {"any": "required", "none": "none", "auto": "auto"}
        function = {"name": short_name(str(choice.get("name", "")))}
        one_tool = {"type": "function", "function": function}
        written["tool_choice"] = kinds.get(choice["type"], one_tool)
        if choice.get("disable_parallel_tool_use"):
            written["parallel_tool_calls"] = False
    return written


def _write_person(content: Any, make_id: Callable[[str], str]) -> Iterator[dict[str, Any]]:
    """Yield the results of tools as separate messages, then what the person said."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    user_blocks: list[Block] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            call_id = make_id(block["tool_use_id"])
            text = text_of_result(block)
            yield {"role": "tool", "tool_call_id": call_id, "content": text}
            user_blocks += files_of_result(block)
        else:
            user_blocks.append(block)
    parts = [_part_of(block) for block in user_blocks]
    if parts:
        yield {"role": "user", "content": _join([], parts)}


def _join(first: Any, second: Any) -> Any:
    """Join parts; return a string, which every server accepts, if all parts are texts."""
    parts: list[Block] = []
    for content in (first, second):
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _part_of(block: Block) -> Block:
    if (text := text_of_part(block)) is not None:
        return {"type": "text", "text": text}
    data = data_url(block["source"])
    if block["type"] == "image":
        return {"type": "image_url", "image_url": {"url": data}}
    return {"type": "file", "file": {"filename": file_name(block), "file_data": data}}


def thinking_of(content: Any) -> str:
    blocks = [] if isinstance(content, str) else content
    texts = [block["thinking"] for block in blocks if block.get("type") == "thinking"]
    return "\n\n".join(texts)


def _write_answer(content: Any, make_id: Callable[[str], str]) -> Iterator[dict[str, Any]]:
    text = text_of(content)
    blocks = [] if isinstance(content, str) else content
    calls = [
        {
            "id": make_id(block["id"]),
            "type": "function",
            "function": {
                "name": short_name(block["name"]),
                "arguments": dump_json(block.get("input") or {}),
            },
        }
        | sealed_of(block)
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    if calls:
        yield {"role": "assistant", "content": text or None, "tool_calls": calls}
    elif text:
        yield {"role": "assistant", "content": text}


# The answer

# Includes those of text-generation-inference, Together and Z.ai
STOP_REASONS = {
    "stop": "end_turn",
    "eos": "end_turn",
    "eos_token": "end_turn",
    "stop_sequence": "end_turn",
    "length": "max_tokens",
    "model_length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
    "sensitive": "refusal",
}
# Reasons for an interrupted answer, from vLLM, SGLang, OpenRouter, DeepSeek, Z.ai and Gemini
BROKEN_OFF = re.compile(
    r"error|abort|insufficient_system_resource|malformed_function_call|function_call_filter"
)

THINK, END_OF_THINK = "<think>", "</think>"


class ChatTranslator:
    """Translates the chunks of one answer into events of the Messages API.

    ``names`` are the names of tools, by their names in the request."""

    def __init__(self, *, names: Mapping[str, str]) -> None:
        self._names = names
        self._has_started = False
        self._next = 0  # The number of the next block
        self._text: tuple[str, int] | None = None  # Kind and number of the open text
        self._calls: dict[Any, tuple[int, str]] = {}  # Numbers and ids of calls, by their place
        self._reason = ""
        self._refusal = False
        self._usage: dict[str, Any] = {}
        self._tags = ThinkingTags()

    def translate(self, event: Event, kind: str) -> Iterator[Event]:
        # Azure's first chunk has neither; it says what was filtered in the prompt.
        if not self._has_started and (event.get("id") or event.get("choices")):
            self._has_started = True
            message = {"id": event.get("id") or "", "model": event.get("model") or ""}
            yield {"type": "message_start", "message": message}
        if isinstance(event.get("usage"), dict):
            self._usage = event["usage"]
        for choice in (event.get("choices") or ())[:1]:
            yield from self._translate_delta(choice.get("delta") or choice.get("message") or {})
            self._reason = str(choice.get("finish_reason") or self._reason).lower()
            if BROKEN_OFF.search(self._reason):
                raise make_error("stream_error", self._reason)

    def translate_document(self, document: Event) -> Iterator[Event]:
        if not document["choices"]:
            raise ValueError("an answer without a choice")
        yield from self.translate(document, "")
        self._reason = self._reason or "stop"
        yield from self.end(is_marked=True)

    def end(self, *, is_marked: bool) -> Iterator[Event]:
        if not self._has_started or not (self._reason or is_marked):
            return
        for kind, text in self._tags.end():
            yield from self._add_text(kind, text)
        ended = {"stop_reason": self._stop_reason()}
        yield {"type": "message_delta", "delta": ended, "usage": read_usage(self._usage)}
        yield {"type": "message_stop"}

    def _stop_reason(self) -> str:
        name = self._reason.partition(":")[0]  # Gemini's filter follows it
        return "refusal" if self._refusal else STOP_REASONS.get(name, name or "end_turn")

    def _translate_delta(self, delta: Mapping[str, Any]) -> Iterator[Event]:
        for name in ("reasoning_content", "reasoning"):
            if (thought := delta.get(name)) and isinstance(thought, str):
                yield from self._add_text("thinking", thought)
                break
        for kind, text in _read_content(delta.get("content")):
            if kind == "thinking":
                yield from self._add_text(kind, text)
            else:
                for tagged, piece in self._tags.feed(text):
                    yield from self._add_text(tagged, piece)
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            self._refusal = True
            yield from self._add_text("text", refusal)
        for call in delta.get("tool_calls") or ():
            yield from self._translate_call(call)

    def _add_text(self, kind: str, text: str) -> Iterator[Event]:
        if not text:
            return
        if kind == WAS_THINKING:
            if self._text == ("text", 0):
                yield {"type": "content_block_stop", "index": 0, WAS_THINKING: True}
                self._text = None
                return
            kind, text = "text", f"{text}\n"  # it has thought elsewhere
        if self._text is None or self._text[0] != kind:
            yield from self._end_text()
            self._text = (kind, self._next)
            self._next += 1
            yield make_start(self._text[1], {"type": kind, kind: ""})
        yield make_delta(self._text[1], {"type": f"{kind}_delta", kind: text})

    def _end_text(self) -> Iterator[Event]:
        if self._text is not None:
            yield {"type": "content_block_stop", "index": self._text[1]}
            self._text = None

    def _translate_call(self, call: Mapping[str, Any]) -> Iterator[Event]:
        """Translate a piece of a call.

        Some servers give calls no number, or all the same one, and send each call as a whole."""
        function = call.get("function") or {}
        call_id = str(call.get("id") or "")
        position = call.get("index")
        if position is None:
            if call_id:
                position = call_id
            elif function.get("name"):
                position = len(self._calls)
            else:
                position = next(reversed(self._calls), 0)
        opened = self._calls.get(position)
        if opened is None or (call_id and opened[1] and call_id != opened[1]):
            for kind, text in self._tags.end():
                yield from self._add_text(kind, text)
            yield from self._end_text()
            name = str(function.get("name") or "")
            block = {"type": "tool_use", "id": call_id, "name": self._names.get(name, name)}
            block |= sealed_of(call)
            if opened is not None:  # a new call at the same place: the one before is complete
                self._calls[position, opened[1]] = opened
            opened = self._calls[position] = (self._next, call_id)
            self._next += 1
            yield make_start(opened[0], block | {"input": {}})
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else dump_json(arguments or {})
        if text and arguments is not None:
            yield make_delta(opened[0], {"type": "input_json_delta", "partial_json": text})


def make_start(index: int, block: Block) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def make_delta(index: int, delta: Mapping[str, Any]) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _read_content(content: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts with their kinds; some servers send parts in place of a string."""
    if isinstance(content, str):
        yield "text", content
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "thinking":
            yield "thinking", text_of(part.get("thinking"))
        elif isinstance(part.get("text"), str):
            yield "text", part["text"]


class ThinkingTags:
    """Finds thinking that a server has left in the text of an answer.

    It is between tags at the beginning of the text, or before an end tag alone if the thinking
    began in the prompt. The second case is known late: if :data:`WAS_THINKING` follows, the text so
    far was thinking."""

    def __init__(self) -> None:
        self._pending = ""
        self._tag = THINK  # The tag that may come next; empty: none
        self._kind = "text"
        self._texts: list[str] = []  # The text after which an end tag alone may follow

    def feed(self, text: str) -> Iterable[tuple[str, str]]:
        if not self._tag:
            return [("text", text)]
        text = self._pending + text
        self._pending = ""
        if self._tag == THINK:
            stripped = text.lstrip()
            # An end tag at the beginning ends empty thinking.
            if stripped.startswith((THINK, END_OF_THINK)):
                self._kind = "thinking"
                text = stripped.removeprefix(THINK)
            elif THINK.startswith(stripped) or END_OF_THINK.startswith(stripped):
                self._pending = text
                return []
            self._tag = END_OF_THINK
        before, tag, after = text.partition(END_OF_THINK)
        if self._kind == "thinking" and tag:
            self._tag, self._kind = "", "text"
            return [("thinking", before), ("text", after.lstrip("\n"))]
        if not tag:
            ends = range(len(END_OF_THINK) - 1, 0, -1)
            keep = next((n for n in ends if before.endswith(END_OF_THINK[:n])), 0)
            end = len(before) - keep
            before, self._pending = before[:end], before[end:]
        elif not after.strip(" "):  # the text after it decides
            self._pending = tag + after
        else:
            return [("text", before), *self._end_without_start(before, after)]
        if self._kind == "text":
            self._texts.append(before)
        return [(self._kind, before)]

    def end(self) -> Iterable[tuple[str, str]]:
        """Return the text that is held back, if no more text comes or a call follows."""
        pending, self._pending = self._pending, ""
        if pending.startswith(END_OF_THINK) and self._tag == END_OF_THINK:
            return self._end_without_start("", pending.removeprefix(END_OF_THINK))
        return [(self._kind, pending)]

    def _end_without_start(self, before: str, after: str) -> list[tuple[str, str]]:
        """Handle an end tag without a beginning.

        Such a tag ends thinking only if it is at the end of a line and not quoted; otherwise it is
        part of the text."""
        text = "".join([*self._texts, before])
        self._tag = ""
        is_quoted = THINK in text or text.endswith("`") or text.count("```") % 2
        if is_quoted or after.lstrip(" ")[:1].strip("\r\n"):
            return [("text", END_OF_THINK + after)]
        return [(WAS_THINKING, END_OF_THINK), ("text", after.lstrip(" \r\n"))]
