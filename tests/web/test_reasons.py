"""A reviewer's reason for reading: stated once, valid for hours, and stored in every entry."""

from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from conversations.archive.audit import readings_of
from conversations.archive.sessions import create_session
from conversations.models import AuditEntry, Session, Workspace
from conversations.review.reasons import MAX_REASONS

from .conftest import MakePerson, browser_of, say
from .sockets import open_socket

pytestmark = pytest.mark.django_db


@pytest.fixture
def reviewer(make_person: MakePerson) -> Client:
    return browser_of(make_person("reviewer"))


@pytest.fixture
def other_session(workspace: Workspace, user: User) -> Session:
    return create_session(workspace, owner=user)


def state(client: Client, reason: str, **fields: object) -> str:
    """Send the form, and return the address to which it redirects."""
    data = {"reason": reason} | {name: str(value) for name, value in fields.items()}
    response = client.post(reverse("review_reason"), data)
    assert response.status_code == 302
    return response["Location"]


def reasons(session: Session) -> list[str]:
    return [entry.reason for entry in reversed(readings_of(session.uuid))]


def test_reading_works_without_a_reason(reviewer: Client, session: Session) -> None:
    assert reviewer.get(f"/s/{session.uuid}/").status_code == 200
    assert reasons(session) == [""]


def test_reason_for_a_session_is_in_the_entries_of_that_session(
    reviewer: Client, session: Session, other_session: Session
) -> None:
    state(reviewer, "Report 7", session=session.uuid, covers="session")
    for found in (session, other_session, session):
        reviewer.get(f"/s/{found.uuid}/")
    assert reasons(session) == ["Report 7", "Report 7"]
    assert reasons(other_session) == [""]


def test_reason_for_the_sitting_covers_sessions_without_their_own(
    reviewer: Client, session: Session, other_session: Session
) -> None:
    state(reviewer, "A sample", session=session.uuid, covers="sitting")
    state(reviewer, "Report 7", session=other_session.uuid, covers="session")
    say(session, "Plant the beans")
    say(other_session, "Plant the beans")
    reviewer.get("/search/?q=beans")  # one page with hits in both sessions
    assert (reasons(session), reasons(other_session)) == (["A sample"], ["Report 7"])


def test_many_session_reasons_do_not_displace_that_for_the_sitting(
    reviewer: Client, session: Session
) -> None:
    state(reviewer, "A sample")
    for _ in range(MAX_REASONS):
        state(reviewer, "Report 7", session=uuid4(), covers="session")
    reviewer.get(f"/s/{session.uuid}/")
    assert reasons(session) == ["A sample"]


def test_reason_expires_after_the_configured_hours(
    reviewer: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "review_reason_hours", 0)
    state(reviewer, "A sample")
    reviewer.get(f"/s/{session.uuid}/")
    assert reasons(session) == [""]


def test_reason_can_be_removed(reviewer: Client, session: Session) -> None:
    state(reviewer, "A sample")
    state(reviewer, " ")
    reviewer.get(f"/s/{session.uuid}/")
    assert reasons(session) == [""]


def test_reason_is_not_stored_if_the_setting_is_off(
    reviewer: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "review_reason", "off")
    state(reviewer, "A sample")
    reviewer.get(f"/s/{session.uuid}/")
    assert reasons(session) == [""]


@pytest.fixture
def _required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "review_reason", "required")


@pytest.mark.usefixtures("_required")
def test_page_asks_for_a_required_reason_and_is_shown_after_it(
    reviewer: Client, session: Session
) -> None:
    say(session, "Plant the beans")
    address = f"/s/{session.uuid}/?all=1"
    asked = reviewer.get(address)
    assert asked.status_code == 403
    assert "Why are you reading this?" in asked.text
    assert f'value="{address}"' in asked.text
    assert "Plant the beans" not in asked.text
    assert not AuditEntry.objects.exists()
    back = state(reviewer, "Report 7", session=session.uuid, covers="session", next=address)
    assert back == address
    assert "Plant the beans" in reviewer.get(back).text
    assert reasons(session) == ["Report 7"]


@pytest.mark.usefixtures("_required")
def test_empty_reason_is_refused_if_a_reason_is_required(
    reviewer: Client, session: Session
) -> None:
    response = reviewer.post(reverse("review_reason"), {"reason": " "})
    assert response.status_code == 400
    assert "A reason is required." in response.text


@pytest.mark.usefixtures("_required")
def test_search_requires_a_reason_even_if_it_finds_nothing(
    reviewer: Client, session: Session
) -> None:
    say(session, "Plant the beans")
    asked = [
        (s, {"q": word}) for s in ("/search/", "/review/search/") for word in ("beans", "peas")
    ]
    for search, query in asked:
        answer = reviewer.get(search, query)
        assert answer.status_code == 403
        assert str(session.uuid) not in answer.text
    state(reviewer, "Report 7", session=session.uuid, covers="session")
    for search, query in asked:
        assert reviewer.get(search, query).status_code == 403, "it may be found elsewhere too"
    state(reviewer, "A sample")
    for search, query in (*asked, ("/search/", {}), ("/review/search/", {})):
        assert reviewer.get(search, query).status_code == 200


@pytest.mark.usefixtures("_required")
def test_reviewer_searches_their_own_workspaces_without_a_reason(
    session: Session, make_person: MakePerson
) -> None:
    say(session, "Plant the beans")
    member = make_person("member")
    assert member is not None
    member.user_permissions.add(Permission.objects.get(codename="review_transcripts"))
    page = browser_of(member).get("/search/", {"q": "beans", "workspace": "garden"})
    assert "Plant the" in page.text
    assert not AuditEntry.objects.exists()


@pytest.mark.usefixtures("_required")
def test_members_are_not_asked_for_a_reason(session: Session, make_person: MakePerson) -> None:
    assert browser_of(make_person("viewer")).get(f"/s/{session.uuid}/").status_code == 200


@pytest.mark.usefixtures("_required")
def test_staff_are_asked_for_a_reason_in_the_admin(
    session: Session, make_person: MakePerson
) -> None:
    staff = browser_of(make_person("staff"))
    change = reverse("admin:conversations_session_change", args=[session.pk])
    assert staff.get(change).status_code == 403
    assert not AuditEntry.objects.exists()
    state(staff, "Report 7", session=session.uuid, covers="session")
    assert staff.get(change).status_code == 200
    assert reasons(session) == ["Report 7"]


@pytest.mark.usefixtures("_required")
def test_form_contains_the_session_of_its_address(reviewer: Client, session: Session) -> None:
    asked = reviewer.get(reverse("review_reason"), {"session": str(session.uuid)})
    assert f'name="session" value="{session.uuid}"' in asked.text


def test_a_reason_that_is_too_long_is_refused(reviewer: Client) -> None:
    response = reviewer.post(reverse("review_reason"), {"reason": "x" * 501})
    assert response.status_code == 400
    assert "at most 500 characters" in response.text


def test_form_never_redirects_to_another_site(reviewer: Client) -> None:
    for elsewhere in ("https://evil.example/", "//evil.example/", "evil", ""):
        assert state(reviewer, "A sample", next=elsewhere) == "/", elsewhere


def test_form_shows_the_stated_reason(reviewer: Client, session: Session) -> None:
    state(reviewer, "Report 7", session=session.uuid, covers="session")
    page = reverse("review_reason")
    assert "Report 7" in reviewer.get(page, {"session": str(session.uuid)}).text
    assert "Report 7" not in reviewer.get(page, {"session": "bad"}).text


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends", "_required")
async def test_socket_requires_a_reason(
    transactional_db: None, session: Session, make_person_of: User
) -> None:
    socket = await open_socket(session, make_person_of)
    try:
        assert (await socket.next())["code"] == "reason_needed"
    finally:
        await socket.close()
    assert not await sync_to_async(readings_of(session.uuid).exists)()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends", "_required")
async def test_socket_uses_the_reason_stated_in_its_browser(
    transactional_db: None, session: Session, make_person_of: User
) -> None:
    cookie = await sync_to_async(cookie_with_reason)(make_person_of, "Report 7")
    socket = await open_socket(session, None, headers={"cookie": cookie})
    try:
        assert (await socket.next())["type"] == "hello"
    finally:
        await socket.close()
    assert await sync_to_async(reasons)(session) == ["Report 7"]


def cookie_with_reason(person: User, reason: str) -> str:
    client, name = browser_of(person), settings.SESSION_COOKIE_NAME
    state(client, reason)
    return f"{name}={client.cookies[name].value}"


@pytest.fixture
def make_person_of(transactional_db: None, make_person: MakePerson) -> User | None:
    return make_person("reviewer")
