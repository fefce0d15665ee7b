from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext, gettext_noop

from conversations import feature


class WebhooksConfig(feature.Feature):
    name = "conversations.features.webhooks"
    verbose_name = "Webhooks"

    def links(self, place: str, request: HttpRequest, **about: Any) -> Iterable[feature.Link]:
        if place == "workspace.programs":
            yield feature.Link(
                label=gettext("Webhooks"),
                url=reverse("workspace_webhooks", args=[about["slug"]]),
                says=gettext("notify other programs about runs."),
            )

    def workers(self, runtime: Any) -> Iterable[Callable[[], Coroutine[Any, Any, None]]]:
        from .worker import WebhookSender

        return (WebhookSender(runtime).run,)

    def metrics(self) -> Iterable[feature.Metric]:
        from .deliveries import count_pending

        yield feature.Metric(
            name="loom_webhooks_pending",
            help="Undelivered webhook messages.",
            value=count_pending(),
        )

    def purged_tables(self) -> feature.PurgedTables:
        from .models import Delivery

        return feature.PurgedTables(
            removed={Delivery: lambda pk: Delivery.objects.filter(session=pk)},
            names={Delivery: gettext_noop("deliveries")},
        )

    def forget_old(self, now: datetime) -> None:
        from .deliveries import forget_deliveries

        forget_deliveries(now - timedelta(days=settings.LOOM.webhook_days))

    def on_run_finished(self, run_pk: int, session_pk: int) -> None:
        from .deliveries import enqueue_run_ended

        enqueue_run_ended(run_pk, session_pk)

    def on_approval_asked(self, session_pk: int, call_pks: Sequence[int]) -> None:
        from .deliveries import enqueue_questions

        enqueue_questions(session_pk, call_pks)

    def on_question_asked(self, session_pk: int, call_pk: int, question: str) -> None:
        from .deliveries import enqueue_questions

        enqueue_questions(session_pk, [call_pk])
