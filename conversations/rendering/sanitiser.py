"""The second wall: an explicit list of the HTML that may leave this package.

The renderers escape everything they do not make themselves, so nothing should
ever be removed here. If something slips through all the same, no element,
attribute, class or scheme outside these lists reaches a page: no script, style,
form or image, no ``id``, ``style``, ``on*`` or ``hx-*``.
"""

import nh3

from .code_blocks import TOKEN_CLASSES

_PLAIN_TAGS = "blockquote br code em h1 h2 h3 h4 h5 h6 hr li ol p pre s strong ul".split()
_TABLE_TAGS = "table tbody td th thead tr".split()
_ALIGNMENTS = {"ta-left", "ta-center", "ta-right"}

_CLEANER = nh3.Cleaner(
    tags={"a", "button", "div", "span", *_PLAIN_TAGS, *_TABLE_TAGS},
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
        "div": {"tabindex": {"0"}, "role": {"region"}, "aria-label": {"Table"}},
        "pre": {"tabindex": {"0"}},
    },
    allowed_classes={
        "a": {"img-blocked"},
        "button": {"code-copy", "code-wrap"},
        "code": {"hl"},
        "div": {"code", "code-head", "table-wrap"},
        "li": {"task-list-item"},
        "p": {"verbatim"},
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


def sanitise(html: str) -> str:
    """Return ``html`` without anything that is not on the lists above."""
    return _CLEANER.clean(html)
