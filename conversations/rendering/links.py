"""Where a link leads, said plainly, and which text is a link without being marked.

A link may lead to the web or to a mail address, nowhere else: a relative address
would point into this site. What a reader is told about it is the host that a
browser would contact, since that is what a misleading label hides.
"""

import re
from functools import lru_cache

from markdown_it.common.normalize_url import normalizeLink

_AUTHORITY = re.compile(r"https?://([^/?#\\]+)", re.IGNORECASE)
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?")
_MAIL = re.compile(r"mailto:([^?]+)", re.IGNORECASE)

URL = re.compile(
    r"(?<![A-Za-z0-9])https?://[\w.-]++(?::\d++)?+(?!@)"
    r"(?:[/?#][^\s<>\[\]\\`\"|^\u3000-\u303f\uff00-\uffef]{0,2000})?",
    re.IGNORECASE,
)
"""A bare web address, trailing punctuation included; CJK punctuation ends it."""

MAX_ADDRESS_CHARS = 2_000
"""A longer one leads nowhere. To spell a host's name takes the square of its length."""

_TOO_LONG = "too-long:"
_SHOWN_OF_TOO_LONG = 200

_TRAILING = frozenset("?!.,:;*_~'")


@lru_cache(maxsize=1024)
def _normalise_short(url: str) -> str:
    return normalizeLink(url)


def normalise_url(url: str) -> str:
    """Percent-encode ``url`` and spell its host in ASCII, as browsers do."""
    if len(url) > MAX_ADDRESS_CHARS:
        return f"{_TOO_LONG}{url[:_SHOWN_OF_TOO_LONG]}"
    return _normalise_short(url) if len(url) < 300 else normalizeLink(url)


def web_host(url: str) -> str | None:
    """The host (and port) that a browser contacts for a normalised ``url``.

    None if it is not http(s), or has no host that can be told for certain.
    """
    authority = _AUTHORITY.match(url)
    host = authority[1].rpartition("@")[2].removesuffix(":") if authority else ""
    return host if _HOST.fullmatch(host) else None


def describe_destination(url: str) -> str | None:
    """The host or mail address that ``url`` leads to; None if it may not be a link."""
    mail = _MAIL.match(url)
    return mail[1] if mail else web_host(url)


def trim_url(url: str) -> str:
    """Cut the punctuation that belongs to the sentence around a bare address.

    A closing parenthesis stays while it has its opening one in the address:
    https://github.github.com/gfm/#extended-autolink-path-validation
    """
    end = len(url)
    unopened = url.count(")") - url.count("(")
    while end:
        if url[end - 1] == ")" and unopened > 0:
            unopened -= 1
        elif url[end - 1] not in _TRAILING:
            break
        end -= 1
    return url[:end]
