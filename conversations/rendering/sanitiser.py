"""The second wall: an explicit list of the HTML that may leave this package.

The renderers escape everything they do not make themselves, so nothing should
ever be removed here. If something slips through all the same, no element,
attribute, class or scheme outside these lists reaches a page: no script, style,
form or image, no ``id``, ``style``, ``on*`` or ``hx-*``.
"""

import nh3

from .code_blocks import TOKEN_CLASSES
from .source_text import STAND_INS

_BLOCK_TAGS = {"blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "ul"}
_INLINE_TAGS = {"br", "code", "em", "s", "strong"}
_TABLE_TAGS = {"table", "tbody", "td", "th", "thead", "tr"}
_ALIGNMENTS = {"ta-left", "ta-center", "ta-right"}

_CLEANER = nh3.Cleaner(
    tags={"a", "button", "div", "span"} | _BLOCK_TAGS | _INLINE_TAGS | _TABLE_TAGS,
    attributes={
        "a": {"href", "title"},
        "div": {"data-lang"},
        "ol": {"start"},
        "span": {"title"},
    },
    tag_attribute_values={
        "button": {
            "type": {"button"},
            "data-action": {"wrap-code", "copy-code"},
            "aria-pressed": {"false"},
        },
        "div": {"tabindex": {"0"}, "role": {"group"}, "aria-label": {"Table"}},
        "pre": {"tabindex": {"0"}},
    },
    allowed_classes={
        "a": {"img-blocked"},
        "button": {"code-copy", "code-wrap"},
        "code": {"hl"},
        "div": {"code", "code-head", "table-wrap"},
        "li": {"task-list-item"},
        "p": {"unformatted", "verbatim"},
        "span": {"code-lang", "img-blocked", "link-blocked"} | TOKEN_CLASSES,
        "td": _ALIGNMENTS,
        "th": _ALIGNMENTS,
        "ul": {"contains-task-list"},
        "ol": {"contains-task-list"},
    },
    # One attribute only: nh3 adds several in an order that changes with the process.
    set_tag_attribute_values={"a": {"target": "_blank"}},
    link_rel="noopener noreferrer nofollow",
    url_schemes={"http", "https", "mailto"},
    url_relative="deny",
)


_AMPERSAND, _SPACE = STAND_INS


def sanitise(html: str) -> str:
    """Return ``html`` without anything that is not on the lists above.

    Ampersands and no-break spaces pass under another name: the cleaner's time is
    quadratic in how many of them one element holds.
    """
    html = html.replace("&amp;", _AMPERSAND).replace("&nbsp;", _SPACE).replace("\xa0", _SPACE)
    cleaned = _CLEANER.clean(html)
    return cleaned.replace(_AMPERSAND, "&amp;").replace(_SPACE, "&nbsp;")
