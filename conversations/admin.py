"""The admin: a read-only list of each table, and its records.

``TABLES`` defines what each list shows. A table that is not in ``TABLES`` has to be in
``NOT_SHOWN``, with the reason; a test checks this. Tables that grow without limit are never counted
and never sorted by a column without an index. Lists show no part of a transcript. Opening a record
that does is recorded in the audit log, as on the session's own page.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db.models import ForeignKey, Model, Q, QuerySet, TextField
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.functional import Promise, cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy, ngettext

from conversations.admin_site import ReadOnlyAdmin
from conversations.archive.rights import is_administrator, is_reviewer
from conversations.domain.audit import AUDIT_ACTIONS
from conversations.domain.events import EVENT_TYPES
from conversations.domain.runs import RUN_STATES
from conversations.domain.tool_calls import TOOL_CALL_STATES
from conversations.domain.turns import ROLES
from conversations.domain.windows import COMPACTION_REASONS
from conversations.models import Session, Turn
from conversations.models.review import LABELS

from .access import record_admin_reading

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator

PER_PAGE = 50
MAX_PAGES = 100  # Of a list. Later rows can be found by search and filters.

MAX_SHOWN_CHARS = 20_000
MAX_FOUND_SESSIONS = 500


class LowerBound(int):
    """A lower bound of a number of rows, which is shown with a plus sign."""

    def __str__(self) -> str:
        return f"{int(self)}+"


class WindowPaginator(AnyPaginator):
    """A paginator over the first rows, which reads their keys instead of counting all rows."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        most = self.per_page * MAX_PAGES
        found = len(rows.values_list("pk", flat=True)[: most + 1])
        return LowerBound(most) if found > most else found


def choice_filter(name: str, title: Promise, values: Iterable[str]) -> type[admin.SimpleListFilter]:
    """Return a filter by fixed values.

    Django's own filter reads the distinct values of the column, which scans the whole table.
    """
    choices = [(value, value.replace("_", " ")) for value in values]
    said: Any = title

    class ChoiceFilter(admin.SimpleListFilter):
        title = said
        parameter_name = name

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return choices

        def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
            return queryset.filter(**{name: self.value()}) if self.value() else queryset

    return ChoiceFilter


def long_text(name: str) -> Callable[[Model], SafeString | str]:
    """Return a display function for a text column: preformatted, JSON indented, cut at a limit."""

    @admin.display(description=name.replace("_", " "))
    def show(row: Model) -> SafeString | str:
        text = getattr(row, name)
        if not text:
            return "-"
        cut = len(text) - MAX_SHOWN_CHARS
        note = ""
        if cut > 0:
            more = ngettext("%(count)s more character", "%(count)s more characters", cut)
            note = "\n… " + more % {"count": cut}
        shown = text[:MAX_SHOWN_CHARS]
        if not note and text[:1] in "[{":
            with suppress(ValueError, RecursionError):  # Damaged JSON is shown as it is.
                shown = json.dumps(json.loads(text), indent=2)
        return format_html("<pre>{}{}</pre>", shown, note)

    show.__name__ = name
    return show


@dataclass(frozen=True, slots=True)
class Table:
    """The options of a table's list and records.

    ``columns``, ``search``, ``order``, ``first`` and ``left_out`` are names separated by spaces.
    The fields in ``first`` stand above the columns of a record. The columns in ``left_out`` are
    never shown. ``session`` is the lookup path from a row to its session; rows with such a path are
    searched by their session. Opening a record is a reading if the table ``says_something`` of a
    transcript.
    """

    columns: str
    filters: tuple[Any, ...] = ()
    search: str = ""
    order: str = "-pk"
    first: str = ""
    left_out: str = ""
    session: str = ""
    says_something: bool = True


class TableAdmin(ReadOnlyAdmin):
    """The admin of one table, configured by its entry in ``TABLES``."""

    list_per_page = PER_PAGE
    list_max_show_all = 0
    paginator = WindowPaginator
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by: ClassVar[Any] = ()
    table: Table

    def __init__(self, model: type[Model], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        options: Any = self  # The stubs declare these as class attributes only.
        options.list_display = self.table.columns.split()
        options.list_filter = self.table.filters
        options.search_fields = tuple(self.table.search.split())
        options.ordering = self.table.order.split()
        names = {field.name for field in model._meta.fields if isinstance(field, ForeignKey)}
        related = [name for name in options.list_display if name in names]
        self._session_path = self.table.session or ("session" if "session" in names else "")
        if self._session_path:
            options.search_fields = ("session__uuid",)  # Django shows a search box only with some.
            options.search_help_text = gettext_lazy(
                "UUID, part of the title, or owner of a session"
            )
            related += [] if self._session_path == "pk" else [self._session_path]
        options.list_select_related = related

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        left_out = self.table.left_out.split()
        meta = self.model._meta
        columns = [
            long_text(field.name) if isinstance(field, TextField) else field.name
            for field in (*meta.concrete_fields, *meta.many_to_many)
            if field.name not in left_out
        ]
        return [*self.table.first.split(), *columns]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.table.first.split()

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Whether the person may view the table.

        Tables of sessions are for reviewers, all others for administrators. Django's permission to
        view a table also suffices.
        """
        may_look = is_reviewer if self._session_path else is_administrator
        return may_look(request.user) or super().has_view_permission(request, obj)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only lookups for which the list has a filter.

        Django accepts lookups on any column in the query string. The rows that match would reveal
        words of a turn or letters of a key to a person who guesses.
        """
        named = [item[0] if isinstance(item, tuple) else item for item in self.list_filter]
        filters = {getattr(item, "parameter_name", item) for item in named}
        is_offered = lookup.partition("__")[0] in filters
        return is_offered and super().lookup_allowed(lookup, value, request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows; for a list, defer the text columns, which it does not show."""
        rows = super().get_queryset(request)
        match = request.resolver_match
        if match is None or not (match.url_name or "").endswith("_changelist"):
            return rows
        large = _large_columns(self.model)
        if self._session_path not in ("", "pk"):
            large += [f"{self._session_path}__{name}" for name in _large_columns(Session)]
        return rows.defer(*large)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search for the sessions first, because a join would scan the rows of all sessions."""
        if not self._session_path:
            return super().get_search_results(request, queryset, search_term)
        words = search_term.strip().replace("\0", "")
        if not words:
            return queryset, False
        by_uuid, by_title = Q(uuid__istartswith=words), Q(title__icontains=words)
        is_meant = by_uuid | by_title | Q(owner__username__iexact=words)
        if self._session_path == "pk":
            return queryset.filter(is_meant), False
        found = Session.objects.filter(is_meant)
        keys = list(found.order_by("-pk").values_list("pk", flat=True)[: MAX_FOUND_SESSIONS + 1])
        if len(keys) > MAX_FOUND_SESSIONS:
            said = ngettext(
                "More than %(count)s session matches. Only the rows of the newest are shown.",
                "More than %(count)s sessions match. Only the rows of the newest are shown.",
                MAX_FOUND_SESSIONS,
            )
            self.message_user(request, said % {"count": MAX_FOUND_SESSIONS}, messages.WARNING)
            keys.pop()
        return queryset.filter(**{f"{self._session_path}__in": keys}), False

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        """Record the reading. The permission has been checked, and nothing is rendered yet."""
        session = obj if isinstance(obj, Session) else None
        if self._session_path not in ("", "pk"):  # The session is None if it was purged.
            session = attrgetter(self._session_path.replace("__", "."))(obj)
        if self.table.says_something and session is not None:
            record_admin_reading(request, session)
        return super().render_change_form(request, context, add, change, form_url, obj)

    @admin.display(description=gettext_lazy("title"))
    def title_or_none(self, session: Session) -> str:
        return session.title or gettext("Untitled session")

    @admin.display(description=gettext_lazy("turns"))
    def turns(self, session: Session) -> int:
        return session.turn_count

    @admin.display(description=gettext_lazy("transcript"))
    def transcript(self, row: Session | Turn) -> SafeString:
        if isinstance(row, Turn):
            return _link(gettext("Transcript"), "turn", row.session.uuid, row.number)
        return _link(gettext("Transcript"), "session", row.uuid)

    @admin.display(description=gettext_lazy("review"))
    def review(self, session: Session) -> SafeString:
        return _link(gettext("Review"), "review_session", session.uuid)

    @admin.display(description=gettext_lazy("permissions"))
    def rights(self, user: User) -> SafeString:
        return _link(gettext("Change under People"), "person", user.pk)


def _link(text: str, page: str, *args: Any) -> SafeString:
    return format_html('<a href="{}">{}</a>', reverse(page, args=args), text)


def _large_columns(model: type[Model]) -> list[str]:
    return [field.name for field in model._meta.concrete_fields if isinstance(field, TextField)]


TABLES: dict[str, Table] = {
    "conversations.Workspace": Table(
        "name slug root tool_policy default_model created_at",
        filters=("tool_policy",),
        search="name slug root",
    ),
    # The text is left out: it may come from many sessions, or from none that an audit entry could
    # name.
    "conversations.MemoryEntry": Table(
        "uuid workspace owner kind session created_at",
        filters=("kind", "workspace"),
        left_out="text",
    ),
    "conversations.LearntModel": Table(
        "model input_tokens listed_tokens takes updated_at", search="model"
    ),
    "conversations.PromptText": Table("digest", search="digest", left_out="text"),
    "conversations.Membership": Table(
        "user workspace role created_at",
        filters=("role", "workspace"),
        search="user__username workspace__name workspace__slug",
    ),
    "conversations.Session": Table(
        "title_or_none transcript review workspace owner channel turns last_active_at archived_at"
        " uuid",
        filters=(("archived_at", admin.EmptyFieldListFilter), "workspace"),
        order="-last_active_at -pk",
        first="transcript",
        session="pk",
    ),
    "conversations.ReadingPosition": Table("session user turn"),
    "conversations.Turn": Table(
        "session number role tool_name complete created_at",
        filters=(choice_filter("role", gettext_lazy("role"), ROLES),),
        first="transcript",
    ),
    "conversations.ChatEvent": Table(
        "session seq event_type turn_number render_version created_at",
        filters=(choice_filter("event_type", gettext_lazy("event type"), EVENT_TYPES),),
    ),
    "conversations.StateCheckpoint": Table("session turn seq rewinds"),
    "conversations.Rewind": Table(
        "session from_turn to_turn reason actor created_at", filters=("reason",)
    ),
    "conversations.SessionSkill": Table("session name path turn_number loaded_at"),
    "conversations.Compaction": Table(
        "session from_turn to_turn reason model created_at undone_at",
        filters=(choice_filter("reason", gettext_lazy("reason"), COMPACTION_REASONS),),
    ),
    "conversations.JournalGap": Table("session from_turn to_turn after_seq"),
    "conversations.SearchEntry": Table("__str__ session length created_at"),
    "conversations.SearchProgress": Table(
        "session indexed_turn total_length asked_turns asked_length version embedded_turn"
    ),
    "conversations.TurnEmbedding": Table("__str__ session"),
    "conversations.ReviewNote": Table("uuid session turn author created_at withdrawn_at"),
    "conversations.ReviewFlag": Table(
        "uuid session turn label author created_at resolved_at",
        filters=(choice_filter("label", gettext_lazy("label"), LABELS),),
    ),
    "conversations.ReviewMark": Table("session through_turn author created_at"),
    "conversations.AuditEntry": Table(
        "number at actor_name action session workspace reason",
        filters=(choice_filter("action", gettext_lazy("action"), AUDIT_ACTIONS),),
        order="-number",
    ),
    "conversations.AuditHead": Table("number digest"),
    "conversations.PurgePermit": Table("session_pk created_at"),
    "conversations.PurgeOrder": Table("session ordered_by ordered_at due_at by_policy reason"),
    "conversations.PurgedContent": Table("digest purged_at"),
    "conversations.Receipt": Table(
        "session workspace owner purged_at ordered_by_name reason", search="session workspace owner"
    ),
    "conversations.Run": Table(
        "uuid session kind state requested_by error_code created_at finished_at",
        filters=(choice_filter("state", gettext_lazy("state"), RUN_STATES),),
    ),
    "conversations.ModelCall": Table(
        "session run ordinal model stop_reason error_code input_tokens output_tokens duration_ms"
        " created_at"
    ),
    "conversations.ToolCall": Table(
        "name session state ok turn_number duration_ms created_at",
        filters=(choice_filter("state", gettext_lazy("state"), TOOL_CALL_STATES),),
    ),
    "conversations.ToolPermission": Table("label workspace granted_by granted_at revoked_at"),
    "conversations.ToolServerGrant": Table(
        "server workspace granted_by granted_at", left_out="secrets answer state_digest"
    ),
    "conversations.FileChange": Table("__str__ session call created_at done_at"),
    "conversations.Revert": Table("uuid session actor created_at"),
    "conversations.Attachment": Table("uuid session kind media_type size turn_number created_at"),
    "conversations.DraftChunk": Table("run ordinal part kind", session="run__session"),
    "conversations.SignInLink": Table(
        "user created_at expires_at used_at",
        filters=(("used_at", admin.EmptyFieldListFilter),),
        search="user__username",
        left_out="digest",
    ),
    "conversations.Device": Table(
        "user agent address created_at last_seen_at ended_at",
        search="user__username",
        left_out="session_key",
    ),
    "conversations.Invitation": Table(
        "label workspace role created_by expires_at used_by", search="label", left_out="digest"
    ),
    "conversations.ApiToken": Table(
        "hint user name scopes expires_at last_used_at revoked_at",
        search="name user__username",
        left_out="digest",
    ),
    "conversations.ApiAnswer": Table(
        "user status created_at", left_out="body key fingerprint", says_something=False
    ),
    "conversations.Preferences": Table(
        "user theme keys enter language clock times", search="user__username"
    ),
    "conversations.WorkspaceGroup": Table(
        "group workspace role created_at", search="group__name workspace__name workspace__slug"
    ),
    "auth.User": Table(
        "username email first_name last_name is_active is_staff is_superuser last_login",
        filters=("is_active", "is_staff", "is_superuser", "groups"),
        search="username first_name last_name email",
        order="username",
        first="rights",
        left_out="password",
    ),
    "auth.Group": Table("name", search="name", order="name"),
    "auth.Permission": Table("content_type codename name", search="codename name", order="pk"),
    "admin.LogEntry": Table("action_time user content_type object_repr action_flag"),
    "axes.AccessAttempt": Table(
        "attempt_time username ip_address failures_since_start path_info user_agent",
        filters=("attempt_time",),
        search="username ip_address",
    ),
    "axes.AccessFailureLog": Table(
        "attempt_time username ip_address locked_out path_info user_agent",
        filters=("attempt_time", "locked_out"),
        search="username ip_address",
    ),
    "axes.AccessLog": Table(
        "attempt_time logout_time username ip_address path_info user_agent",
        filters=("attempt_time", "logout_time"),
        search="username ip_address",
        left_out="session_hash",
    ),
    "axes.AccessAttemptExpiration": Table("access_attempt expires_at"),
    "socialaccount.SocialAccount": Table(
        "user provider uid last_login date_joined",
        search="user__username uid",
        left_out="extra_data",
    ),
    "mfa.Authenticator": Table(
        "user type created_at last_used_at", search="user__username", left_out="data"
    ),
}

# Label of a model → the reason why the admin does not show it.
NOT_SHOWN = {
    "sessions.Session": "its key is the cookie that signs in; Device has what may be seen of it",
    "contenttypes.ContentType": "the list of these tables",
    "account.EmailAddress": "holds nothing: addresses are those of User",
    "account.EmailConfirmation": "holds nothing, and would hold keys",
    "socialaccount.SocialApp": "holds nothing, and would hold a secret: settings name it",
    "socialaccount.SocialToken": "holds nothing, and would hold tokens",
}


def show_tables(tables: Mapping[str, Table]) -> None:
    """Register tables by the labels of their models; skip models of apps that are not installed.

    A feature calls this function for its own tables.
    """
    TABLES.update(tables)
    for model in apps.get_models():
        if model._meta.label in tables:
            admin.site.register(model, TableAdmin, table=tables[model._meta.label])


show_tables(dict(TABLES))
