"""Functions for text and JSON: storable text, short forms, CSV, and the digests of chains."""

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from math import isfinite
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .errors import NotEncodable

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# Control characters, characters that change the direction of text or have no width, and
# surrogates. If they were shown unchanged, a file's name could look like a different one.
HIDING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_SPACE = re.compile(r"\s+")
_MARKS = re.compile(r"^[ >]*(?:#{1,6} |[-*+] |```\w*)|^ *>[ >]*|\*\*|`+", re.MULTILINE)
_EMPHASIS = re.compile(r"(?<![\w*\\])\*(?=\S)([^*\n]*[^\s*\\])\*(?![\w*])")
# Escape sequences as in ECMA-48, 5.4 and 5.6. If a sequence has no end, only its introducer
# matches.
TERMINAL_CODE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<sgr>[0-9;:]*)m"
    r"|(?:\x1b\[|\x9b)(?P<erase>[0-2]?)K"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # Other CSI sequences: the cursor, modes.
    # OSC, DCS and similar sequences with their contents: titles, links, the clipboard.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
REPLACEMENT = "\ufffd"
_SIGNS = bytes(code for code in range(33, 127) if not chr(code).isalpha())
_NOT_ASCII = bytes(range(0x80, 0x100))
_LEADS = (bytes(range(0xC2, 0xE0)), bytes(range(0xE0, 0xF0)), bytes(range(0xF0, 0xF5)))


def is_storable(text: str) -> bool:
    """Whether the text has no NUL, which PostgreSQL refuses, and no lone surrogate."""
    return "\x00" not in text and is_encodable(text)


def is_encodable(text: str) -> bool:
    """Whether the text has no lone surrogate, which UTF-8 cannot encode."""
    # The whole request of each answer is checked here. A search for surrogates with a regular
    # expression took as long as writing the request's JSON.
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_encodable[Value](value: Value) -> Value:
    """Return the JSON value if all its texts can be encoded as UTF-8. Raises NotEncodable.

    The texts include the names in objects. Incoming JSON is checked here, so that half a surrogate
    pair does not reach a database, a provider or a page.
    """
    waiting: list[Any] = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                if not is_encodable(text):
                    raise NotEncodable(
                        "Half a surrogate pair is not a valid character and cannot be stored. "
                        "Remove it and send the rest again."
                    )
            case dict() as names:
                waiting += [*names, *names.values()]
            case list() as items:
                waiting += items
    return value


def storable(text: str) -> str:
    """Return the text with U+FFFD for each character that not every database can store."""
    return text if is_storable(text) else _UNSTORABLE.sub(REPLACEMENT, text)


def one_line(text: str, *, limit: int) -> str:
    """Return the beginning of the text on one line, with at most ``limit`` characters."""
    flat = _SPACE.sub(" ", text[: limit * 8]).strip()
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def strip_terminal_codes(text: str, *, filler: str = "") -> str:
    """Return the output of a program without the codes that colour it or move the cursor.

    With a ``filler`` of one character in place of the codes, the rest of the text keeps its place.
    """
    if "\x1b" not in text and text.isascii():
        return text
    return TERMINAL_CODE.sub(lambda code: filler * len(code[0]), text)


def cut_words(text: str, limit: int) -> str:
    """Return the beginning of the text, without half a word at its end."""
    return text if len(text) <= limit else text[: limit + 1].rpartition(" ")[0]


def number_text(number: int) -> str:
    """Return the number with thin spaces between the thousands, which suits every language."""
    return f"{number:,}".replace(",", "\u202f")


def strip_marks(text: str) -> str:
    """Return the beginning of a Markdown text without the most common markup, for a preview."""
    return _MARKS.sub("", _EMPHASIS.sub(r"\1", text[:2000]))


def estimate_tokens(text: str) -> int:
    """Return a rough estimate of the number of tokens of a text.

    ASCII letters and spaces count as a quarter of a token each. Digits and ASCII signs count as
    half a token, so that code and JSON have about three characters per token. Other characters
    count by the length of their UTF-8: two bytes (Cyrillic, Arabic) as half a token, three bytes
    (Chinese, Japanese, Korean) as one, and four bytes (emoji) as two and a half. Only these
    proportions matter, because the estimates of a session's windows are corrected by the numbers
    that the provider reported last.
    """
    data = text.encode("utf-8", "surrogatepass")
    signs = len(data) - len(data.translate(None, _SIGNS))
    if text.isascii():
        return (len(data) + signs + 3) // 4
    plain = len(data.translate(None, _NOT_ASCII))
    two, three, four = (len(data) - len(data.translate(None, lead)) for lead in _LEADS)
    return (plain + signs + 2 * two + 4 * three + 10 * four + 3) // 4


def cost_text(microusd: int | None) -> str:
    """Return dollars with two decimals, or with four if the sum is small.

    Return an empty text if the sum is not known or too small for four decimals.
    """
    if microusd is None or microusd < 50:
        return ""
    dollars = microusd / 1_000_000
    return f"{dollars:.2f}" if dollars >= 0.01 else f"{dollars:.4f}"


# JSON as the archive stores it: text that any database keeps byte for byte.

# Compact JSON, in which lone surrogates are not escaped.
write_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_in_ascii = json.JSONEncoder(separators=(",", ":")).encode


def dump_json(value: Any) -> str:
    """Return compact JSON that can be stored as UTF-8 in every database.

    Dumping, loading and dumping again gives the same text, so digests survive an export. Lone
    surrogates are kept as escapes.
    """
    text = write_json(value)
    return text if is_encodable(text) else _encode_in_ascii(value)


def null_constants(text: str, *, write: Callable[[Any], str] = dump_json) -> str:
    """Return JSON that Python has written with null instead of ``NaN`` and the infinities.

    The JSON standard does not have these values, but Python accepts them in the JSON that it reads.
    """
    if "NaN" in text or "Infinity" in text:
        return write(json.loads(text, parse_constant=lambda _: None))
    return text


def load_json(text: str | bytes | None, *, default: Any = None) -> Any:
    """Parse stored JSON, and return ``default`` for an empty text or None.

    Raises ValueError if the JSON is damaged. A RecursionError, because of thousands of nested
    brackets, counts as damage.
    """
    if not text:
        return default
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


# The limit for JSON from outside. A value takes about a hundred bytes of memory, even if it is as
# short as ``[],`` in the text. The server is blocked while JSON is parsed.
MAX_JSON_VALUES = 1_000_000
# The next bracket, brace or comma outside strings, which may be cut off. The group is empty at the
# end of the text.
_NEXT_SIGN = re.compile(
    r'(?:[^"\[\]{},]++|"[^"\\]*+(?:\\.?+[^"\\]*+)*+"?+)*+([\[\]{},]?+)', re.DOTALL
)


def has_more_values(text: str, limit: int = MAX_JSON_VALUES) -> bool:
    """Whether the JSON has more values than ``limit``, without parsing it."""
    return count_signs(text) > limit and count_values(text, limit=limit) > limit


def count_signs(text: str) -> int:
    """Return an upper bound of :func:`count_values`, which is faster to compute.

    Signs in strings are counted as well.
    """
    return sum(map(text.count, "[{,"))


def count_values(text: str, *, limit: int, start: int = 0) -> int:
    """Return the number of lists, objects and commas of the JSON value at ``start``.

    The number is at most ``limit`` + 1. If the value is damaged or cut off, the count ends there.
    """
    values = depth = 0
    for match in _NEXT_SIGN.finditer(text, start):
        if match[1] in ("]", "}"):
            depth -= 1
        elif match[1]:
            depth += match[1] != ","
            values += depth > 0
        if depth <= 0 or values > limit or not match[1]:
            break
    return values


def an_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def load_object(text: str | None) -> dict[str, Any]:
    """Parse a JSON object, and return an empty dict for other values and damaged JSON."""
    try:
        return an_object(load_json(text))
    except ValueError:
        return {}


def is_writable(value: Any, *, depth: int) -> bool:
    """Whether a value can be written as standard JSON, and has at most ``depth`` levels."""
    level, remaining = [value], depth
    while level and remaining >= 0:
        if any(isinstance(item, float) and not isfinite(item) for item in level):
            return False
        parents = [item for item in level if isinstance(item, dict | list)]
        level = [
            item
            for parent in parents
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
        remaining -= bool(parents)
    return remaining >= 0


def text_of(value: Any) -> str:
    """Return a JSON value as text: a text itself, an empty text for null, otherwise JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dump_json(value)


# Cells of a CSV file, which a person may open in a spreadsheet.

# A spreadsheet takes a cell that begins with one of these as a formula, and evaluates it.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_line(cells: Iterable[Any]) -> str:
    """Return one line of a CSV file, including the line end."""
    line = io.StringIO()
    values = list(cells)
    for index, value in enumerate(values):
        # The apostrophe marks a cell that would be taken for a formula as text.
        if isinstance(value, str) and value.startswith(FORMULA_STARTS):
            values[index] = f"'{value}"
    csv.writer(line).writerow(values)
    return line.getvalue()


# Invisible characters, and characters that change the direction of text.
_UNSEEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u115f\\u1160\\u180e\\u200b\\u200e\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\U000e0000-\\U000e007f]"
)
_PICTURES = {code: chr(0x2400 + code) for code in range(32)} | {127: "\u2421"}

# The number of invisible characters of one text that are written out. The rest become U+FFFD, so
# that a text that consists of such characters stays small.
MAX_WRITTEN_OUT_CHARS = 200

_SPACES = dict.fromkeys((*range(32), *range(127, 160), 8232, 8233), " ")


def strip_invisible(text: str) -> str:
    """Return the text without invisible characters, for a title.

    Line ends, tabs and other control characters become spaces, because a title is one line. All
    other invisible characters are removed.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub("", text.translate(_SPACES))


def escape_invisible(
    text: str, *, name: Callable[[str], str], most: int = MAX_WRITTEN_OUT_CHARS
) -> str:
    """Return the text with visible substitutes for invisible characters.

    ASCII controls become control pictures. For other invisible characters, ``name`` returns the
    substitute, given a code point such as ``U+202E``. Line ends and tabs stay.
    """
    remaining = most

    def show(found: re.Match[str]) -> str:
        nonlocal remaining
        code = ord(found[0])
        if code in _PICTURES:
            return _PICTURES[code]
        remaining -= 1
        return name(f"U+{code:04X}") if remaining >= 0 else REPLACEMENT

    return _UNSEEN.sub(show, text)


def visible(text: str) -> str:
    """Return the text without characters that a terminal would act on or not show."""
    return escape_invisible(storable(text.replace("\r\n", "\n")), name=lambda name: f"<{name}>")


# The hash chains over a session's turns and events.
def first_digest(session_uuid: UUID, *, chain: str) -> str:
    """Return the start of a session's chain. ``chain`` is ``turns`` or ``events``."""
    return hashlib.sha256(f"loom:{chain}:{session_uuid}".encode()).hexdigest()


def next_digest(previous: str, fields: tuple[Any, ...]) -> str:
    text = _encode_in_ascii([previous, *fields])
    return hashlib.sha256(text.encode()).hexdigest()


YEARS = range(1900, 9000)  # The years of valid dates, which can be converted to every time zone.


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone, or UTC if this machine does not know it."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


def instant(moment: datetime) -> str:
    """Return the form of an instant in digests and exports: UTC, with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
