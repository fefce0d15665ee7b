"""Links to a session, or to a range of its turns, that anybody may open.

A link shows what stands on the active path when it is opened: what its owner replaced
meanwhile is gone from it, what was said after its last turn never comes into it.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from conversations.archive import audit
from conversations.archive.journal import read_payload, synthesise_events
from conversations.archive.transcript_plan import rewound_ranges
from conversations.archive.turns import page_limit, stored_turns
from conversations.domain.audit import SHARED, UNSHARED
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.events import Fallback, Payload
from conversations.domain.turns import StoredTurn
from conversations.models import Attachment, ChatEvent, Session, Turn
from conversations.rendering.rows import RowPosition

from .models import ShareLink
from .rendering import render_shared

SALT = "loom.share"

MAX_SHARE_LINKS = 50
"""Links that a session may have at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLink:
    """What somebody wants to share, for how many days."""

    from_turn: int
    to_turn: int
    days: int
    with_tools: bool = False


def require_sharing() -> None:
    """Raises NotFound where it is switched off."""
    if not settings.LOOM.share_links:
        raise NotFound("Sharing by link is switched off on this server.")


def create_share_link(session: Session, new: NewLink, *, origin: audit.AuditOrigin) -> ShareLink:
    """Create a link, and enter it in the audit log. Raises Rejected."""
    if not 1 <= new.from_turn <= new.to_turn <= session.turn_count:
        raise Rejected(
            f"The turns to share lie between 1 and {session.turn_count}, the first one first.",
            code="bad_range",
        )
    if not 1 <= new.days <= settings.LOOM.share_days:
        raise Rejected(f"A link ends after 1 to {settings.LOOM.share_days} days.", code="bad_days")
    assert origin.user is not None
    with transaction.atomic():
        if open_links(session).count() >= MAX_SHARE_LINKS:
            raise Rejected(
                f"This session has {MAX_SHARE_LINKS} links. Revoke one first.",
                code="too_many_links",
            )
        now = timezone.now()
        link = ShareLink.objects.create(
            session=session,
            from_turn=new.from_turn,
            to_turn=new.to_turn,
            with_tools=new.with_tools,
            created_by=origin.user,
            created_at=now,
            expires_at=now + timedelta(days=new.days),
        )
        audit.record(origin, audit.note_of(session, SHARED, **_described(link)))
    return link


def revoke_share_link(session: Session, uuid: UUID, *, origin: audit.AuditOrigin) -> None:
    """End a link at once. One that has ended already stays as it is. Raises NotFound."""
    link = ShareLink.objects.filter(session=session.pk, uuid=uuid).first()
    if link is None:
        raise NotFound("There is no such link.")
    with transaction.atomic():
        ended = ShareLink.objects.filter(pk=link.pk, revoked_at=None).update(
            revoked_at=timezone.now(), revoked_by=origin.user
        )
        if ended:
            audit.record(origin, audit.note_of(session, UNSHARED, **_described(link)))


def _described(link: ShareLink) -> dict[str, object]:
    return {
        "link": str(link.uuid),
        "from_turn": link.from_turn,
        "to_turn": link.to_turn,
        "with_tools": link.with_tools,
    }


def open_links(session: Session) -> QuerySet[ShareLink]:
    """The links that can be opened now, the newest first."""
    links = ShareLink.objects.filter(session=session.pk, revoked_at=None)
    return links.filter(expires_at__gt=timezone.now()).select_related("created_by").order_by("-pk")


def share_token(link: ShareLink) -> str:
    """What the address of the link ends with: its uuid, signed with the secret key."""
    return signing.Signer(salt=SALT).sign(link.uuid.hex)


def get_shared(token: str) -> ShareLink:
    """The link that a token opens. Raises NotFound alike for one that is forged, unknown,
    revoked or over."""
    try:
        uuid = UUID(hex=signing.Signer(salt=SALT).unsign(token))
    except (signing.BadSignature, ValueError) as error:
        raise NotFound(GONE) from error
    links = ShareLink.objects.select_related("session", "session__workspace", "created_by")
    found = links.filter(uuid=uuid, revoked_at=None, expires_at__gt=timezone.now()).first()
    if found is None:
        raise NotFound(GONE)
    return found


GONE = "This link does not lead anywhere: it may have been revoked, or its time is over."


def count_opening(link: ShareLink) -> None:
    ShareLink.objects.filter(pk=link.pk).update(
        opened_count=F("opened_count") + 1, last_opened_at=timezone.now()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPage:
    """Rows of a shared session as HTML. ``next_turn`` begins the next page, None at
    the end."""

    rows: list[str]
    next_turn: int | None


def read_shared_page(link: ShareLink, *, from_turn: int, limit: int, files_url: str) -> SharedPage:
    """The rows of at most ``limit`` turns. ``files_url`` is where the link's attachments
    are, by uuid. What lies outside the link's range is never read."""
    session, limit = link.session, page_limit(limit)
    first = max(from_turn, link.from_turn)
    turns = Turn.objects.filter(session=session.pk, number__range=(first, link.to_turn))
    for gone in rewound_ranges(session, source="turn"):
        turns = turns.exclude(number__range=(gone.low, gone.high))
    found = stored_turns(turns.order_by("number")[: limit + 1])
    shown = found[:limit]
    journal = _journal_of(session, [turn.number for turn in shown])
    rows = [
        html
        for turn in shown
        for place, payload in journal.get(turn.number) or _synthesised(session, turn)
        if (html := _render(link, place, payload, files_url))
    ]
    return SharedPage(rows=rows, next_turn=found[limit].number if len(found) > limit else None)


type _Row = tuple[RowPosition, Payload | Fallback]


def _journal_of(session: Session, numbers: list[int]) -> dict[int, list[_Row]]:
    """The events of these turns; a turn that the journal does not cover has none."""
    found = defaultdict[int, list[_Row]](list)
    events = ChatEvent.objects.filter(session=session.pk, turn_number__in=numbers)
    for event in events.order_by("seq").defer("html"):
        assert event.turn_number is not None
        place = RowPosition(
            session=session.uuid,
            seq=str(event.seq),
            turn=str(event.turn_number),
            created_at=event.created_at,
        )
        found[event.turn_number].append((place, read_payload(event.event_type, event.payload)))
    return found


def _synthesised(session: Session, turn: StoredTurn) -> Iterator[_Row]:
    for event in synthesise_events(turn):
        place = RowPosition(
            session=session.uuid,
            seq=f"turn:{event.turn}.{event.part}",
            turn=str(event.turn),
            created_at=event.created_at,
        )
        yield place, event.payload


def _render(
    link: ShareLink, place: RowPosition, payload: Payload | Fallback, files_url: str
) -> str:
    return render_shared(payload, place=place, with_tools=link.with_tools, files_url=files_url)


def shared_attachment(link: ShareLink, uuid: UUID) -> Attachment:
    """A file of the shared turns; without tools only what people sent. Raises NotFound."""
    found = Attachment.objects.filter(
        session=link.session_id,
        uuid=uuid,
        turn_number__range=(link.from_turn, link.to_turn),
    ).first()
    if found is None or not _is_shown(link, found.turn_number or 0):
        raise NotFound(GONE)
    return found


def _is_shown(link: ShareLink, number: int) -> bool:
    """The turn stands on the active path, and is not a tool's where none are shown."""
    if any(gone.low <= number <= gone.high for gone in rewound_ranges(link.session, source="turn")):
        return False
    turns = Turn.objects.filter(session=link.session_id, number=number)
    return link.with_tools or turns.filter(role="user").exists()
