"""JSON as the archive stores it: text that any database keeps byte for byte.

Provider blocks and event payloads are stored as text rather than in a JSON
column: a JSON column reorders keys (PostgreSQL), refuses ``\\u0000`` and lone
surrogates, or cannot hold a damaged import at all.
"""

import json
from typing import Any

from .text import is_storable


def dump_json(value: Any) -> str:
    """Return compact JSON that can be stored as UTF-8 on every database.

    Dumping, loading and dumping again gives the same text, so digests survive an
    export. Lone surrogates are kept, as escapes.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if is_storable(text):
        return text
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def load_json(text: str | None, *, default: Any = None) -> Any:
    """Parse stored JSON; ``default`` for nothing. Raises ValueError when damaged.

    RecursionError (thousands of nested brackets) counts as damage.
    """
    if text is None or text == "":
        return default
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
