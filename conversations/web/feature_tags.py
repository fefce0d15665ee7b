"""Template tags for the additions of features to the core's pages (``{% load features %}``)."""

from typing import Any

from django.template import Context, Library
from django.utils.safestring import SafeString, mark_safe

from conversations.feature import Link, features, links_at

register = Library()


@register.simple_tag(takes_context=True)
def feature_links(context: Context, place: str, **about: Any) -> list[Link]:
    """``{% feature_links "workspace" slug=workspace.slug as links %}``: see ``Feature.links``."""
    return list(links_at(place, context["request"], **about))


@register.simple_tag(takes_context=True)
def feature_parts(context: Context, place: str, **about: Any) -> SafeString:
    """``{% feature_parts "workspace.settings" slug=workspace.slug %}``: see
    ``Feature.render_part``."""
    request = context["request"]
    return mark_safe(
        "".join(feature.render_part(place, request, **about) for feature in features())
    )
