"""Review and the audit log by the API."""

import json
from itertools import product
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.utils import timezone

from conversations.models import AuditEntry, Session
from tests.web.conftest import MakePerson, say

from .conftest import caller_of

pytestmark = pytest.mark.django_db

API = "/api/v1"


@pytest.fixture
def reviewer(make_person: MakePerson) -> Client:
    return caller_of(make_person("reviewer"))


@pytest.fixture
def administrator(make_person: MakePerson) -> Client:
    return caller_of(make_person("administrator"))


def post(caller: Client, path: str, **body: Any) -> Any:
    return caller.post(f"{API}{path}", body, content_type="application/json")


def test_the_review_queue_lists_other_peoples_sessions(reviewer: Client, session: Session) -> None:
    say(session, "«Plant the beans»", "In May")
    Session.objects.update(title="Spring")
    queue = f"{API}/review/sessions"
    [item] = reviewer.get(queue).json()["items"]
    assert (item["uuid"], item["turn_count"], item["reviewed_turn"]) == (str(session.uuid), 2, 0)
    assert "«" not in reviewer.get(queue).text
    assert reviewer.get(queue, {"queue": "flagged"}).json()["items"] == []
    assert reviewer.get(queue, {"person": "ann"}).json()["items"] == [item]
    assert reviewer.get(queue, {"since": timezone.now().isoformat()}).json()["items"] == []
    assert reviewer.get(queue, {"person": "nobody"}).status_code == 400
    assert not AuditEntry.objects.exists()


def test_a_date_outside_the_allowed_years_is_refused(reviewer: Client) -> None:
    days = ("0001-01-01", "1899-12-31", "9000-01-01")
    for name, far in product(("since", "until"), days):
        answer = reviewer.get(f"{API}/review/sessions", {name: f"{far}T00:00:00+14:00"})
        assert answer.status_code == 422
        assert "must be of a year from 1900 through 8999" in answer.text


def test_the_queue_is_read_in_pages(reviewer: Client, session: Session) -> None:
    other = Session.objects.create(
        workspace=session.workspace,
        owner=session.owner,
        created_at=timezone.now(),
        last_active_at=session.last_active_at,
    )
    query: dict[str, Any] = {"queue": "all", "limit": 1}
    first = reviewer.get(f"{API}/review/sessions", query).json()
    rest = reviewer.get(f"{API}/review/sessions", query | {"cursor": first["next"]}).json()
    found = [page["items"][0]["uuid"] for page in (first, rest)]
    assert found == [str(other.uuid), str(session.uuid)]
    assert rest["next"] is None


def test_remarks_and_marks_are_recorded_in_the_audit_log(
    reviewer: Client, session: Session
) -> None:
    say(session, "Plant the beans", "In May")
    below = f"/review/sessions/{session.uuid}"
    note = post(reviewer, f"{below}/notes", text="Look here", turn=2).json()
    assert (note["turn"], note["text"], note["withdrawn_at"]) == (2, "Look here", None)
    flag = post(reviewer, f"{below}/flags", label="other").json()
    assert (flag["label"], flag["turn"]) == ("other", None)
    assert post(reviewer, f"{below}/mark", through=2).json()["through_turn"] == 2
    assert post(reviewer, f"{below}/mark", through=2).status_code == 409
    assert post(reviewer, f"{below}/notes/{note['uuid']}/withdraw").status_code == 204
    assert post(reviewer, f"{below}/flags/{flag['uuid']}/resolve").status_code == 204
    said = reviewer.get(f"{API}{below}/remarks").json()
    assert said["notes"][0]["withdrawn_at"]
    assert said["flags"][0]["resolved_at"]
    assert [mark["through_turn"] for mark in said["marks"]] == [2]
    actions = list(AuditEntry.objects.order_by("number").values_list("action", flat=True))
    assert actions == ["note", "flag", "reviewed", "unnote", "unflag"]


def export(caller: Client, **query: str) -> str:
    pieces: Any = caller.get(f"{API}/audit/export", query).streaming_content

    async def read() -> bytes:
        return b"".join([piece async for piece in pieces])

    return async_to_sync(read)().decode()


def test_the_audit_log_is_read_and_exported(administrator: Client, session: Session) -> None:
    for number in range(3):
        Session.objects.filter(pk=session.pk).update(title=str(number))
        export(administrator, format="csv")
    log = f"{API}/audit"
    first = administrator.get(log, {"limit": 2}).json()
    assert [one["number"] for one in first["items"]] == [3, 2]
    assert first["items"][0]["metadata"] == {"format": "csv"}
    rest = administrator.get(log, {"limit": 2, "cursor": first["next"]}).json()
    assert [one["number"] for one in rest["items"]] == [1]
    assert administrator.get(log, {"action": "decisions"}).json()["items"]
    assert administrator.get(log, {"action": "readings"}).json()["items"] == []
    assert administrator.get(log, {"action": "dancing"}).status_code == 400
    lines = export(administrator).splitlines()
    assert [json.loads(line)["number"] for line in lines] == [1, 2, 3, 4]
