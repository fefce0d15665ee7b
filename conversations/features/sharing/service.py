"""Links that anybody may open, to a session, a range of its turns, or one file.

A link to a session shows the turns on the active path at the time when it is opened. It does not
show turns that were replaced meanwhile, and never shows turns after its last one. A link to a file
shows the file as it was when the link was created.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.db.models import Count, F, Model, QuerySet
from django.utils import timezone

from conversations.agent.undo.disk import stored_path
from conversations.archive import audit
from conversations.archive.append import make_title
from conversations.archive.blobs import put_blob
from conversations.archive.journal import read_payload, synthesise_events
from conversations.archive.purge import record_purged_contents
from conversations.archive.rewinds import is_rewound
from conversations.archive.storage import require_space
from conversations.archive.turns import are_turns_within, read_rewound, stored_turns
from conversations.domain import events
from conversations.domain.attachments import read_references
from conversations.domain.audit import SHARED, UNSHARED
from conversations.domain.errors import NotFound, Rejected, require_found
from conversations.domain.events import Fallback, Payload
from conversations.domain.messages import Message, say
from conversations.domain.runs import MESSAGE
from conversations.domain.text import storable
from conversations.domain.turns import ASSISTANT, USER
from conversations.models import Attachment, ChatEvent, Run, Session, Turn, Workspace
from conversations.rendering.messages import mark_text
from conversations.rendering.rows import (
    RowPosition,
    render_row_with,
    row_extra,
    without_marks_in,
)
from conversations.rendering.tool_rows import tool_word
from conversations.runtime.titles import FIRST_TURN

from .models import FileLink, ShareLink

SALTS: dict[type[Model], str] = {ShareLink: "loom.share", FileLink: "loom.share.file"}
MAX_SHARE_LINKS = 50  # links that a session or a file may have at a time

GONE = say(
    "This link does not work: it may have been revoked or have expired. "
    "Ask the person who sent it for a new one."
)

_SAID = (events.UserMessage, events.AssistantText)
_BY_TOOLS = (events.ToolCallStarted, events.ToolCallCompleted, events.ContentIndicator)


def require_sharing() -> None:
    """Raise NotFound if sharing is turned off."""
    if not settings.LOOM.share_links:
        raise NotFound("Sharing by link is turned off on this server.")


def create_share_link(
    session: Session,
    *,
    from_turn: int,
    to_turn: int,
    days: int,
    with_tools: bool = False,
    origin: audit.AuditOrigin,
) -> ShareLink:
    """Create a link to a range of turns, and record it in the audit log.

    Raise Rejected if the range or ``days`` is invalid, or if the session has too many links.
    """
    if not 1 <= from_turn <= to_turn <= session.turn_count:
        raise Rejected(
            "The turns must be between 1 and %(last)s, and the first must not come after the last.",
            code="bad_range",
            last=session.turn_count,
        )
    expires_at = expiry_in(days)
    assert origin.user is not None
    with transaction.atomic():
        _require_room(
            open_links(session),
            say(
                "This session already has %(limit)s links. Revoke one first.", limit=MAX_SHARE_LINKS
            ),
        )
        link = ShareLink.objects.create(
            session=session,
            from_turn=from_turn,
            to_turn=to_turn,
            with_tools=with_tools,
            created_by=origin.user,
            created_at=timezone.now(),
            expires_at=expires_at,
        )
        audit.record(origin, audit.session_event(session, SHARED, **_described(link)))
    return link


def revoke_share_link(session: Session, uuid: UUID, *, origin: audit.AuditOrigin) -> None:
    """Revoke a link, unless it is revoked already. Raise NotFound if it does not exist."""
    links = ShareLink.objects.filter(session=session.pk)
    _revoke(
        links,
        uuid,
        origin=origin,
        note=lambda link: audit.session_event(session, UNSHARED, **_described(link)),
    )


def _revoke[L: (ShareLink, FileLink)](
    links: QuerySet[L],
    uuid: UUID,
    *,
    origin: audit.AuditOrigin,
    note: Callable[[L], audit.AuditEvent],
) -> L:
    link = require_found(links.filter(uuid=uuid).first(), "This link does not exist.")
    with transaction.atomic():
        ended = links.filter(pk=link.pk, revoked_at=None).update(
            revoked_at=timezone.now(), revoked_by=origin.user
        )
        if ended:
            audit.record(origin, note(link))
    return link


def _require_room(open_now: QuerySet[Any], problem: Message) -> None:
    """Raise Rejected if no further link is allowed."""
    if open_now.count() >= MAX_SHARE_LINKS:
        raise Rejected(problem, code="too_many_links")


def _described(link: ShareLink) -> dict[str, object]:
    return {
        "link": str(link.uuid),
        "from_turn": link.from_turn,
        "to_turn": link.to_turn,
        "with_tools": link.with_tools,
    }


def good_links[L: (ShareLink, FileLink)](model: type[L]) -> QuerySet[L]:
    """Return the links of this model that can be opened now."""
    return model._default_manager.filter(revoked_at=None, expires_at__gt=timezone.now())


def open_links(session: Session) -> QuerySet[ShareLink]:
    """Return the links to a session that can be opened now, the newest first."""
    links = good_links(ShareLink).filter(session=session.pk)
    return links.select_related("created_by").order_by("-pk")


def share_token(link: ShareLink | FileLink) -> str:
    """Return the token at the end of a link's address: the uuid, signed with the secret key."""
    return signing.Signer(salt=SALTS[type(link)]).sign(link.uuid.hex)


def get_shared(token: str) -> ShareLink:
    """Return the link to a session that a token opens. Raise NotFound if there is none."""
    links = good_links(ShareLink)
    return find_shared(token, links.select_related("session", "session__workspace", "created_by"))


def find_shared[L: (ShareLink, FileLink)](token: str, links: QuerySet[L]) -> L:
    """Return the link among ``links`` that a token opens.

    Raise the same NotFound if the token is forged, if the link is unknown, revoked or expired, and
    if sharing is turned off.
    """
    if not settings.LOOM.share_links:
        raise NotFound(GONE)
    try:
        uuid = UUID(hex=signing.Signer(salt=SALTS[links.model]).unsign(token))
    except (signing.BadSignature, ValueError) as error:
        raise NotFound(GONE) from error
    return require_found(links.filter(uuid=uuid).first(), GONE)


def count_opening(link: ShareLink | FileLink) -> None:
    type(link)._default_manager.filter(pk=link.pk).update(
        opened_count=F("opened_count") + 1, last_opened_at=timezone.now()
    )


def expiry_in(days: int) -> datetime:
    """Return the time in so many days. Raise Rejected unless the installation allows it."""
    if not 1 <= days <= settings.LOOM.share_days:
        limit = settings.LOOM.share_days
        raise Rejected("A link can last 1 to %(days)s days.", code="bad_days", days=limit)
    return timezone.now() + timedelta(days=days)


# Links to one file of a workspace.


def create_file_link(
    workspace: Workspace, path: str, data: bytes, *, days: int, origin: audit.AuditOrigin
) -> FileLink:
    """Create a link to this content of a file, and record it in the audit log.

    Raise Rejected if ``days`` is invalid or if the file has too many links.
    """
    expires_at = expiry_in(days)
    assert origin.user is not None
    stored = stored_path(path)
    require_space(say("Sharing a file"))
    digest = put_blob(data)
    # Note the content for removal now. The retention run keeps it while a valid link names it.
    record_purged_contents([digest], now=timezone.now())
    with transaction.atomic():
        _require_room(
            open_file_links(workspace, path),
            say("This file already has %(limit)s links. Revoke one first.", limit=MAX_SHARE_LINKS),
        )
        link = FileLink.objects.create(
            workspace=workspace,
            path=stored,
            digest=digest,
            created_by=origin.user,
            created_at=timezone.now(),
            expires_at=expires_at,
        )
        audit.record(origin, _file_event(workspace, link, SHARED))
    return link


def open_file_links(workspace: Workspace, path: str) -> QuerySet[FileLink]:
    """Return the links to a file that can be opened now, the newest first."""
    links = good_links(FileLink).filter(workspace=workspace, path=stored_path(path))
    return links.select_related("created_by").order_by("-pk")


def count_file_links(workspace: Workspace) -> list[tuple[str, int]]:
    """Return the stored paths of files with links that can be opened now, and how many links."""
    paths = good_links(FileLink).filter(workspace=workspace).values_list("path")
    return list(paths.annotate(Count("pk")).order_by("path"))


def revoke_file_link(workspace: Workspace, uuid: UUID, *, origin: audit.AuditOrigin) -> FileLink:
    """Revoke a link, unless it is revoked already. Raise NotFound if it does not exist."""
    return _revoke(
        FileLink.objects.filter(workspace=workspace),
        uuid,
        origin=origin,
        note=lambda link: _file_event(workspace, link, UNSHARED),
    )


def _file_event(workspace: Workspace, link: FileLink, action: str) -> audit.AuditEvent:
    metadata = {"link": str(link.uuid), "path": link.path, "digest": link.digest}
    return audit.AuditEvent(action=action, workspace=workspace.slug, metadata=metadata)


def get_shared_file(token: str) -> FileLink:
    """Return the link to a file that a token opens. Raise NotFound if there is none."""
    return find_shared(token, good_links(FileLink).select_related("workspace", "created_by"))


# The rows of a session.


def shows_title(link: ShareLink) -> bool:
    """Return whether readers of the link may see the session's title."""
    session = link.session
    if link.from_turn > 1 or not session.title:
        return False
    if session.title_is_chosen:
        return True
    if session.fork_turn is not None:
        return False  # the title is made from another session's messages
    # The title is made from the first message and the first message with text. If a model made it,
    # the first answer was used, too. These turns may be outside of the link, or be replaced.
    turns_with_text = Turn.objects.filter(session=session.pk, content__regex=r"\S").order_by(
        "number"
    )
    message = turns_with_text.filter(role=USER).first()
    source_turns = [1]
    if message is not None:
        source_turns.append(message.number)
    if message is None or session.title != make_title(message.content):
        # A model is asked for a title only after a run that was begun by the first message. Without
        # such a run, the title was imported, and may be made from any turns.
        if not Run.objects.filter(session=session.pk, user_turn=FIRST_TURN, kind=MESSAGE).exists():
            return False
        answer = turns_with_text.filter(role=ASSISTANT).values_list("number", flat=True).first()
        source_turns.append(answer or 1)
    return max(source_turns) <= link.to_turn and not any(
        is_rewound(session.pk, turn) for turn in source_turns
    )


def read_shared_page(
    link: ShareLink, *, from_turn: int, limit: int, files_url: str
) -> tuple[list[str], int | None]:
    """Return the rows of at most ``limit`` turns as HTML, and the first turn of the next page.

    ``files_url`` is the address below which the link's attachments are served. Turns outside of the
    link's range are never read.
    """
    session = link.session
    turns = _shared_turns(link).filter(number__gte=from_turn)
    turns_read = stored_turns(turns.order_by("number")[: limit + 1])
    shown_turns = {turn.number: turn for turn in turns_read[:limit]}
    payloads = defaultdict[int, list[tuple[str, datetime, Payload | Fallback]]](list)
    journal = ChatEvent.objects.filter(session=session.pk, turn_number__in=shown_turns)
    for event in journal.order_by("seq").defer("html"):
        assert event.turn_number is not None
        payload = read_payload(event.event_type, event.payload)
        payloads[event.turn_number].append((str(event.seq), event.created_at, payload))
    rows: list[str] = []
    for number, turn in shown_turns.items():
        # A turn that the journal does not cover has no events.
        for seq, created_at, payload in payloads[number] or [
            (f"turn:{number}.{part}", turn.created_at, event_payload)
            for part, event_payload in enumerate(synthesise_events(turn))
        ]:
            place = RowPosition(
                session=session.uuid, seq=seq, turn=str(number), created_at=created_at
            )
            rows.append(_render(payload, place, with_tools=link.with_tools, files_url=files_url))
    following = turns_read[limit].number if len(turns_read) > limit else None
    return [row for row in rows if row], following


def _shared_turns(link: ShareLink) -> QuerySet[Turn]:
    turns = Turn.objects.filter(
        session=link.session_id, number__range=(link.from_turn, link.to_turn)
    )
    if link.session.rewind_count:
        turns = turns.exclude(are_turns_within(read_rewound(link.session_id, "turn")))
    return turns


def _render(
    payload: Payload | Fallback, place: RowPosition, *, with_tools: bool, files_url: str
) -> str:
    """Return the row of an event as HTML, or an empty string if the event is not shared."""
    payload = without_marks_in(payload)
    # Readers of a link need not be members. They get the same template, but without links into the
    # product, and without the work of tools unless the link includes it.
    if isinstance(payload, events.ToolCallCompleted) and not with_tools:
        word, icon = tool_word(payload.name)
        named = {"name": storable(payload.name), "word": mark_text(word), "icon": icon}
        return storable(render_row_with(payload, named, place=place, partial="tool_name"))
    if not isinstance(payload, _SAID + (_BY_TOOLS if with_tools else ())):
        return ""
    if isinstance(payload, events.AssistantText) and not with_tools:
        payload = replace(payload, thinking="")
        if not payload.text.strip():
            return ""
    extra = row_extra(payload, place) | {
        "record_url": "",
        "changes_url": "",
        "file_url": "",
        "decision_html": "",
    }
    if isinstance(payload, events.ToolCallStarted):
        # A page updates the state of a call while it is open. Here it would stay "Waiting" if the
        # result is not part of the link.
        extra["state"] = ("", "")
    if "blocks" in extra:
        extra["blocks"] = [block | {"more_url": ""} for block in extra["blocks"]]
    inside = f"/s/{place.session}/attachments/"

    def moved(file: dict[str, Any]) -> dict[str, Any]:
        url = str(file.get("url") or "")
        return file | {"url": files_url + url.removeprefix(inside) if url else ""}

    if "files" in extra:
        extra["files"] = [moved(file) for file in extra["files"]]
    if "file" in extra:
        extra["file"] = moved(extra["file"])
    # A shared page has no separators of days between rows, so the times include the day.
    row = render_row_with(payload, extra, place=place)
    return storable(row.replace("<time datetime", "<time data-relative datetime"))


def shared_attachment(link: ShareLink, uuid: UUID) -> Attachment:
    """Return a file of the shared turns. Raise NotFound if it is not part of them.

    Without tools, only files that people sent are shared.
    """
    sent = Attachment.objects.filter(session=link.session_id, turn_number__isnull=False)
    attachment = require_found(sent.filter(uuid=uuid).first(), GONE)
    turns = _shared_turns(link)
    if not link.with_tools:
        turns = turns.filter(role=USER)
    if turns.filter(number=attachment.turn_number or 0).exists():
        return attachment
    # An edited message, or a later message with the same file, names the file of an earlier turn.
    naming = turns.filter(blocks__contains=str(uuid)).order_by("number")
    for blocks in naming.values_list("blocks", flat=True):
        if any(block.get("attachment") == str(uuid) for block in read_references(blocks)):
            return attachment
    raise NotFound(GONE)
