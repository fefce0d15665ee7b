"""Tags that every template has without loading them."""

import re
from datetime import UTC, datetime
from typing import cast

from django import template
from django.template.base import NodeList, Parser, Token, TokenType
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from .messages import translate

register = template.Library()
register.filter("said", translate)
_LINE_BREAK = re.compile(r"\s*\n\s*")


@register.tag
def oneline(parser: Parser, token: Token) -> template.Node:
    """``{% oneline %}…{% endoneline %}`` leaves the line breaks of its source out. What is
    between two elements vanishes with the break; within a tag, where it separates attributes,
    one space is left."""
    is_in_tag = False
    # The parser keeps the tokens that are still to come in reverse.
    for coming in reversed(cast(list[Token], parser.tokens)):
        if coming.token_type == TokenType.BLOCK and coming.contents == "endoneline":
            break
        if coming.token_type == TokenType.TEXT:
            pieces = re.split("([<>])", coming.contents)
            for place, piece in enumerate(pieces):
                if piece in ("<", ">"):
                    is_in_tag = piece == "<"
                pieces[place] = _LINE_BREAK.sub(" " if is_in_tag else "", piece)
            coming.contents = "".join(pieces)
    nodes = parser.parse(("endoneline",))
    parser.delete_first_token()
    return _Nodes(nodes)


class _Nodes(template.Node):
    def __init__(self, nodelist: NodeList) -> None:
        self.nodelist = nodelist

    def render(self, context: template.Context) -> SafeString:
        return self.nodelist.render(context)


@register.simple_tag
def icon(name: str, classes: str = "icon") -> SafeString:
    """A picture of ``static/icons.svg``."""
    return format_html(
        '<svg class="{}" aria-hidden="true"><use href="{}#{}"></use></svg>',
        classes,
        static("icons.svg"),
        name,
    )


@register.simple_tag
def time(moment: datetime | None, style: str = "") -> SafeString | str:
    """A moment in UTC, which the browser shows in its own zone as "5 minutes ago". With the
    ``style`` "absolute" it shows the date."""
    if moment is None:
        return ""
    utc = moment.astimezone(UTC)
    return format_html(
        '<time data-relative{} datetime="{}">{} UTC</time>',
        SafeString('="off"') if style == "absolute" else "",
        f"{utc:%Y-%m-%dT%H:%M:%SZ}",
        f"{utc:%Y-%m-%d %H:%M}",
    )
