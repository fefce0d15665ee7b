"""Text that UTF-8 cannot encode: all operations refuse it by one rule."""

import json
from typing import Any

import pytest
from django.test import Client

from conversations.models import Run, Session, Workspace
from tests.archive.turns import read_turns
from tests.web.conftest import say

pytestmark = pytest.mark.django_db

HALF = "half \ud83d of it"
HISTORY = [{"role": "user", "content": HALF}]

BODIES = {
    "message": ("post", "/sessions/{uuid}/messages", {"text": HALF}),
    "content": ("post", "/sessions/{uuid}/messages", {"content": [{"type": "text", "text": HALF}]}),
    "edit": ("post", "/sessions/{uuid}/runs", {"kind": "edit", "turn": 1, "text": HALF}),
    "title": ("patch", "/sessions/{uuid}", {"title": HALF}),
    "metadata": ("patch", "/sessions/{uuid}", {"metadata": {"job": {"name": [HALF]}}}),
    "name of metadata": ("patch", "/sessions/{uuid}", {"metadata": {"job": {HALF: 1}}}),
    "instructions": ("post", "/workspaces/garden/sessions", {"instructions": HALF}),
    "key": ("post", "/workspaces/garden/sessions", {"key": f"cli:{HALF}"}),
    "history": ("post", "/workspaces/garden/sessions", {"messages": HISTORY}),
    "title by key": ("put", "/workspaces/garden/keys/cli:a", {"title": HALF}),
    "file": (
        "post",
        "/sessions/{uuid}/messages",
        {"content": [{"type": "document", "title": HALF, "source": {"type": "text", "data": "x"}}]},
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_half_a_surrogate_pair_is_refused(
    workspace: Workspace, session: Session, owner: Client, name: str
) -> None:
    method, path, body = BODIES[name]
    address = "/api/v1" + path.format(uuid=session.uuid)
    assert_refused(owner, address, method, json.dumps(body))


def assert_refused(
    caller: Client, address: str, method: str, body: str | bytes, *, status: int = 422
) -> Any:
    say(session := Session.objects.get(), "Plant the beans")
    before = Session.objects.values().get()
    answer = getattr(caller, method)(address, body, content_type="application/json")
    assert answer.status_code == status, answer.content
    assert "Half a surrogate pair" in answer.text
    assert Session.objects.values().get() == before
    assert len(read_turns(session.pk)) == 1
    assert not Run.objects.exists()
    return answer.json()


def test_encoded_surrogate_bytes_get_the_code_of_invalid_values(
    session: Session, owner: Client
) -> None:
    address = f"/api/v1/sessions/{session.uuid}"
    problem = assert_refused(owner, address, "patch", b'{"title": "\xed\xa0\x80"}')
    assert problem["code"] == "invalid"


def test_a_whole_surrogate_pair_is_stored_as_one_character(session: Session, owner: Client) -> None:
    address = f"/api/v1/sessions/{session.uuid}"
    answer = owner.patch(address, r'{"title": "Beans \ud83e\uded8"}', "application/json")
    assert answer.json()["title"] == "Beans \U0001fad8"
