"""Functions that read a request: the person's last text and the default answer to it."""

from typing import Any

from tests.wire.rules.prompt import blocks_of

MAX_ECHO = 200
ADDED = ("[Session state", "[Archive:", "[System:", "[Summary of turns", "[Note:", "[Skill ")
"""Beginnings of texts that the person did not write."""


def make_default_text(body: dict[str, Any]) -> str:
    """Return a short echo of the last message, with some Markdown."""
    results = [b for b in blocks_of(body["messages"][-1]) if b["type"] == "tool_result"]
    if results:
        said = "\n".join(shorten(read_text(result.get("content", ""))) for result in results)
        return f"The tool answered:\n\n```text\n{said}\n```\n\nThat is **all** of it."
    said = shorten(" ".join(find_last_text(body).split()))
    count_ = len(body["messages"])
    return (
        f"## Echo\n\nYou said: *{said}*\n\n- messages in the request: **{count_}**\n"
        f"- model: `{body['model']}`\n\n```python\nprint('done')\n```\n"
    )


def read_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", f"[{part['type']}]")) for part in content)


def shorten(text: str) -> str:
    return text if len(text) <= MAX_ECHO else text[:MAX_ECHO] + "…"


def find_last_texts(body: dict[str, Any]) -> tuple[int, list[str]]:
    """Return the number and the texts of the person's last message that has texts."""
    for number in range(len(body["messages"]) - 1, -1, -1):
        message = body["messages"][number]
        texts = [
            block["text"]
            for block in blocks_of(message)
            if block["type"] == "text" and not block["text"].startswith(ADDED)
        ]
        if message["role"] == "user" and texts:
            return number, texts
    return 0, []


def find_last_text(body: dict[str, Any]) -> str:
    _, texts = find_last_texts(body)
    return texts[0] if texts else ""


def count_rounds(body: dict[str, Any]) -> int:
    """Return how many times tools were called since the person's last text."""
    number, _ = find_last_texts(body)
    return sum(
        any(block["type"] == "tool_use" for block in blocks_of(message))
        for message in body["messages"][number + 1 :]
    )
