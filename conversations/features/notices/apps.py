from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext, gettext_noop

from conversations import feature

MAX_RECORD_AGE = timedelta(days=7)  # how long notices and views of sessions are kept


class NoticesConfig(feature.Feature):
    name = "conversations.features.notices"
    verbose_name = "Notices"

    def links(self, place: str, request: HttpRequest, **about: Any) -> Iterable[feature.Link]:
        if place == "account":
            yield feature.Link(label=gettext("Notifications"), url=reverse("notifications"))

    def render_part(self, place: str, request: HttpRequest, **about: Any) -> str:
        if place == "page.head":
            from .installing import person_mark

            context = {"person": person_mark(request)}
            return render_to_string("notices/parts.html#head", context)
        if place not in ("session.style", "session.menu"):
            return ""
        from .service import notice_status_of

        status = notice_status_of(request, about["session"]["uuid"])
        if not status.anything or (status.is_muted and place == "session.style"):
            return ""
        about |= {"csrf_token": get_token(request), "is_muted": status.is_muted}
        name = place.removeprefix("session.")
        return render_to_string(f"notices/parts.html#{name}", about)

    def workers(self, runtime: Any) -> Iterable[Callable[[], Coroutine[Any, Any, None]]]:
        from .worker import NoticeSender, SignedOutWorker

        return (NoticeSender(runtime).run, SignedOutWorker(runtime).run)

    def metrics(self) -> Iterable[feature.Metric]:
        from .deliveries import count_pending

        yield feature.Metric(
            name="loom_notices_pending",
            help="Notices that are to be sent.",
            value=count_pending(),
        )

    def purged_tables(self) -> feature.PurgedTables:
        from .models import MutedSession, Notice, NoticeMessage, SessionView

        return feature.PurgedTables(
            removed={
                NoticeMessage: lambda pk: NoticeMessage.objects.filter(
                    notice__in=Notice.objects.filter(session=pk).values("pk")
                ),
                Notice: lambda pk: Notice.objects.filter(session=pk),
                MutedSession: lambda pk: MutedSession.objects.filter(session=pk),
                SessionView: lambda pk: SessionView.objects.filter(session=pk),
            },
            names={
                NoticeMessage: gettext_noop("notice messages"),
                Notice: gettext_noop("notices"),
                MutedSession: gettext_noop("muted sessions"),
                SessionView: gettext_noop("session views"),
            },
        )

    def forget_old(self, now: datetime) -> None:
        from .deliveries import forget_notices
        from .service import forget_views

        forget_notices(now - MAX_RECORD_AGE)
        forget_views(now - MAX_RECORD_AGE)

    def on_run_finished(self, run_pk: int, session_pk: int) -> None:
        from .deliveries import enqueue_run_ended

        enqueue_run_ended(run_pk)

    def on_approval_asked(self, session_pk: int, call_pks: Sequence[int]) -> None:
        from .deliveries import enqueue_question

        enqueue_question(min(call_pks))  # one notice for all calls of an answer

    def on_question_asked(self, session_pk: int, call_pk: int, question: str) -> None:
        from .deliveries import enqueue_question

        enqueue_question(call_pk, question=UUID(question))
