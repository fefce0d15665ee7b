from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conversations.models import Session

from django.http import HttpRequest
from django.urls import reverse

from conversations import feature


class RetentionConfig(feature.Feature):
    name = "conversations.features.retention"
    verbose_name = "Retention"

    def links(self, place: str, request: HttpRequest, **about: Any) -> Iterable[feature.Link]:
        if place == "menu.audit":
            may = request.user.has_perm
            administers = may("conversations.administer_installation")
            if administers or may("conversations.review_transcripts"):
                yield feature.Link(label="Holds", url=reverse("holds"))
            if administers:
                yield feature.Link(label="Receipts", url=reverse("receipts"))
        elif place == "session.menu.end" and about["can_purge"]:
            address = reverse("session_purge", args=[about["uuid"]])
            yield feature.Link(label="Delete permanently…", url=address)
        elif place == "review":
            address = f"{reverse('holds')}?session={about['uuid']}"
            yield feature.Link(label="Put on hold", url=address)

    def workers(self, runtime: Any) -> Iterable[Callable[[], Coroutine[Any, Any, None]]]:
        from .worker import RetentionWorker

        return (RetentionWorker(runtime).keep,) if runtime.options.expire_minutes else ()

    def check_purge(self, session: "Session") -> None:
        from .holds import refuse_held

        refuse_held(session)

    def verify(self) -> tuple[Sequence[str], str]:
        from .receipts import verify_receipts

        count, problems = verify_receipts()
        return problems, f"{count} receipts of purged sessions: all as written" if count else ""
