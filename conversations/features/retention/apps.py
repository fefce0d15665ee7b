from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext, gettext_noop

from conversations import feature

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from conversations.models import Session


class RetentionConfig(feature.Feature):
    name = "conversations.features.retention"
    verbose_name = "Retention"

    def session_facts(self, session: "Session", access: Any, person: "User") -> Mapping[str, Any]:
        from .service import find_order, may_call_off, may_purge

        # Only archived sessions can have an order, so other sessions need no query.
        order = find_order(session) if session.archived_at is not None else None
        facts: dict[str, Any] = {"can_purge": may_purge(session, access, person)}
        if order is not None:
            facts |= {
                "purge_due": order.due_at,
                "purge_reason": order.reason,
                "can_call_off": may_call_off(session, access, person, order),
            }
        return facts

    def links(self, place: str, request: HttpRequest, **about: Any) -> Iterable[feature.Link]:
        may = request.user.has_perm
        administers = may("conversations.administer_installation")
        if place == "menu.team" and (administers or may("conversations.review_transcripts")):
            yield feature.Link(label=gettext("Holds"), url=reverse("holds"))
        elif place == "menu.administration" and administers:
            yield feature.Link(label=gettext("Receipts"), url=reverse("receipts"))
        elif place == "workspace.settings":
            address = reverse("workspace_retention", args=[about["slug"]])
            yield feature.Link(label=gettext("Retention"), url=address)
        elif place == "session.menu.end" and about["session"]["can_purge"]:
            address = reverse("session_purge", args=[about["session"]["uuid"]])
            yield feature.Link(label=gettext("Delete permanently…"), url=address)
        elif place == "session.row":
            is_allowed = about["is_own"] and about["workspace"].members_may_purge
            if about["access"].can_manage or is_allowed:
                address = reverse("session_purge", args=[about["uuid"]])
                yield feature.Link(label=gettext("Delete permanently…"), url=address)
        elif place == "review":
            address = f"{reverse('holds')}?session={about['uuid']}"
            yield feature.Link(label=gettext("Put on hold"), url=address)

    def render_part(self, place: str, request: HttpRequest, **about: Any) -> str:
        if place == "session.notice" and "purge_due" in about["session"]:
            template = "retention/session_notice.html"
        elif place == "session.style" and "purge_due" in about["session"]:
            return format_html(
                '<link rel="stylesheet" href="{}">', static("retention/retention.css")
            )
        elif place == "workspace.bulk":
            workspace = about["workspace"]
            if not (workspace["can_manage"] or workspace["members_may_purge"]):
                return ""
            address = reverse("workspace_purge", args=[workspace["slug"]])
            return format_html(
                '<button class="btn small" formaction="{}">{}</button>',
                address,
                gettext("Delete…"),
            )
        else:
            return ""
        return render_to_string(template, {"csrf_token": get_token(request), **about})

    def workers(self, runtime: Any) -> Iterable[Callable[[], Coroutine[Any, Any, None]]]:
        from .worker import RetentionWorker

        return (RetentionWorker(runtime).run,) if runtime.options.expire_minutes else ()

    def purged_tables(self) -> feature.PurgedTables:
        from .models import Hold

        return feature.PurgedTables(
            removed={Hold: lambda pk: Hold.objects.filter(session=pk)},
            names={Hold: gettext_noop("holds")},
        )

    def check_purge(self, session: "Session") -> None:
        from .service import refuse_kept

        refuse_kept(session)

    def verify(self) -> tuple[Sequence[str], str]:
        from .service import verify_receipts

        count, problems = verify_receipts()
        return problems, f"{count} receipts of purged sessions: all intact" if count else ""
