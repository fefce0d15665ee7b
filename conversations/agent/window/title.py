"""The request for a session's title, made from its first message and the answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from conversations.archive.turns import read_turns_in
from conversations.domain.stream import ModelRequest
from conversations.domain.text import dump_json
from conversations.domain.turns import ASSISTANT, USER, AnyTurn

from .window import MANIFEST_VERSION, ranges_of

TITLE = "title"  # The kind of the manifest
MAX_TEXT_CHARS = 1_500  # Per text
MAX_ANSWER_TOKENS = 200  # A thinking model needs more tokens than the title has

TASK = (
    "Write a title for the conversation below: at most six words, in the language of the"
    " person, without quotation marks and without a full stop. Answer with the title alone."
)


def make_title_request(
    turns: Sequence[AnyTurn], *, model: str, max_tokens: int = MAX_ANSWER_TOKENS
) -> ModelRequest:
    names = {USER: "Person", ASSISTANT: "Assistant"}
    quoted = "\n\n".join(f"{names[t.role]}: {t.content[:MAX_TEXT_CHARS]}" for t in turns)
    text = f"{TASK}\n\n<conversation>\n{quoted}\n</conversation>"
    return ModelRequest(
        model=model,
        messages=[{"role": "user", "content": [{"type": "text", "text": text}]}],
        max_tokens=max_tokens,
    )


def title_manifest(request: ModelRequest, numbers: Sequence[int]) -> str:
    return dump_json(
        {
            "v": MANIFEST_VERSION,
            "kind": TITLE,
            "model": request.model,
            "max_tokens": request.max_tokens,
            "turns": ranges_of(numbers),
        }
    )


def rebuild_title_request(session_pk: int, manifest: Mapping[str, Any]) -> ModelRequest:
    """Rebuild the request as it was sent."""
    turns = read_turns_in(session_pk, [(low, high) for low, high in manifest["turns"]])
    model, max_tokens = manifest["model"], manifest["max_tokens"]
    return make_title_request(turns, model=model, max_tokens=max_tokens)
