from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext, gettext_noop

from conversations import feature

if TYPE_CHECKING:
    from conversations.models import ModelCall


class UsageConfig(feature.Feature):
    name = "conversations.features.usage"
    verbose_name = "Usage and budgets"
    has_call_limits_sql = "EXISTS(SELECT 1 FROM conversations_budget b WHERE b.ended_at IS NULL)"

    def links(self, place: str, request: HttpRequest, **about: Any) -> Iterable[feature.Link]:
        if place == "menu.team":
            yield feature.Link(label=gettext("Usage"), url=reverse("usage"))
        elif place == "workspace":
            address = reverse("workspace_usage", args=[about["slug"]])
            yield feature.Link(label=gettext("Usage"), url=address)
        elif place == "window":
            address = reverse("session_usage", args=[about["uuid"]])
            yield feature.Link(label=gettext("Usage"), url=address)

    def purged_tables(self) -> feature.PurgedTables:
        from .models import UsageDay
        from .recording import forget_session

        return feature.PurgedTables(
            folded={UsageDay: forget_session}, names={UsageDay: gettext_noop("usage totals")}
        )

    def check_model_call(self, session_pk: int, person_pk: int | None) -> feature.Notices | None:
        from .budgets import check_budgets

        return check_budgets(session_pk, person_pk)

    def on_model_call(self, call: "ModelCall", person_pk: int | None) -> None:
        from .recording import add_call

        add_call(call, person_pk)
