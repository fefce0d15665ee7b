"""Tags that every template has without loading them."""

import re
from datetime import UTC, datetime
from functools import cache
from typing import cast

from django import template
from django.conf import settings
from django.template.base import NodeList, Parser, Token, TokenType
from django.templatetags.i18n import TranslateNode, do_translate
from django.templatetags.static import static
from django.utils.html import format_html, json_script
from django.utils.safestring import SafeString
from django.utils.translation import get_language, gettext, gettext_noop

from conversations.domain.people import ROLE_NAMES

from .messages import translate
from .source_text import size_text

register = template.Library()
register.filter("said", translate)
register.filter("size", size_text)


@register.filter
def role_name(role: str) -> str:
    return translate(ROLE_NAMES[role])


_LINE_BREAK = re.compile(r"\s*\n\s*")


@register.tag
def oneline(parser: Parser, token: Token) -> template.Node:
    """Remove the line breaks between ``{% oneline %}`` and ``{% endoneline %}``.

    White space around a line break is removed too. Within a tag, where it separates attributes, one
    space is left."""
    is_in_tag = False
    # The parser keeps the tokens that are still to come in reverse order.
    for upcoming in reversed(cast(list[Token], parser.tokens)):
        if upcoming.token_type == TokenType.BLOCK and upcoming.contents == "endoneline":
            break
        if upcoming.token_type == TokenType.TEXT:
            pieces = re.split("([<>])", upcoming.contents)
            for index, piece in enumerate(pieces):
                if piece in ("<", ">"):
                    is_in_tag = piece == "<"
                pieces[index] = _LINE_BREAK.sub(" " if is_in_tag else "", piece)
            upcoming.contents = "".join(pieces)
    nodes = parser.parse(("endoneline",))
    parser.delete_first_token()
    return _Nodes(nodes)


class _Nodes(template.Node):
    def __init__(self, nodelist: NodeList) -> None:
        self.nodelist = nodelist

    def render(self, context: template.Context) -> SafeString:
        return self.nodelist.render(context)


@register.simple_tag
def words_of_scripts(language: str) -> SafeString:
    """Return the attribute with the address of the scripts' translations.

    It is empty in English, in which the scripts are written."""
    if language == settings.LANGUAGE_CODE:
        return SafeString()
    return format_html(' data-words="{}"', static(f"js/words/{language}.js"))


# The sentences of the scripts that a chat page needs at once. The page holds them itself, so that
# it need not wait for the file of translations.
CHAT_WORDS = (
    gettext_noop("Not connected. Try again in a moment."),
    gettext_noop("Show all"),
    gettext_noop("%(count)s tool calls"),
    gettext_noop("%(count)s new"),
)


@register.simple_tag
def chat_words(language: str) -> SafeString:
    if language == settings.LANGUAGE_CODE:
        return SafeString()
    return json_script({text: gettext(text) for text in CHAT_WORDS}, "words")


class _TranslatedText(template.Node):
    """A ``translate`` tag with a literal text, which caches its result for each language."""

    def __init__(self, node: TranslateNode) -> None:
        self._node = node
        self._cached: dict[str | None, str] = {}

    def render(self, context: template.Context) -> str:
        language = get_language()
        if language not in self._cached:
            self._cached[language] = self._node.render(context)
        return self._cached[language]


@register.tag(name="translate")
def translated(parser: Parser, token: Token) -> template.Node:
    """Django's tag with a cache for literal texts, because a page has a hundred of them."""
    node = do_translate(parser, token)
    expression = node.filter_expression
    is_literal = expression.var.literal is not None and not expression.filters
    if is_literal and not node.asvar and not node.message_context:
        return _TranslatedText(node)
    return node


@register.simple_tag
@cache
def icon(name: str, classes: str = "icon") -> SafeString:
    """Return an icon of ``static/icons.svg``."""
    return format_html(
        '<svg class="{}" aria-hidden="true"><use href="{}#{}"></use></svg>',
        classes,
        static("icons.svg"),
        name,
    )


@register.simple_tag
def time(moment: datetime | None, style: str = "") -> SafeString | str:
    """Return a time in UTC, which the browser shows in its own zone as "5 minutes ago".

    With the ``style`` "absolute" it shows the date."""
    if moment is None:
        return ""
    utc = moment.astimezone(UTC)
    return format_html(
        '<time data-relative{} datetime="{}">{} UTC</time>',
        SafeString('="off"') if style == "absolute" else "",
        f"{utc:%Y-%m-%dT%H:%M:%SZ}",
        f"{utc:%Y-%m-%d %H:%M}",
    )
