"""The audit log for administrators, and each session's page of its readers."""

import csv
import io
import json
import re
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from conversations.archive.audit import AuditEvent, AuditOrigin, readings_of, record, session_event
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member, create_first_superuser
from conversations.domain.audit import AUDIT_EXPORT, NOTE, TRANSCRIPT
from conversations.models import AuditEntry, Session, Turn, Workspace
from conversations.review.audit_pages import PAGE_ENTRIES

from .conftest import AS_REVIEWER, MakePerson, browser_of, say

pytestmark = pytest.mark.django_db


@pytest.fixture
def administrator(make_person: MakePerson) -> Client:
    return browser_of(make_person("administrator"))


@pytest.fixture
def rita(db: None) -> User:
    return User.objects.create_user("rita")


def read(session: Session, user: User, *, times: int = 1, reason: str = "") -> None:
    origin = AuditOrigin(user=user, place=f"/s/{session.uuid}/", reason=reason)
    record(origin, *[session_event(session, TRANSCRIPT)] * times)


def body_of(response: Any) -> str:
    async def pieces() -> list[bytes]:
        return [piece async for piece in response.streaming_content]

    return b"".join(async_to_sync(pieces)()).decode() if response.streaming else response.text


def numbers(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="entry-(\d+)"', page)]


def readers_page(client: Client, session: Session, **query: object) -> str:
    response = client.get(reverse("session_readers", args=[session.uuid]), query)
    assert response.status_code == 200
    return response.text


# --- readers of a session ---


@pytest.mark.parametrize("role", sorted(AS_REVIEWER))
def test_owner_sees_every_page_that_a_reviewer_opened(
    role: str, owner: Client, session: Session, make_person: MakePerson
) -> None:
    reviewer = browser_of(make_person(role))
    of = f"/s/{session.uuid}/"
    read_for_a_reason(reviewer, owner, session, of, f"{of}state/", "/search/?q=beans")


def read_for_a_reason(reviewer: Client, owner: Client, session: Session, *addresses: str) -> str:
    """Open the addresses as a reviewer with a reason, and return the owner's page of readers.

    The page must have one entry for each address.
    """
    say(session, "Plant the beans")
    reviewer.post(reverse("review_reason"), {"reason": "Report <7>"})
    for address in addresses:
        assert reviewer.get(address).status_code == 200
    page = readers_page(owner, session)
    assert numbers(page) == [entry.number for entry in readings_of(session.uuid)]
    assert len(numbers(page)) == len(addresses)
    assert "Report &lt;7&gt;" in page
    return page


@pytest.mark.parametrize(
    "address",
    [
        "/s/{}/",
        "/s/{}/?before=seq:3",
        "/s/{}/t/2/source/",
        "/s/{}/find/?q=beans",
        "/review/s/{}/",
        "/review/search/?q=beans",
        "/search/?q=beans",
        "/admin/conversations/turn/{turn}/change/",
    ],
)
def test_transcript_is_hidden_if_its_reading_cannot_be_recorded(
    address: str, session: Session, make_person: MakePerson
) -> None:
    say(session, "Hello", "Plant the beans")
    turn = Turn.objects.get(number=2)
    require_entry(browser_of(make_person("superuser")), address.format(session.uuid, turn=turn.pk))


def require_entry(reader: Client, address: str) -> None:
    """Assert that "Plant the beans" is not shown if the reading cannot be recorded."""
    reader.raise_request_exception = False
    assert "Plant" in body_of(reader.get(address)), "it is there"
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE conversations_audithead RENAME TO elsewhere")
    refused = reader.get(address)
    assert refused.status_code in (500, 503)
    assert "Plant" not in body_of(refused)


def test_session_without_readings_says_so_on_its_readers_page(
    owner: Client, session: Session
) -> None:
    assert "No one else has read this session." in readers_page(owner, session)


def test_readers_page_omits_decisions_and_other_sessions(
    owner: Client, session: Session, workspace: Workspace, user: User, rita: User
) -> None:
    read(create_session(workspace, owner=user), rita)
    record(AuditOrigin(user=rita), session_event(session, NOTE))
    assert numbers(readers_page(owner, session)) == []


def test_readers_page_hides_addresses_and_user_agents(
    owner: Client, session: Session, rita: User
) -> None:
    record(
        AuditOrigin(user=rita, address="192.0.2.7", agent="Lynx"),
        session_event(session, TRANSCRIPT),
    )
    page = readers_page(owner, session)
    assert "rita" in page
    assert "192.0.2.7" not in page
    assert "Lynx" not in page


def test_readers_page_is_paginated_with_a_constant_query_count(
    owner: Client, session: Session, rita: User
) -> None:
    read(session, rita, times=PAGE_ENTRIES)
    with CaptureQueriesContext(connection) as few:
        first = readers_page(owner, session)
    assert ">Older</a>" not in first
    read(session, rita, times=PAGE_ENTRIES)
    with CaptureQueriesContext(connection) as many:
        first = readers_page(owner, session)
    assert len(many) == len(few)
    older = readers_page(owner, session, before=numbers(first)[-1])
    assert numbers(first) + numbers(older) == list(range(2 * PAGE_ENTRIES, 0, -1))
    bad = owner.get(reverse("session_readers", args=[session.uuid]), {"before": "x"})
    assert bad.status_code == 400


def test_member_sees_the_readers_of_their_own_sessions_only(
    workspace: Workspace, session: Session, other_user: User
) -> None:
    add_member(workspace, user_pk=other_user.pk, role="member")
    theirs = create_session(workspace, owner=other_user)
    member = browser_of(other_user)
    address = reverse("session_readers", args=[theirs.uuid])
    assert address in member.get(f"/s/{theirs.uuid}/").text
    assert member.get(address).status_code == 200
    address = reverse("session_readers", args=[session.uuid])
    assert address not in member.get(f"/s/{session.uuid}/").text
    assert member.get(address).status_code == 403


# --- the log ---


def log_page(client: Client, **query: object) -> str:
    response = client.get(reverse("audit"), query)
    assert response.status_code == 200
    return response.text


def test_audit_log_is_paginated_with_the_newest_entries_first(
    administrator: Client, session: Session, rita: User
) -> None:
    read(session, rita, times=PAGE_ENTRIES)
    with CaptureQueriesContext(connection) as few:
        log_page(administrator)
    read(session, rita, times=PAGE_ENTRIES)
    with CaptureQueriesContext(connection) as many:
        first = log_page(administrator)
    assert len(many) == len(few)
    [cursor] = re.findall(r'\?cursor=(\d+)"[^>]*>\s*Older', first)
    older = log_page(administrator, cursor=cursor)
    assert numbers(first) + numbers(older) == list(range(2 * PAGE_ENTRIES, 0, -1))
    assert ">Older</a>" not in older


def test_audit_log_shows_all_fields_of_an_entry_escaped(
    administrator: Client, session: Session, rita: User
) -> None:
    origin = AuditOrigin(
        user=rita, place="/search/?q=<b>", address="192.0.2.7", agent="<Lynx>", reason="<why>"
    )
    record(origin, session_event(session, NOTE, turn=7))
    page = log_page(administrator)
    for text in ("<b>rita</b> wrote a note", "/search/?q=&lt;b&gt;", "192.0.2.7", "&lt;Lynx&gt;"):
        assert text in page
    for text in (str(session.uuid), "garden", "&lt;why&gt;", "{&quot;turn&quot;:7}"):
        assert text in page


def test_invalid_filters_show_an_error(administrator: Client) -> None:
    for query in ({"person": "nobody"}, {"session": "x"}, {"after": "x"}, {"workspace": "none"}):
        response = administrator.get(reverse("audit"), query)
        assert response.status_code == 400
        assert 'class="error"' in response.text
    assert administrator.get(reverse("audit"), {"cursor": "x"}).status_code == 400


def test_links_keep_the_filters(administrator: Client, session: Session, rita: User) -> None:
    read(session, rita, times=PAGE_ENTRIES + 1)
    page = log_page(administrator, person="rita", session=session.uuid)
    assert page.count(f"person=rita&amp;session={session.uuid}") == 3  # two exports and "Older"


# --- export ---


def exported(client: Client, **query: object) -> str:
    response = client.get(reverse("audit_export"), query)
    assert response.status_code == 200
    assert response["Content-Disposition"].startswith("attachment")

    async def body() -> str:
        pieces = [piece async for piece in response]  # type: ignore[attr-defined]
        return b"".join(pieces).decode()

    return async_to_sync(body)()


def test_export_is_recorded_and_ends_with_its_own_entry(
    administrator: Client, session: Session, rita: User
) -> None:
    read(session, rita, times=3, reason="Report 7")
    lines = [json.loads(line) for line in exported(administrator, format="jsonl").splitlines()]
    assert [line["number"] for line in lines] == [1, 2, 3, 4]
    assert [line["reason"] for line in lines] == ["Report 7"] * 3 + [""]
    assert lines[3]["action"] == AUDIT_EXPORT
    assert lines[3]["metadata"] == {"format": "jsonl"}
    assert AuditEntry.objects.count() == 4


def test_entry_of_a_filtered_export_records_the_filters(
    administrator: Client, session: Session, rita: User
) -> None:
    read(session, rita)
    text = exported(administrator, format="jsonl", person="rita", action="readings")
    assert [json.loads(line)["number"] for line in text.splitlines()] == [1]
    entry = AuditEntry.objects.get(action=AUDIT_EXPORT)
    assert json.loads(entry.metadata) == {
        "format": "jsonl",
        "person": "rita",
        "action": "readings",
    }


def test_csv_export_neutralises_formulas(
    administrator: Client, session: Session, rita: User
) -> None:
    record(
        AuditOrigin(user=rita, agent='=HYPERLINK("x")', reason="-1, a"),
        session_event(session, TRANSCRIPT),
    )
    rows = list(csv.DictReader(io.StringIO(exported(administrator, format="csv"))))
    assert (rows[0]["agent"], rows[0]["reason"]) == ('\'=HYPERLINK("x")', "'-1, a")
    assert rows[0]["session"] == str(session.uuid)


@pytest.mark.parametrize("query", [{"format": "xml"}, {"person": "nobody"}])
def test_refused_export_is_not_recorded(administrator: Client, query: dict[str, str]) -> None:
    assert administrator.get(reverse("audit_export"), query).status_code == 400
    assert administrator.head(reverse("audit_export")).status_code == 200
    assert not AuditEntry.objects.exists()


def test_a_purged_session_stays_in_the_log(administrator: Client, rita: User) -> None:
    gone = uuid4()
    record(AuditOrigin(user=rita), AuditEvent(action=TRANSCRIPT, session=gone, workspace="garden"))
    assert numbers(log_page(administrator, session=gone)) == [1]


def test_actors_without_an_account_are_named_in_the_page_language(administrator: Client) -> None:
    create_first_superuser("first")
    record(AuditOrigin(), AuditEvent(action=NOTE))
    record(AuditOrigin(name="Session"), AuditEvent(action=NOTE))
    page = administrator.get(reverse("audit"), headers={"Accept-Language": "de"}).text
    assert "<b>der erste Start</b>" in page
    assert "<b>der Server</b>" in page
    assert "<b>Session</b>" in page
