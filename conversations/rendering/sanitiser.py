"""The second line of defence: an explicit list of the HTML that may leave this package.

The renderers escape everything that they do not make themselves, so the sanitiser should never have
to remove anything. If a renderer lets something slip through, no element, attribute, class or
scheme outside these lists reaches a page: no script, style, form or image, no ``id``, ``style``,
``on*`` or ``hx-*``.
"""

import re
from functools import lru_cache

import nh3
from markdown_it.common.normalize_url import normalizeLink

from conversations.domain.messages import say

from .code_blocks import TOKEN_CLASSES
from .formulas import FORMULA, STYLE_CLASSES
from .messages import mark
from .source_text import STAND_INS

_BLOCK_TAGS = {"blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "ul"}
_INLINE_TAGS = {"bdi", "br", "code", "em", "s", "strong", "sup"}
_TABLE_TAGS = {"table", "tbody", "td", "th", "thead", "tr"}
_ALIGNMENTS = {"ta-left", "ta-center", "ta-right"}

# The elements and attributes of formulas: those that the converter makes, except for any that link,
# run scripts or hold HTML (no href, maction, semantics or annotation-xml).
_MATH_ATTRIBUTES = {
    "math": {"alttext", "display"},
    "menclose": {"notation"},
    "mfrac": {"displaystyle", "linethickness", "scriptlevel"},
    "mi": {"mathvariant"},
    "mmultiscripts": set[str](),
    "mn": set[str](),
    "mo": {
        *("form", "fence", "largeop", "lspace", "maxsize", "minsize", "movablelimits"),
        *("rspace", "separator", "stretchy", "symmetric"),
    },
    "mover": {"accent"},
    "mpadded": {"depth", "height", "lspace", "voffset", "width"},
    "mphantom": set[str](),
    "mprescripts": set[str](),
    "mroot": set[str](),
    "mrow": {"displaystyle", "mathcolor", "scriptlevel"},
    "mspace": {"depth", "height", "width"},
    "msqrt": set[str](),
    "mstyle": {"displaystyle", "mathcolor", "scriptlevel"},
    "msub": set[str](),
    "msubsup": set[str](),
    "msup": set[str](),
    "mtable": {"displaystyle", "scriptlevel"},
    "mtd": {"columnspan"},
    "mtext": set[str](),
    "mtr": set[str](),
    "munder": {"accentunder"},
    "munderover": {"accent", "accentunder"},
}
_MATH_CLASSES = set(STYLE_CLASSES.values())

TABLE = mark(say("Table"))  # The accessible name of a table.

_CLEANER = nh3.Cleaner(
    tags={"a", "button", "div", "span"}
    | _BLOCK_TAGS
    | _INLINE_TAGS
    | _TABLE_TAGS
    | set(_MATH_ATTRIBUTES),
    attributes=_MATH_ATTRIBUTES
    | {
        "a": {"href", "title"},
        "button": {"aria-label", "data-note"},
        "div": {"data-file", "data-lang", "data-lines", "data-note"},
        "ol": {"start"},
        "span": {"title"},
    },
    tag_attribute_values={
        "button": {
            "type": {"button"},
            "data-action": {
                *("wrap-code", "copy-code", "download-code"),
                *("copy-csv", "copy-table", "note"),
            },
            "aria-pressed": {"false"},
        },
        "div": {
            "tabindex": {"0"},
            "role": {"group"},
            "aria-label": {str(FORMULA), str(TABLE)},
            "data-kind": {"note", "tip", "important", "warning", "caution"},
            "dir": {"auto"},
        },
        "pre": {"tabindex": {"0"}},
        **{tag: {"dir": {"auto"}} for tag in ("blockquote", "ol", "ul")},
    },
    allowed_classes={
        "a": {"img-blocked"},
        "bdi": {"note-label"},
        "button": {"code-wrap"},
        "code": {"hl", "tex"},
        "div": {"alert", "code", "code-head", "math", "note", "rich", "table-wrap"},
        "li": {"task-list-item"},
        "math": {"rich"},
        "mrow": {"menclose-updiagonalstrike", "menclose-downdiagonalstrike"},
        "mtable": _MATH_CLASSES,
        "mtd": _MATH_CLASSES,
        "p": {"alert-title", "rich", "table-acts", "tex", "unformatted", "verbatim"},
        "span": {"code-lang", "img-blocked", "link-blocked"} | TOKEN_CLASSES,
        "sup": {"rich"},
        "td": _ALIGNMENTS,
        "th": _ALIGNMENTS,
        "ul": {"contains-task-list"},
        "ol": {"contains-task-list"},
    },
    # One attribute only, because nh3 adds several in an order that differs between processes.
    set_tag_attribute_values={"a": {"target": "_blank"}},
    link_rel="noopener noreferrer nofollow",
    url_schemes={"http", "https", "mailto"},
    url_relative="deny",
)


_AMPERSAND, _SPACE = STAND_INS


def sanitise(html: str) -> str:
    """Return ``html`` without any element, attribute, class or scheme outside the lists above.

    Ampersands and no-break spaces are replaced by stand-ins meanwhile, because the cleaner's time
    is quadratic in their number within one element."""
    html = html.replace("&amp;", _AMPERSAND).replace("&nbsp;", _SPACE).replace("\xa0", _SPACE)
    cleaned = _CLEANER.clean(html)
    return cleaned.replace(_AMPERSAND, "&amp;").replace(_SPACE, "&nbsp;")


# The destination of a link, and bare addresses in text.
_AUTHORITY = re.compile(r"https?://([^/?#\\]+)", re.IGNORECASE)
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?")
_MAIL = re.compile(r"mailto:([^?]+)", re.IGNORECASE)

# A bare web address, trailing punctuation included; CJK punctuation ends it.
URL = re.compile(
    r"(?<![A-Za-z0-9])https?://[\w.-]++(?::\d++)?+(?!@)"
    r"(?:[/?#][^\s<>\[\]\\`\"|^\u3000-\u303f\uff00-\uffef]{0,2000})?",
    re.IGNORECASE,
)

# A longer address is not made a link. The time for spelling a host's name is quadratic in its
# length.
MAX_ADDRESS_CHARS = 2_000
_TOO_LONG = "too-long:"
_MAX_SHOWN_CHARS = 200
_TRAILING = frozenset("?!.,:;*_~'")


_normalise_short = lru_cache(maxsize=1024)(normalizeLink)


def normalise_url(url: str) -> str:
    """Percent-encode ``url`` and spell its host in ASCII, as browsers do."""
    if len(url) > MAX_ADDRESS_CHARS:
        return f"{_TOO_LONG}{url[:_MAX_SHOWN_CHARS]}"
    return _normalise_short(url) if len(url) < 300 else normalizeLink(url)


def web_host(url: str) -> str | None:
    """Return the host (and port) that a browser contacts for a normalised ``url``.

    Return None if the scheme is not http(s), or if the host cannot be told for certain."""
    authority = _AUTHORITY.match(url)
    host = authority[1].rpartition("@")[2].removesuffix(":") if authority else ""
    return host if _HOST.fullmatch(host) else None


def describe_destination(url: str) -> str | None:
    """Return the host or mail address that ``url`` leads to, or None if it may not be a link."""
    mail = _MAIL.match(url)
    return mail[1] if mail else web_host(url)


def trim_url(url: str) -> str:
    """Cut the punctuation that belongs to the sentence around a bare address.

    A closing parenthesis stays if the address has its opening one:
    https://github.github.com/gfm/#extended-autolink-path-validation"""
    end = len(url)
    unopened = url.count(")") - url.count("(")
    while end:
        if url[end - 1] == ")" and unopened > 0:
            unopened -= 1
        elif url[end - 1] not in _TRAILING:
            break
        end -= 1
    return url[:end]
