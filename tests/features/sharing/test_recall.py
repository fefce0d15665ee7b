"""Share links of a session that quotes other sessions."""

import pytest

from conversations.archive.audit import AuditOrigin
from conversations.features.sharing.service import create_share_link, read_shared_page
from tests.tools.test_recall_audience import Neighbourhood, call_tool, look_for

pytestmark = pytest.mark.django_db


def test_a_link_does_not_show_quotes_made_after_its_creation(
    neighbourhood: Neighbourhood,
) -> None:
    """Therefore the readers of a link do not count as readers of the session."""
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
