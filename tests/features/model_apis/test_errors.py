"""Errors have the form of the Messages API, whichever part of the server returns them."""

import json

import pytest
from django.test import Client

from conversations.archive.storage import database_unavailable
from conversations.features.model_apis import responses
from conversations.models import Session, Turn, Workspace
from tests.api.conftest import fresh_rates, owner  # noqa: F401 (fixtures)
from tests.api.test_encodable import HALF

pytestmark = pytest.mark.django_db


def test_half_a_surrogate_pair_is_refused(
    workspace: Workspace,
    session: Session,
    owner: Client,  # noqa: F811 (the fixture)
) -> None:
    body = {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": HALF}]}
    address = f"/api/v1/anthropic/{workspace.slug}/v1/messages"
    answer = owner.post(address, json.dumps(body), content_type="application/json")
    assert answer.status_code == 400
    assert "Half a surrogate pair" in answer.text
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not Turn.objects.exists()


def test_an_unknown_host_is_refused(db: None) -> None:
    answer = Client().get("/api/v1/anthropic/v1/messages", HTTP_HOST="evil.example")
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/json")
    assert answer.text.startswith('{"type":"error"')
    assert "LOOM_ALLOWED_HOSTS" in answer.text
    assert "evil" not in answer.text


def test_an_unavailable_database_is_an_api_error(
    workspace: Workspace,
    owner: Client,  # noqa: F811 (the fixture)
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise database_unavailable()

    monkeypatch.setattr(responses, "get_workspace_for", fail)
    answer = owner.get(f"/api/v1/anthropic/{workspace.slug}/v1/models")
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "api_error"
    assert answer["Retry-After"]
