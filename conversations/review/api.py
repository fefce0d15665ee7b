"""API operations for review and the audit log, with the functions of the pages."""

import json
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from ninja import Field, Query, Router, Schema, Status
from pydantic import BeforeValidator

from conversations.access import (
    access_context_of,
    get_session_for_review,
    origin_of_act,
    require_administrator,
    require_reviewer,
)
from conversations.accounts.tokens import AUDIT, REVIEW
from conversations.api.auth import needs
from conversations.api.fields import (
    MAX_NUMBER,
    Moment,
    Page,
    Paging,
    ShortText,
    Text,
    page_request_of,
)
from conversations.archive.audit import AuditOrigin
from conversations.archive.workspaces import find_user
from conversations.domain.errors import Rejected
from conversations.domain.keyset import PageCursor, bad_cursor
from conversations.models import AuditEntry, ReviewFlag, ReviewMark, ReviewNote, Session
from conversations.web.attachments import in_threads

from . import remarks
from .audit_log import ACTIONS, FORMATS, AuditLogFilter, export_log, read_log_page
from .queue import QueueFilters, read_queue

router = Router(tags=["Review"])

Name = Annotated[str, BeforeValidator(str)]  # of an account or a workspace


class QueueItemOut(Schema):
    """A session in a list for reviewers. It has been reviewed through ``reviewed_turn``."""

    uuid: UUID
    title: str
    owner: Name
    workspace: Name
    channel: str
    created_at: datetime
    last_active_at: datetime
    turn_count: int
    reviewed_turn: int
    reviewed_by: str
    reviewed_at: datetime | None
    flags: int
    notes: int
    is_archived: bool
    is_expired: bool
    has_rewinds: bool


class QueueQuery(Paging):
    """``person`` matches sessions that they own or in which they have requested runs."""

    queue: Literal["unreviewed", "flagged", "all"] = "unreviewed"
    person: ShortText = ""
    workspace: ShortText = ""
    channel: ShortText = ""
    since: Moment | None = Field(None, description="Used since then.")
    until: Moment | None = Field(None, description="Created before then.")
    with_errors: bool = False


class NoteOut(Schema):
    uuid: UUID
    turn: int | None
    author: Name
    text: str
    created_at: datetime
    withdrawn_at: datetime | None


class FlagOut(Schema):
    uuid: UUID
    turn: int | None
    label: str
    author: Name
    text: str
    created_at: datetime
    resolved_at: datetime | None


class MarkOut(Schema):
    """The turn through which a session is reviewed; 0 if it is to be reviewed again."""

    through_turn: int
    author: Name
    created_at: datetime


class RemarksOut(Schema):
    """All notes and flags, the oldest first, and the newest marks, the newest first."""

    notes: list[NoteOut]
    flags: list[FlagOut]
    marks: list[MarkOut]


class NoteIn(Schema):
    """``turn`` is null if the text is about the whole session."""

    text: Text
    turn: int | None = Field(None, ge=1, le=MAX_NUMBER)


class FlagIn(NoteIn):
    text: Text = ""
    label: ShortText


class MarkIn(Schema):
    """``through`` is the last reviewed turn; 0 if the session is to be reviewed again."""

    through: int = Field(ge=0, le=MAX_NUMBER)


SESSION = "/review/sessions/{uuid:uuid}"


@router.get(
    "/review/sessions", auth=needs(REVIEW), response=Page[QueueItemOut], url_name="review_queue"
)
def list_review_queue(request: HttpRequest, wanted: Query[QueueQuery]) -> dict[str, Any]:
    """List everybody's sessions for reviewers, the last used first. A list shows the title and no
    other text of a transcript."""
    require_reviewer(request)
    walk = page_request_of(wanted)
    if walk.is_back:
        raise bad_cursor()
    filters = QueueFilters(
        queue=wanted.queue,
        person=find_user(wanted.person, even_closed=True).pk if wanted.person else None,
        workspace=wanted.workspace,
        channel=wanted.channel,
        since=wanted.since,
        until=wanted.until,
        with_errors=wanted.with_errors,
    )
    items, cursor = read_queue(filters, before=walk.place, limit=walk.limit)
    return {"items": items, "next": str(PageCursor(cursor)) if cursor else None}


@router.get(
    SESSION + "/remarks", auth=needs(REVIEW), response=RemarksOut, url_name="review_remarks"
)
def list_remarks(request: HttpRequest, uuid: UUID) -> Any:
    """List the notes, flags and marks of a session."""
    session, _ = _open(request, uuid)
    return remarks.read_remarks(session)


@router.post(
    SESSION + "/notes", auth=needs(REVIEW), response={201: NoteOut}, url_name="review_notes"
)
def remark(request: HttpRequest, uuid: UUID, new: NoteIn) -> Status[ReviewNote]:
    """Write a note about a session or a turn."""
    session, origin = _open(request, uuid)
    return Status(201, remarks.write_note(session, origin, text=new.text, turn=new.turn))


@router.post(
    SESSION + "/notes/{uuid:note}/withdraw",
    auth=needs(REVIEW),
    response={204: None},
    url_name="review_note_withdraw",
)
def withdraw_remark(request: HttpRequest, uuid: UUID, note: UUID) -> Status[None]:
    """Withdraw a note. Its text stays."""
    session, origin = _open(request, uuid)
    remarks.withdraw_note(session, origin, uuid=note)
    return Status(204, None)


@router.post(
    SESSION + "/flags", auth=needs(REVIEW), response={201: FlagOut}, url_name="review_flags"
)
def flag_session(request: HttpRequest, uuid: UUID, new: FlagIn) -> Status[ReviewFlag]:
    """Flag a session or a turn as a problem that somebody has to deal with."""
    session, origin = _open(request, uuid)
    about = {"label": new.label, "text": new.text}
    return Status(201, remarks.set_flag(session, origin, **about, turn=new.turn))


@router.post(
    SESSION + "/flags/{uuid:flag}/resolve",
    auth=needs(REVIEW),
    response={204: None},
    url_name="review_flag_resolve",
)
def resolve_session_flag(request: HttpRequest, uuid: UUID, flag: UUID) -> Status[None]:
    """Resolve a flag."""
    session, origin = _open(request, uuid)
    remarks.resolve_flag(session, origin, uuid=flag)
    return Status(204, None)


@router.post(SESSION + "/mark", auth=needs(REVIEW), response=MarkOut, url_name="review_mark")
def mark_session(request: HttpRequest, uuid: UUID, new: MarkIn) -> ReviewMark:
    """Mark a session as reviewed through a turn."""
    session, origin = _open(request, uuid)
    return remarks.mark_reviewed(session, origin, through=new.through)


def _open(request: HttpRequest, uuid: UUID) -> tuple[Session, AuditOrigin]:
    context = replace(access_context_of(request), action="")
    session = get_session_for_review(context, uuid)
    return session, origin_of_act(context, session)


# The audit log, for administrators.


class AuditEntryOut(Schema):
    """``digest`` covers the entry and all entries before it."""

    number: int
    at: datetime
    action: str
    actor_name: str
    session: UUID | None
    workspace: str
    place: str
    address: str
    agent: str
    reason: str
    metadata: dict[str, Any]
    digest: str

    @staticmethod
    def resolve_metadata(entry: AuditEntry) -> Any:
        return json.loads(entry.metadata)


class AuditFilters(Schema):
    """Filters that are left out match all entries."""

    person: ShortText = ""
    action: ShortText = Field(
        "", description="An action of the log, or `readings` or `decisions` for all of that group."
    )
    workspace: ShortText = ""
    session: UUID | None = None
    after: Moment | None = None
    before: Moment | None = None

    @property
    def log_filter(self) -> AuditLogFilter:
        """The filters for the log. Raise Rejected if the person or the action does not exist."""
        if self.action and self.action not in ACTIONS:
            raise Rejected("The audit log has no such action.", code="unknown_action")
        return AuditLogFilter(
            person=find_user(self.person, even_closed=True) if self.person else None,
            action=self.action,
            session=self.session,
            workspace=self.workspace,
            after=self.after,
            before=self.before,
        )


class AuditQuery(AuditFilters, Paging):
    pass


class AuditExport(AuditFilters):
    format: Literal["jsonl", "csv"] = "jsonl"


@router.get(
    "/audit", auth=needs(AUDIT), response=Page[AuditEntryOut], url_name="audit", tags=["Audit log"]
)
def list_audit_log(request: HttpRequest, wanted: Query[AuditQuery]) -> dict[str, Any]:
    """List entries, the latest first. A page with a `next` can have fewer entries than the limit,
    even none, because a request looks through a limited number of entries."""
    require_administrator(request)
    walk = page_request_of(wanted)
    if walk.is_back:
        raise bad_cursor()
    page = read_log_page(wanted.log_filter, before=walk.number, limit=walk.limit)
    return {
        "items": page.entries,
        "next": str(PageCursor(str(page.cursor))) if page.cursor else None,
    }


TEXT = {"schema": {"type": "string"}}
EXPORTED = {
    "description": "The entries, oldest first, streamed.",
    "content": {"application/jsonl": TEXT, "text/csv": TEXT},
}


@router.get(
    "/audit/export",
    auth=needs(AUDIT),
    url_name="audit_export",
    tags=["Audit log"],
    openapi_extra={"responses": {200: EXPORTED}},
)
async def export_audit_log(request: HttpRequest, wanted: Query[AuditExport]) -> HttpResponseBase:
    """Export the entries that match the filters as a file. The export is recorded in the log."""
    context = access_context_of(request)
    await sync_to_async(require_administrator)(context)
    log_filter = await sync_to_async(lambda: wanted.log_filter)()
    pieces = await sync_to_async(export_log)(
        log_filter, format=wanted.format, origin=context.origin
    )
    return StreamingHttpResponse(in_threads(pieces), content_type=FORMATS[wanted.format])
