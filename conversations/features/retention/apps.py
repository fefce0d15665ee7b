from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from conversations import feature

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from conversations.models import Session


class RetentionConfig(feature.Feature):
    name = "conversations.features.retention"
    verbose_name = "Retention"

    def session_facts(self, session: "Session", access: Any, person: "User") -> Mapping[str, Any]:
        from .service import find_order, may_call_off, may_purge

        # Only what is archived can have an order: other pages need no query.
        order = find_order(session) if session.archived_at is not None else None
        facts: dict[str, Any] = {"can_purge": may_purge(session, access, person)}
        if order is not None:
            facts |= {
                "purge_due": order.due_at,
                "purge_reason": order.reason,
                "can_call_off": may_call_off(session, access, person, order),
            }
        return facts

    def workers(self, runtime: Any) -> Iterable[Callable[[], Coroutine[Any, Any, None]]]:
        from .worker import RetentionWorker

        return (RetentionWorker(runtime).keep,) if runtime.options.expire_minutes else ()

    def purged_tables(self) -> feature.PurgedTables:
        from .models import Hold

        return feature.PurgedTables(removed={Hold: lambda pk: Hold.objects.filter(session=pk)})

    def check_purge(self, session: "Session") -> None:
        from .service import refuse_kept

        refuse_kept(session)

    def verify(self) -> tuple[Sequence[str], str]:
        from .receipts import verify_receipts

        count, problems = verify_receipts()
        return problems, f"{count} receipts of purged sessions: all as written" if count else ""
