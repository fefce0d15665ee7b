"""What a link shows of a session that quotes others."""

import pytest

from conversations.archive.audit import AuditOrigin
from conversations.features.sharing.service import create_share_link, read_shared_page
from tests.tools.test_recall_audience import Neighbourhood, call_tool, look_for

pytestmark = pytest.mark.django_db


def test_a_link_never_shows_what_was_quoted_after_it_was_made(
    neighbourhood: Neighbourhood,
) -> None:
    """So its readers need not be counted among those of the session."""
    session = neighbourhood.sessions["page"]
    session.refresh_from_db()
    link = create_share_link(
        session,
        from_turn=1,
        to_turn=session.turn_count,
        days=3,
        with_tools=True,
        origin=AuditOrigin(user=neighbourhood.owner),
    )
    look = look_for(session, neighbourhood.owner.pk)
    target = str(neighbourhood.uuids["direct message"])
    answer = look(action="range", session=target, start_turn=1, end_turn=3)
    assert neighbourhood.words["direct message"] in answer.output
    call_tool(session, "conversation_recall", {"action": "range"}, answer.output)
    pages = "".join(row for row in read_shared_page(link, from_turn=1, limit=200, files_url="/")[0])
    assert neighbourhood.words_in(pages) == {"page"}
