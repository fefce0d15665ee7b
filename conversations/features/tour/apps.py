from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string

from conversations import feature


class TourConfig(feature.Feature):
    name = "conversations.features.tour"
    verbose_name = "Tour with the demo model"

    def render_part(self, place: str, request: HttpRequest, **about: Any) -> str:
        if place != "session.dock":
            return ""
        from .views import tour_context

        context = tour_context(about["session"])
        return render_to_string("tour/steps.html", context, request) if context else ""
