"""Text that UTF-8 cannot encode: all operations refuse it by one rule."""

import json

import pytest
from django.test import Client

from conversations.models import Run, Session
from tests.archive.turns import read_turns
from tests.web.conftest import say

pytestmark = pytest.mark.django_db

HALF = "half \ud83d of it"
HISTORY = [{"role": "user", "content": HALF}]

BODIES = (
    ("post", "/sessions/{uuid}/messages", {"text": HALF}),
    ("post", "/sessions/{uuid}/messages", {"content": [{"type": "text", "text": HALF}]}),
    ("post", "/sessions/{uuid}/runs", {"kind": "edit", "turn": 1, "text": HALF}),
    ("patch", "/sessions/{uuid}", {"title": HALF}),
    ("patch", "/sessions/{uuid}", {"metadata": {"job": {"name": [HALF]}}}),
    ("patch", "/sessions/{uuid}", {"metadata": {"job": {HALF: 1}}}),
    ("post", "/workspaces/garden/sessions", {"instructions": HALF}),
    ("post", "/workspaces/garden/sessions", {"key": f"cli:{HALF}"}),
    ("post", "/workspaces/garden/sessions", {"messages": HISTORY}),
    ("put", "/workspaces/garden/keys/cli:a", {"title": HALF}),
    (
        "post",
        "/sessions/{uuid}/messages",
        {"content": [{"type": "document", "title": HALF, "source": {"type": "text", "data": "x"}}]},
    ),
)


def test_half_a_surrogate_pair_is_refused_and_changes_nothing(
    session: Session, owner: Client
) -> None:
    say(session, "Plant the beans")
    before = Session.objects.values().get()
    bodies: list[tuple[str, str, str | bytes]] = [
        *((method, path, json.dumps(body)) for method, path, body in BODIES),
        ("patch", "/sessions/{uuid}", b'{"title": "\xed\xa0\x80"}'),
    ]
    for method, path, body in bodies:
        address = "/api/v1" + path.format(uuid=session.uuid)
        answer = getattr(owner, method)(address, body, content_type="application/json")
        assert answer.status_code == 422, (body, answer.content)
        assert "Half a surrogate pair" in answer.text, body
        if isinstance(body, bytes):
            assert answer.json()["code"] == "invalid"
        assert Session.objects.values().get() == before, body
        assert len(read_turns(session.pk)) == 1, body
        assert not Run.objects.exists(), body


def test_a_whole_surrogate_pair_is_stored_as_one_character(session: Session, owner: Client) -> None:
    address = f"/api/v1/sessions/{session.uuid}"
    answer = owner.patch(address, r'{"title": "Beans \ud83e\uded8"}', "application/json")
    assert answer.json()["title"] == "Beans \U0001fad8"
