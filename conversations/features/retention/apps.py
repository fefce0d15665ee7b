from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conversations.models import Session

from conversations import feature


class RetentionConfig(feature.Feature):
    name = "conversations.features.retention"
    verbose_name = "Retention"

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
