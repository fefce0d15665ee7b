"""What the plain reading of a message would lose, kept as a difference.

A difference says how to get from what would be written to what was read::

    {"is": value}                              another value
    {"in": {key: difference}, "without": […]}  an object with other or fewer keys
    {"at": {index: difference}}                a list with other items

It lies in the turn's metadata, by format, beside all else that only formats know.
"""

from collections.abc import Mapping
from typing import Any

from conversations.domain.turns import AnyTurn, read_metadata

type Difference = dict[str, Any]

FORMATS_KEY = "formats"
"""In a turn's metadata."""


def difference(written: Any, read: Any) -> Difference | None:
    """How to get from one JSON value to another; None: they are the same."""
    if isinstance(written, dict) and isinstance(read, dict):
        return _difference_of_objects(written, read)
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = enumerate(zip(written, read, strict=True))
        found = {str(place): difference(*pair) for place, pair in pairs}
        changed = {place: what for place, what in found.items() if what is not None}
        return {"at": changed} if changed else None
    return None if type(written) is type(read) and written == read else {"is": read}


def _difference_of_objects(written: dict[str, Any], read: dict[str, Any]) -> Difference | None:
    found = {
        key: difference(written[key], value) if key in written else {"is": value}
        for key, value in read.items()
    }
    changed = {key: what for key, what in found.items() if what is not None}
    without = [key for key in written if key not in read]
    parts = {"in": changed, "without": without}
    return {name: part for name, part in parts.items() if part} or None


def restore(written: Any, kept: Any) -> Any:
    """What was read. Parts that do not fit to what is written, since that has changed or
    the difference is damaged, are passed over."""
    if not isinstance(kept, dict):
        return written
    if "is" in kept:
        return kept["is"]
    if isinstance(written, dict):
        return _restore_object(written, kept)
    if isinstance(written, list):
        changed = _object(kept.get("at"))
        return [restore(item, changed.get(str(place))) for place, item in enumerate(written)]
    return written


def _restore_object(written: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    without = kept.get("without")
    gone = without if isinstance(without, list) else []
    restored = {key: value for key, value in written.items() if key not in gone}
    for key, what in _object(kept.get("in")).items():
        if key in written or "is" in _object(what):
            restored[key] = restore(written.get(key), what)
    return restored


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def keep(metadata: dict[str, Any], name: str, what: Any) -> dict[str, Any]:
    """The metadata with something that a format wants to find again; None: nothing."""
    if what is None:
        return metadata
    return metadata | {FORMATS_KEY: _object(metadata.get(FORMATS_KEY)) | {name: what}}


def find_kept(turn: AnyTurn, name: str) -> Any:
    """What :func:`keep` put there; None: nothing."""
    return _object(read_metadata(turn).get(FORMATS_KEY)).get(name)


def restore_message(message: Mapping[str, Any], turn: AnyTurn, name: str) -> dict[str, Any]:
    """The message as it was read in this format, if it was."""
    restored = restore(dict(message), find_kept(turn, name))
    return restored if isinstance(restored, dict) else dict(message)
