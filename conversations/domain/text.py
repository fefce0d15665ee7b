"""Text that every database can hold, and short forms of it."""

import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_SPACE = re.compile(r"\s+")

_MARKS = re.compile(r"^[ >]*(?:#{1,6} |[-*+] |```\w*)|\*\*|`+", re.MULTILINE)

REPLACEMENT = "\ufffd"


def is_storable(text: str) -> bool:
    """True unless the text has a NUL (PostgreSQL refuses it) or a lone surrogate
    (UTF-8 cannot encode it)."""
    return _UNSTORABLE.search(text) is None


def storable(text: str) -> str:
    """The text with what no database can hold replaced by U+FFFD."""
    return _UNSTORABLE.sub(REPLACEMENT, text)


def one_line(text: str, *, limit: int) -> str:
    """The beginning of the text on one line, at most ``limit`` characters."""
    flat = _SPACE.sub(" ", text[: limit * 8]).strip()
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def strip_marks(text: str) -> str:
    """The beginning of a Markdown text without its commonest marks, for a preview."""
    return _MARKS.sub("", text[:2000])


def estimate_tokens(text: str) -> int:
    """Roughly how many tokens a text costs: characters / 4,
    where a character outside ASCII counts as a token of its own in three of four
    cases, since CJK text runs at 1-1.5 characters a token."""
    if text.isascii():
        return (len(text) + 3) // 4
    wide = sum(1 for character in text if ord(character) > 0x2E7F)
    return (len(text) - wide + 3) // 4 + (wide * 3 + 3) // 4


def cost_text(microusd: int | None) -> str:
    """Dollars with two decimals, small sums with four; empty when not known, or so
    little that four would not show it."""
    if microusd is None or microusd < 50:
        return ""
    dollars = microusd / 1_000_000
    return f"{dollars:.2f}" if dollars >= 0.01 else f"{dollars:.4f}"
