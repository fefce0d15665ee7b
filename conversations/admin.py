"""The admin: a window onto every table, and nothing but a window.

All writes go through the functions of ``archive``, so nobody adds, changes or
removes anything here, whatever their permissions. Tables that grow without limit
are never counted and never sorted by a column without an index. Lists show nothing of what
was said in a session; opening a record of one is a reading, as it is on the session's
own page.
"""

import json
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet, TextField
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

from conversations.domain.audit import AUDIT_ACTIONS
from conversations.domain.events import EVENT_TYPES
from conversations.domain.imports import STATES as IMPORT_STATES
from conversations.domain.review import LABELS
from conversations.domain.runs import RUN_STATES
from conversations.domain.tool_calls import TOOL_CALL_STATES
from conversations.domain.usage import SCOPES
from conversations.domain.webhooks import DELIVERY_STATES
from conversations.models import (
    ApiAnswer,
    ApiToken,
    Attachment,
    AuditEntry,
    AuditHead,
    Budget,
    BudgetWarning,
    ChannelPlace,
    ChannelReply,
    ChatEvent,
    Compaction,
    Delivery,
    Device,
    DraftChunk,
    FileChange,
    Hold,
    Import,
    Invitation,
    JournalGap,
    Membership,
    ModelCall,
    Preferences,
    PromptText,
    PurgedContent,
    PurgeOrder,
    PurgePermit,
    Receipt,
    Revert,
    ReviewFlag,
    ReviewMark,
    ReviewNote,
    Rewind,
    Run,
    SearchEntry,
    SearchProgress,
    Session,
    SessionSkill,
    ShareLink,
    SignInLink,
    StateCheckpoint,
    ToolCall,
    ToolPermission,
    Turn,
    UsageDay,
    UsageTotal,
    Webhook,
    Workspace,
    WorkspaceGroup,
)
from conversations.models.archive import ROLES
from conversations.models.context import COMPACTION_REASONS
from conversations.web.access import note_record

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
    AnyAdmin = admin.ModelAdmin[Any]
else:
    AnyPaginator, AnyAdmin = Paginator, admin.ModelAdmin

PER_PAGE = 50
PAGES = 100
"""Pages that a list offers; what lies beyond is found by search and filters."""

SHOWN_CHARS = 20_000
FOUND_SESSIONS = 500

admin.site.site_header = admin.site.site_title = "Loom Web"


class WindowPaginator(AnyPaginator):
    """Pages over the first rows. It reads that many keys instead of counting all."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return len(rows.values_list("pk", flat=True)[: self.per_page * PAGES])


def choice_filter(name: str, values: Iterable[str]) -> type[admin.SimpleListFilter]:
    """A filter by fixed values. Django's own reads the distinct values of the column,
    which takes a walk through the whole table."""
    choices = [(value, value.replace("_", " ")) for value in values]

    class ChoiceFilter(admin.SimpleListFilter):
        title = name.replace("_", " ")
        parameter_name = name

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return choices

        def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
            return queryset.filter(**{name: self.value()}) if self.value() else queryset

    return ChoiceFilter


def long_text(name: str) -> Callable[[Model], SafeString | str]:
    """How a text column is shown: line by line, JSON indented, cut at a limit."""

    @admin.display(description=name.replace("_", " "))
    def show(row: Model) -> SafeString | str:
        text = getattr(row, name)
        if not text:
            return "-"
        cut = len(text) - SHOWN_CHARS
        note = f"\n… {cut} more characters" if cut > 0 else ""
        return format_html("<pre>{}{}</pre>", text[:SHOWN_CHARS] if note else _indented(text), note)

    show.__name__ = name
    return show


def _indented(text: str) -> str:
    if text[:1] not in "[{":
        return text
    try:
        return json.dumps(json.loads(text), indent=2)
    except (ValueError, RecursionError):
        return text


class WindowAdmin(AnyAdmin):
    """Reading only, the newest rows first. ``shown_first`` stands above the columns,
    ``left_out`` are columns nobody sees."""

    actions = None
    list_per_page = PER_PAGE
    list_max_show_all = 0
    ordering: ClassVar[Any] = ("-pk",)
    paginator = WindowPaginator
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by: ClassVar[Any] = ()
    left_out: tuple[str, ...] = ()
    shown_first: tuple[str, ...] = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        columns = [
            long_text(field.name) if isinstance(field, TextField) else field.name
            for field in self.model._meta.concrete_fields
            if field.name not in self.left_out
        ]
        return [*self.shown_first, *columns]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Only what the list has a filter for. Django takes a condition on any column from
        the address: a word of a turn or a letter of a key could be guessed by what is left."""
        named = [item[0] if isinstance(item, tuple) else item for item in self.list_filter]
        filters = {getattr(item, "parameter_name", item) for item in named}
        is_offered = lookup.partition("__")[0] in filters
        return is_offered and super().lookup_allowed(lookup, value, request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        match = request.resolver_match
        is_list = match is not None and (match.url_name or "").endswith("_changelist")
        return self.for_list(rows) if is_list else rows

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """The rows without the columns that a list does not show."""
        return rows.defer(*_large_columns(self.model))


def _large_columns(model: type[Model]) -> list[str]:
    return [field.name for field in model._meta.concrete_fields if isinstance(field, TextField)]


class OfSessionAdmin(WindowAdmin):
    """Rows of sessions: found by their session, whose key is at ``session_path``. They are
    no reading if they hold nothing of what was said."""

    session_path = "session"
    says_something = True
    search_fields = ("session__uuid",)
    search_help_text = "The uuid, a part of the title or the owner of a session"
    list_select_related: ClassVar[Any] = ("session",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """The sessions first: a join would walk through all rows of all sessions."""
        if not search_term.strip():
            return queryset, False
        return queryset.filter(**{f"{self.session_path}__in": _find_sessions(search_term)}), False

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        of_session = [f"{self.session_path}__{name}" for name in _large_columns(Session)]
        return rows.defer(*_large_columns(self.model), *of_session)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        """The record is shown: the permission was checked, and nothing is rendered yet."""
        if self.says_something and (session := self.session_of(obj)) is not None:
            note_record(request, session)
        return super().render_change_form(request, context, add, change, form_url, obj)

    def session_of(self, row: Any) -> Session | None:
        """The session that the row belongs to; None where that is purged."""
        found: Session | None = attrgetter(self.session_path.replace("__", "."))(row)
        return found


def _find_sessions(term: str) -> list[int]:
    words = term.strip().replace("\0", "")
    found = Session.objects.filter(
        Q(uuid__istartswith=words) | Q(title__icontains=words) | Q(owner__username__iexact=words)
    )
    return list(found.order_by("-pk").values_list("pk", flat=True)[:FOUND_SESSIONS])


def _transcript_link(session: Session, *, place: str = "") -> SafeString:
    return format_html('<a href="/s/{}/{}">Transcript</a>', session.uuid, place)


@admin.register(Workspace)
class WorkspaceAdmin(WindowAdmin):
    list_display = ("name", "slug", "root", "tool_policy", "default_model", "created_at")
    list_filter = ("tool_policy",)
    search_fields = ("name", "slug", "root")


@admin.register(PromptText)
class PromptTextAdmin(WindowAdmin):
    """Without the text: it may be of many sessions, and of none that could be named as read."""

    list_display = ("digest",)
    left_out = ("text",)
    search_fields = ("digest",)


@admin.register(Membership)
class MembershipAdmin(WindowAdmin):
    list_display = ("user", "workspace", "role", "created_at")
    list_filter = ("role", "workspace")
    list_select_related = ("user", "workspace")
    search_fields = ("user__username", "workspace__name", "workspace__slug")


@admin.register(Session)
class SessionAdmin(OfSessionAdmin):
    session_path = "pk"
    list_display = (
        "name",
        "transcript",
        "review",
        "uuid",
        "workspace",
        "owner",
        "channel",
        "turn_count",
        "last_active_at",
        "archived_at",
    )
    list_filter = (("archived_at", admin.EmptyFieldListFilter), "workspace")
    list_select_related = ("workspace", "owner")
    ordering = ("-last_active_at", "-pk")
    shown_first = ("transcript",)

    def session_of(self, row: Any) -> Session:
        assert isinstance(row, Session)
        return row

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.defer(*_large_columns(Session))

    @admin.display(description="title")
    def name(self, session: Session) -> str:
        return session.title or "Untitled session"

    @admin.display(description="turns")
    def turn_count(self, session: Session) -> int:
        return session.turn_count

    @admin.display(description="transcript")
    def transcript(self, session: Session) -> SafeString:
        return _transcript_link(session)

    @admin.display(description="review")
    def review(self, session: Session) -> SafeString:
        return format_html('<a href="/review/s/{}/">Review</a>', session.uuid)


@admin.register(Turn)
class TurnAdmin(OfSessionAdmin):
    list_display = ("session", "number", "role", "tool_name", "complete", "created_at")
    list_filter = (choice_filter("role", ROLES),)
    shown_first = ("transcript",)

    @admin.display(description="transcript")
    def transcript(self, turn: Turn) -> SafeString:
        return _transcript_link(turn.session, place=f"t/{turn.number}/")


@admin.register(ChatEvent)
class ChatEventAdmin(OfSessionAdmin):
    list_display = ("session", "seq", "event_type", "turn_number", "render_version", "created_at")
    list_filter = (choice_filter("event_type", EVENT_TYPES),)


@admin.register(StateCheckpoint)
class StateCheckpointAdmin(OfSessionAdmin):
    list_display = ("session", "turn", "seq", "rewinds")


@admin.register(Rewind)
class RewindAdmin(OfSessionAdmin):
    list_display = ("session", "from_turn", "to_turn", "reason", "actor", "created_at")
    list_filter = ("reason",)
    list_select_related = ("session", "actor")


@admin.register(SessionSkill)
class SessionSkillAdmin(OfSessionAdmin):
    list_display = ("session", "name", "path", "turn_number", "loaded_at")


@admin.register(Compaction)
class CompactionAdmin(OfSessionAdmin):
    list_display = ("session", "from_turn", "to_turn", "reason", "model", "created_at", "undone_at")
    list_filter = (choice_filter("reason", COMPACTION_REASONS),)


@admin.register(JournalGap)
class JournalGapAdmin(OfSessionAdmin):
    list_display = ("session", "from_turn", "to_turn", "after_seq")


@admin.register(SearchEntry)
class SearchEntryAdmin(OfSessionAdmin):
    list_display = ("__str__", "session", "length", "created_at")


@admin.register(SearchProgress)
class SearchProgressAdmin(OfSessionAdmin):
    list_display = ("session", "indexed_turn", "total_length", "version")


@admin.register(ReviewNote)
class ReviewNoteAdmin(OfSessionAdmin):
    list_display = ("uuid", "session", "turn", "author", "created_at", "withdrawn_at")
    list_select_related = ("session", "author")


@admin.register(ReviewFlag)
class ReviewFlagAdmin(OfSessionAdmin):
    list_display = ("uuid", "session", "turn", "label", "author", "created_at", "resolved_at")
    list_filter = (choice_filter("label", LABELS),)
    list_select_related = ("session", "author")


@admin.register(ReviewMark)
class ReviewMarkAdmin(OfSessionAdmin):
    list_display = ("session", "through_turn", "author", "created_at")
    list_select_related = ("session", "author")


@admin.register(AuditEntry)
class AuditEntryAdmin(WindowAdmin):
    list_display = ("number", "at", "actor_name", "action", "session", "workspace", "reason")
    list_filter = (choice_filter("action", AUDIT_ACTIONS),)
    ordering = ("-number",)


@admin.register(AuditHead)
class AuditHeadAdmin(WindowAdmin):
    list_display = ("number", "digest")


@admin.register(PurgePermit)
class PurgePermitAdmin(WindowAdmin):
    list_display = ("session_pk", "created_at")


@admin.register(Hold)
class HoldAdmin(OfSessionAdmin):
    list_display = ("__str__", "session", "workspace", "reason", "created_at", "released_at")
    list_select_related = ("session", "workspace")


@admin.register(PurgeOrder)
class PurgeOrderAdmin(OfSessionAdmin):
    list_display = ("session", "ordered_by", "ordered_at", "due_at", "by_policy", "reason")
    list_select_related = ("session", "ordered_by")


@admin.register(PurgedContent)
class PurgedContentAdmin(WindowAdmin):
    list_display = ("digest", "purged_at")


@admin.register(Receipt)
class ReceiptAdmin(WindowAdmin):
    list_display = ("session", "workspace", "owner", "purged_at", "ordered_by_name", "reason")
    search_fields = ("session", "workspace", "owner")


@admin.register(Run)
class RunAdmin(OfSessionAdmin):
    list_display = (
        "uuid",
        "session",
        "kind",
        "state",
        "requested_by",
        "error_code",
        "created_at",
        "finished_at",
    )
    list_filter = (choice_filter("state", RUN_STATES),)
    list_select_related = ("session", "requested_by")


@admin.register(ModelCall)
class ModelCallAdmin(OfSessionAdmin):
    list_display = (
        "session",
        "run",
        "ordinal",
        "model",
        "stop_reason",
        "error_code",
        "input_tokens",
        "output_tokens",
        "duration_ms",
        "created_at",
    )
    list_select_related = ("session", "run")


@admin.register(UsageDay)
class UsageDayAdmin(OfSessionAdmin):
    says_something = False
    list_display = ("day", "workspace", "session", "person", "model", "calls", "cost_microusd")
    list_select_related = ("workspace", "session", "person")


@admin.register(UsageTotal)
class UsageTotalAdmin(WindowAdmin):
    list_display = ("day", "scope", "target", "tokens", "cost_microusd")
    list_filter = (choice_filter("scope", SCOPES),)


@admin.register(Budget)
class BudgetAdmin(WindowAdmin):
    list_display = ("workspace", "person", "period", "unit", "limit", "created_at", "ended_at")
    list_select_related = ("workspace", "person")


@admin.register(BudgetWarning)
class BudgetWarningAdmin(WindowAdmin):
    list_display = ("budget", "starts_on", "at")
    list_select_related = ("budget",)


@admin.register(ToolCall)
class ToolCallAdmin(OfSessionAdmin):
    list_display = ("name", "session", "state", "ok", "turn_number", "duration_ms", "created_at")
    list_filter = (choice_filter("state", TOOL_CALL_STATES),)
    list_select_related = ("session",)


@admin.register(ToolPermission)
class ToolPermissionAdmin(WindowAdmin):
    list_display = ("label", "workspace", "granted_by", "granted_at", "revoked_at")
    list_select_related = ("workspace", "granted_by")


@admin.register(FileChange)
class FileChangeAdmin(OfSessionAdmin):
    list_display = ("__str__", "session", "call", "created_at", "done_at")
    list_select_related = ("session", "call")


@admin.register(Revert)
class RevertAdmin(OfSessionAdmin):
    list_display = ("uuid", "session", "actor", "created_at")
    list_select_related = ("session", "actor")


@admin.register(Attachment)
class AttachmentAdmin(OfSessionAdmin):
    list_display = ("uuid", "session", "kind", "media_type", "size", "turn_number", "created_at")
    list_select_related = ("session",)


@admin.register(DraftChunk)
class DraftChunkAdmin(OfSessionAdmin):
    session_path = "run__session"
    list_display = ("run", "ordinal", "part", "kind")
    list_select_related = ("run__session",)


@admin.register(ChannelPlace)
class ChannelPlaceAdmin(WindowAdmin):
    list_display = ("key", "workspace", "address", "taken", "updated_at")
    list_filter = ("workspace",)
    list_select_related = ("workspace",)
    search_fields = ("key",)


@admin.register(ChannelReply)
class ChannelReplyAdmin(OfSessionAdmin):
    says_something = False
    list_display = ("session", "source", "author_name", "created_at", "done_at")


@admin.register(ShareLink)
class ShareLinkAdmin(OfSessionAdmin):
    list_display = (
        "session",
        "from_turn",
        "to_turn",
        "with_tools",
        "created_by",
        "created_at",
        "expires_at",
        "revoked_at",
        "opened_count",
    )
    list_select_related = ("session", "created_by")


@admin.register(SignInLink)
class SignInLinkAdmin(WindowAdmin):
    list_display = ("user", "created_at", "expires_at", "used_at")
    list_filter = (("used_at", admin.EmptyFieldListFilter),)
    list_select_related = ("user",)
    left_out = ("digest",)
    search_fields = ("user__username",)


@admin.register(Device)
class DeviceAdmin(WindowAdmin):
    list_display = ("user", "agent", "address", "created_at", "last_seen_at", "ended_at")
    list_select_related = ("user",)
    left_out = ("session_key",)
    search_fields = ("user__username",)


@admin.register(Invitation)
class InvitationAdmin(WindowAdmin):
    list_display = ("label", "workspace", "role", "created_by", "expires_at", "used_by")
    list_select_related = ("workspace", "created_by", "used_by")
    left_out = ("digest",)
    search_fields = ("label",)


@admin.register(ApiToken)
class ApiTokenAdmin(WindowAdmin):
    list_display = ("hint", "user", "name", "scopes", "expires_at", "last_used_at", "revoked_at")
    list_select_related = ("user",)
    left_out = ("digest",)
    search_fields = ("name", "user__username")


@admin.register(ApiAnswer)
class ApiAnswerAdmin(WindowAdmin):
    list_display = ("user", "status", "created_at")
    list_select_related = ("user",)
    left_out = ("body", "key", "fingerprint")


@admin.register(Preferences)
class PreferencesAdmin(WindowAdmin):
    list_display = ("user", "theme", "keys", "enter", "language", "clock", "times")
    list_select_related = ("user",)
    search_fields = ("user__username",)


@admin.register(WorkspaceGroup)
class WorkspaceGroupAdmin(WindowAdmin):
    list_display = ("group", "workspace", "role", "created_at")
    list_select_related = ("group", "workspace")
    search_fields = ("group__name", "workspace__name", "workspace__slug")


@admin.register(Webhook)
class WebhookAdmin(WindowAdmin):
    """Without the address, of which a part may be a secret."""

    list_display = ("host", "workspace", "is_active", "failing_since", "created_by", "created_at")
    list_select_related = ("workspace", "created_by")
    shown_first = ("host",)
    left_out = ("url",)

    @admin.display(description="host")
    def host(self, webhook: Webhook) -> str:
        return webhook.host


@admin.register(Import)
class ImportAdmin(WindowAdmin):
    list_display = ("uuid", "name", "workspace", "user", "format", "state", "created_at")
    list_filter = (choice_filter("state", IMPORT_STATES),)
    list_select_related = ("workspace", "user")


@admin.register(Delivery)
class DeliveryAdmin(OfSessionAdmin):
    list_display = ("uuid", "webhook", "session", "event", "state", "attempts", "created_at")
    list_filter = (choice_filter("state", DELIVERY_STATES),)
    list_select_related = ("webhook", "session")
