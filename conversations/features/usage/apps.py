from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest
from django.urls import reverse

from conversations import feature

if TYPE_CHECKING:
    from conversations.models import ModelCall


class UsageConfig(feature.Feature):
    name = "conversations.features.usage"
    verbose_name = "Usage and budgets"
    has_call_limits_sql = "EXISTS(SELECT 1 FROM conversations_budget b WHERE b.ended_at IS NULL)"

    def links(self, place: str, request: HttpRequest, **about: Any) -> Iterable[feature.Link]:
        if place == "menu.team":
            yield feature.Link(label="Usage", url=reverse("usage"))
        elif place == "workspace":
            yield feature.Link(label="Usage", url=reverse("workspace_usage", args=[about["slug"]]))
        elif place == "window":
            yield feature.Link(label="Usage", url=reverse("session_usage", args=[about["uuid"]]))

    def purged_tables(self) -> feature.PurgedTables:
        from .models import UsageDay
        from .recording import forget_session

        return feature.PurgedTables(
            folded={UsageDay: forget_session}, names={UsageDay: "usage totals"}
        )

    def check_model_call(self, session_pk: int, person_pk: int | None) -> feature.Notices | None:
        from .budgets import check_budgets

        return check_budgets(session_pk, person_pk)

    def on_model_call(self, call: "ModelCall", person_pk: int | None) -> None:
        from .recording import add_call

        add_call(call, person_pk)
