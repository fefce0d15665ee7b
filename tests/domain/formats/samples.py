"""Messages of both formats, from the APIs' documentation and from Hypothesis."""

from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}

ANTHROPIC: list[Message] = [
    {"role": "user", "content": "What is the weather in Paris and in Rome?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Two places.", "signature": "c2lnbmF0dXJl"},
            {"type": "redacted_thinking", "data": "b3BhcXVl"},
            {"type": "text", "text": "I look at both."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Paris"}},
            {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"place": "Rome"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "18 degrees"},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_2",
                "content": [{"type": "text", "text": "The service is away."}, IMAGE],
                "is_error": True,
            },
            {"type": "text", "text": "Never mind Rome."},
        ],
    },
    {"role": "assistant", "content": "18 degrees in Paris."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "And this?", "cache_control": {"type": "ephemeral"}},
            {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
            IMAGE,
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "Grass is green."},
                "title": "Grass",
                "citations": {"enabled": True},
            },
            {"type": "from_the_future", "what": [1, 2.5, None]},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
            {"type": "text", "text": "Grass", "citations": [{"type": "char_location"}]},
            {"type": "text", "text": " is green."},
        ],
    },
    {"role": "system", "content": "From now on, be brief."},
    {"role": "user", "content": []},
]

OPENAI: list[Message] = [
    {"role": "developer", "content": "Be exact."},
    {"role": "user", "name": "ann", "content": "What is the weather in Paris and in Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"place":"Paris"}'},
            },
            {
                "id": "call_2",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"place": "Ro'},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"},
    {
        "role": "tool",
        "tool_call_id": "call_2",
        "content": [{"type": "text", "text": "no such"}, {"type": "text", "text": "place"}],
    },
    {"role": "assistant", "content": "18 degrees in Paris.", "reasoning_content": "easy"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "And this?"},
            {
                "type": "image_url",
                "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"},
            },
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {
                "type": "file",
                "file": {
                    "filename": "a.pdf",
                    "file_data": "data:application/pdf;base64,JVBERg==",
                },
            },
            {"type": "file", "file": {"file_id": "file-1"}},
        ],
    },
    {"role": "assistant", "content": None, "refusal": "I cannot look at that."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot say."}]},
    {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "weather", "arguments": "{}"},
    },
    {"role": "function", "name": "weather", "content": "18 degrees"},
]

CHAT_MESSAGES: list[Message] = [
    {"role": "system", "content": "You look after a garden."},
    {"role": "user", "content": [{"type": "text", "text": "Which plants are dry?"}]},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "name": "look", "arguments": {"bed": 1}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "all"},
]
"""Messages of another program, whose tool calls have a different shape."""

text = st.text(max_size=12)
"""Text that may have characters that a database cannot store."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
more = st.dictionaries(st.sampled_from(["cache_control", "title", "x", "is_error"]), json_values)


def _with_more(block: st.SearchStrategy[Message]) -> st.SearchStrategy[Message]:
    return st.builds(lambda extra, given: extra | given, more | st.just({}), block)


def _block(kind: str, **fields: Any) -> st.SearchStrategy[Message]:
    return _with_more(st.fixed_dictionaries({"type": st.just(kind), **fields}))


texts = _block("text", text=text)
images = _block("image", source=st.just(IMAGE["source"]) | json_values)
documents = _block("document", source=json_values, title=text)
others = _block("new", content=json_values)
results = _block(
    "tool_result",
    tool_use_id=text,
    content=text | st.lists(texts | images, max_size=3) | json_values,
    is_error=st.booleans() | json_values,
)
thinking = _block("thinking", thinking=text, signature=text)
calls = _block("tool_use", id=text, name=text, input=st.dictionaries(text, json_values, max_size=2))

anthropic_messages = st.lists(
    _with_more(
        st.fixed_dictionaries(
            {
                "role": st.just("user"),
                "content": text
                | st.lists(texts | images | documents | others | results, max_size=4),
            }
        )
    )
    | st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": text | st.lists(texts | thinking | calls | others, max_size=4),
        }
    )
    | st.fixed_dictionaries({"role": st.just("system"), "content": text | st.lists(texts)}),
    max_size=5,
)

parts = (
    texts
    | _block("image_url", image_url=json_values | st.fixed_dictionaries({"url": text}))
    | _block(
        "file",
        file=json_values
        | st.fixed_dictionaries(
            {"file_data": text.map("data:text/plain;base64,{}".format) | text},
            optional={"filename": text},
        ),
    )
    | others
    | images
)
contents = st.none() | text | st.lists(parts, max_size=3)
openai_calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": text,
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": text, "arguments": text}),
        }
    )
    | st.dictionaries(text, json_values, max_size=3),
    max_size=3,
)
openai_messages = st.lists(
    _with_more(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "developer", "user"]), "content": contents},
            optional={"name": text | json_values},
        )
    )
    | st.fixed_dictionaries(
        {"role": st.just("assistant")},
        optional={
            "content": contents,
            "refusal": st.none() | text,
            "tool_calls": openai_calls,
            "function_call": json_values,
        },
    )
    | st.fixed_dictionaries(
        {"role": st.sampled_from(["tool", "function"])},
        optional={"content": contents, "tool_call_id": text | json_values, "name": text},
    ),
    max_size=5,
)
