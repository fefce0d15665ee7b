"""Text that every database can hold, and short forms of it."""

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
# Control characters, what changes the direction of text, what has no width, and what no encoding
# holds: as they stand they would lie about a file's name.
HIDING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_SPACE = re.compile(r"\s+")
_MARKS = re.compile(r"^[ >]*(?:#{1,6} |[-*+] |```\w*)|^ *>[ >]*|\*\*|`+", re.MULTILINE)
_EMPHASIS = re.compile(r"(?<![\w*\\])\*(?=\S)([^*\n]*[^\s*\\])\*(?![\w*])")
# Escape sequences as in ECMA-48, 5.4 and 5.6. Those without an end lose their head.
TERMINAL_CODE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<sgr>[0-9;:]*)m"
    r"|(?:\x1b\[|\x9b)(?P<erase>[0-2]?)K"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # the others of CSI: the cursor, modes
    # OSC, DCS and their like with what they hold: titles, links, the clipboard
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
REPLACEMENT = "\ufffd"
_SIGNS = bytes(code for code in range(33, 127) if not chr(code).isalpha())
_NOT_ASCII = bytes(range(0x80, 0x100))
_LEADS = (bytes(range(0xC2, 0xE0)), bytes(range(0xE0, 0xF0)), bytes(range(0xF0, 0xF5)))


def is_storable(text: str) -> bool:
    """Has it no NUL (PostgreSQL refuses it) and no lone surrogate (UTF-8 cannot encode it)?"""
    return "\x00" not in text and is_encodable(text)


def is_encodable(text: str) -> bool:
    """Has it no lone surrogate?"""
    # Each answer's whole request comes by here: looking for surrogates with an expression took as
    # long as writing its JSON.
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_encodable[Value](value: Value) -> Value:
    """The value of JSON that somebody sends, if all its texts can be encoded as UTF-8, the
    names in objects included. What comes in passes here, so that half a surrogate pair
    reaches no database, no provider and no page. Raises NotEncodable."""
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
    """The text with what no database can hold replaced by U+FFFD."""
    return text if is_storable(text) else _UNSTORABLE.sub(REPLACEMENT, text)


def one_line(text: str, *, limit: int) -> str:
    """The beginning of the text on one line, at most ``limit`` characters."""
    flat = _SPACE.sub(" ", text[: limit * 8]).strip()
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def strip_terminal_codes(text: str, *, filler: str = "") -> str:
    """What a program printed, without what colours it or moves the cursor in a terminal. With
    a ``filler`` in its place, the rest stays where it was."""
    if "\x1b" not in text and text.isascii():
        return text
    return TERMINAL_CODE.sub(lambda code: filler * len(code[0]), text)


def cut_words(text: str, limit: int) -> str:
    """The beginning of the text, without half a word at its end."""
    return text if len(text) <= limit else text[: limit + 1].rpartition(" ")[0]


def number_text(number: int) -> str:
    """A number with thin spaces between the thousands, which is right in every language."""
    return f"{number:,}".replace(",", "\u202f")


def strip_marks(text: str) -> str:
    """The beginning of a Markdown text without its commonest marks, for a preview."""
    return _MARKS.sub("", _EMPHASIS.sub(r"\1", text[:2000]))


def estimate_tokens(text: str) -> int:
    """Roughly how many tokens a text costs. Letters and spaces count a quarter, digits and
    ASCII signs half a token each, so that code and JSON come out at about three characters a
    token; other letters by the bytes of their UTF-8: two (Cyrillic, Arabic) half a token,
    three (Chinese, Japanese, Korean) one, four (emoji) two and a half. A session's windows
    are corrected by what the provider reported last, so only the mixture matters."""
    data = text.encode("utf-8", "surrogatepass")
    signs = len(data) - len(data.translate(None, _SIGNS))
    if text.isascii():
        return (len(data) + signs + 3) // 4
    plain = len(data.translate(None, _NOT_ASCII))
    two, three, four = (len(data) - len(data.translate(None, lead)) for lead in _LEADS)
    return (plain + signs + 2 * two + 4 * three + 10 * four + 3) // 4


def cost_text(microusd: int | None) -> str:
    """Dollars with two decimals, small sums with four; empty if not known or too little for it."""
    if microusd is None or microusd < 50:
        return ""
    dollars = microusd / 1_000_000
    return f"{dollars:.2f}" if dollars >= 0.01 else f"{dollars:.4f}"


# JSON as the archive stores it: text that any database keeps byte for byte.

# Compact, and with lone surrogates where the value has some.
write_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_in_ascii = json.JSONEncoder(separators=(",", ":")).encode


def dump_json(value: Any) -> str:
    """Return compact JSON that can be stored as UTF-8 on every database. Dumping, loading and
    dumping again gives the same text, so digests survive an export. Lone surrogates are kept,
    as escapes."""
    text = write_json(value)
    return text if is_encodable(text) else _encode_in_ascii(value)


def null_constants(text: str, *, write: Callable[[Any], str] = dump_json) -> str:
    """JSON that Python has written, as its standard has it: null in the place of ``NaN`` and the
    infinities, which Python reads in what others have written."""
    if "NaN" in text or "Infinity" in text:
        return write(json.loads(text, parse_constant=lambda _: None))
    return text


def load_json(text: str | bytes | None, *, default: Any = None) -> Any:
    """Parse stored JSON; ``default`` for nothing. Raises ValueError when damaged.
    RecursionError (thousands of nested brackets) counts as damage."""
    if not text:
        return default
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


# Of JSON that others send. A value takes about a hundred bytes of memory, whatever it takes in the
# text (``[],``), and the server does nothing else while JSON is parsed.
MAX_JSON_VALUES = 1_000_000
# The next sign, past what is none and past strings, whole or cut; empty at the end of the text.
_NEXT_SIGN = re.compile(
    r'(?:[^"\[\]{},]++|"[^"\\]*+(?:\\.?+[^"\\]*+)*+"?+)*+([\[\]{},]?+)', re.DOTALL
)


def has_more_values(text: str, limit: int = MAX_JSON_VALUES) -> bool:
    """Whether the JSON has more values than ``limit``, found out without parsing it."""
    return count_signs(text) > limit and count_values(text, limit=limit) > limit


def count_signs(text: str) -> int:
    """At least as many as ``count_values`` finds anywhere in the text, and faster: those in strings
    are counted too."""
    return sum(map(text.count, "[{,"))


def count_values(text: str, *, limit: int, start: int = 0) -> int:
    """How many lists, objects and commas the JSON value at ``start`` has, at most ``limit`` + 1.
    Where the value is damaged, or cut, so many as come before that."""
    values = depth = 0
    for found in _NEXT_SIGN.finditer(text, start):
        if found[1] in ("]", "}"):
            depth -= 1
        elif found[1]:
            depth += found[1] != ","
            values += depth > 0
        if depth <= 0 or values > limit or not found[1]:
            break
    return values


def an_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def load_object(text: str | None) -> dict[str, Any]:
    """Parse an object of JSON; empty for anything else, and when damaged."""
    try:
        return an_object(load_json(text))
    except ValueError:
        return {}


def is_writable(value: Any, *, depth: int) -> bool:
    """Whether a value of JSON can be written as its standard has it, and has at most so many
    levels."""
    level, left = [value], depth
    while level and left >= 0:
        if any(isinstance(one, float) and not isfinite(one) for one in level):
            return False
        parents = [one for one in level if isinstance(one, dict | list)]
        level = [
            item
            for parent in parents
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
        left -= bool(parents)
    return left >= 0


def text_of(value: Any) -> str:
    """A value of JSON as text: itself where it is one, empty for null."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dump_json(value)


# Cells of a file that somebody opens in a spreadsheet.

# With these a spreadsheet begins a formula, and runs it.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_line(cells: Iterable[Any]) -> str:
    """One line of a CSV file, its end included."""
    line = io.StringIO()
    values = list(cells)
    for place, value in enumerate(values):
        # What would be taken for a formula is marked as text.
        if isinstance(value, str) and value.startswith(FORMULA_STARTS):
            values[place] = f"'{value}"
    csv.writer(line).writerow(values)
    return line.getvalue()


# Characters that do not show, or that turn the order of others around.
_UNSEEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u115f\\u1160\\u180e\\u200b\\u200e\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\U000e0000-\\U000e007f]"
)
_PICTURES = {code: chr(0x2400 + code) for code in range(32)} | {127: "\u2421"}

# Characters of one text that are written out; the rest become U+FFFD, so that a text of
# nothing else stays small.
MAX_WRITTEN_OUT_CHARS = 200

_SPACES = dict.fromkeys((*range(32), *range(127, 160), 8232, 8233), " ")


def strip_invisible(text: str) -> str:
    """The text without characters that do not show, line ends and tabs included: for a
    title, which is one line and never a place for them."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub("", text.translate(_SPACES))


def escape_invisible(
    text: str, *, name: Callable[[str], str], most: int = MAX_WRITTEN_OUT_CHARS
) -> str:
    """The text with pictures in the place of ASCII controls, and for other characters
    that do not show what ``name`` makes of ``U+202E``. Line ends and tabs stay."""
    left = most

    def show(found: re.Match[str]) -> str:
        nonlocal left
        code = ord(found[0])
        if code in _PICTURES:
            return _PICTURES[code]
        left -= 1
        return name(f"U+{code:04X}") if left >= 0 else REPLACEMENT

    return _UNSEEN.sub(show, text)


def visible(text: str) -> str:
    """The text with nothing in it that a terminal would act on, or that would not show."""
    return escape_invisible(storable(text.replace("\r\n", "\n")), name=lambda name: f"<{name}>")


# The hash chains over a session's turns and events.
def first_digest(session_uuid: UUID, *, chain: str) -> str:
    """The start of a session's chain; ``chain`` is ``turns`` or ``events``."""
    return hashlib.sha256(f"loom:{chain}:{session_uuid}".encode()).hexdigest()


def next_digest(previous: str, fields: tuple[Any, ...]) -> str:
    text = json.dumps([previous, *fields], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


YEARS = range(1900, 9000)  # That a date may be of: around each is time in every zone


def zone_of(name: str) -> ZoneInfo:
    """UTC where this machine does not know the zone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


def instant(moment: datetime) -> str:
    """The one spelling of an instant in digests and exports: UTC, microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
