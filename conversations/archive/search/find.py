"""Finding turns by words."""

from django.db.models import QuerySet

from conversations.models import Session, Turn

from .results import Found, Hit


def search_session(
    session_pk: int, query: str, *, limit: int = 10, cursor: str = "", order: str = "best"
) -> Found:
    """Turns of one session that match, best first. Any text is a valid query; an
    unknown cursor gives the first page."""
    return search_sessions(Session.objects.filter(pk=session_pk), query, limit=limit)


def search_sessions(
    sessions: QuerySet[Session],
    query: str,
    *,
    limit: int = 20,
    cursor: str = "",
    order: str = "best",
) -> Found:
    """Turns of these sessions that match, best first; the caller says which may be
    read by whom it asks for."""
    words = query.split()
    turns = Turn.objects.filter(session__in=sessions).select_related("session")
    for word in words:
        turns = turns.filter(content__icontains=word)
    found = turns.order_by("-id")[:limit] if words else []
    hits = [
        Hit(
            session_pk=turn.session_id,
            session=turn.session.uuid,
            turn=turn.number,
            role=turn.role,
            tool_name=turn.tool_name,
            created_at=turn.created_at,
            text=turn.content,
            score=1.0,
        )
        for turn in found
    ]
    return Found(hits=hits, total=len(hits))
