"""Translation tags and filters for the templates of rows, which are rendered once for everybody.

Row templates load them instead of Django's. They write a mark where Django's write translated text
(see ``messages``), so the HTML of a row does not depend on the active language.
"""

from typing import Any

from django import template
from django.template.base import FilterExpression, Node, Parser, Token, render_value_in_context
from django.templatetags.i18n import BlockTranslateNode, do_block_translate
from django.utils.safestring import SafeString

from .messages import make_mark, mark

register = template.Library()
register.filter("said", mark)


@register.simple_tag
def translate(text: str) -> SafeString:
    return make_mark(text, {})


@register.tag
def blocktranslate(parser: Parser, token: Token) -> Node:
    return _MarkNode(do_block_translate(parser, token))


class _MarkNode(Node):
    def __init__(self, node: BlockTranslateNode) -> None:
        self._node = node

    def render(self, context: template.Context) -> SafeString:
        node = self._node
        number: Any = 0
        with context.push(
            **{name: value.resolve(context) for name, value in node.extra_context.items()}
        ):
            if node.plural and node.countervar and isinstance(node.counter, FilterExpression):
                number = context[node.countervar] = node.counter.resolve(context)
            singular, names = node.render_token_list(node.singular)
            plural, plural_names = node.render_token_list(node.plural or [])
            values = {
                name: render_value_in_context(context.get(name, ""), context)
                for name in dict.fromkeys(names + plural_names)
            }
        return make_mark(
            singular, values, plural=plural, number=number if isinstance(number, int) else 0
        )
