"""Who may do what: every URL and the socket, for every role.

The URLs come from the URLconf: one that is added without a row here fails.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from conversations.archive.accounts import create_sign_in_link
from conversations.archive.attachments import keep_attachment
from conversations.archive.messages import accept_message
from conversations.models import ModelCall, Run, Session, ToolCall, Workspace
from tests.archive.files import image_bytes

from .conftest import ROLES, MakePerson, browser_of, say
from .sockets import open_socket

pytestmark = pytest.mark.django_db

type Statuses = dict[str, int]


def for_roles(*, stranger: int, others: int, **named: int) -> Statuses:
    return {role: named.get(role, stranger if role == "stranger" else others) for role in ROLES}


def everybody(status: int) -> Statuses:
    return for_roles(stranger=status, others=status)


def signed_in(status: int) -> Statuses:
    return for_roles(stranger=302, others=status)


def readers(status: int) -> Statuses:
    return for_roles(stranger=302, others=status, other=404, staff=404)


def writers(status: int) -> Statuses:
    return readers(403) | {"member": status, "owner": status}


def managers(status: int) -> Statuses:
    return readers(403) | {"owner": status}


REFUSED = everybody(405)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What each role gets; ``data`` is what is posted."""

    get: Statuses
    post: Statuses
    data: dict[str, str] = field(default_factory=dict)


TABLE: dict[str, Row] = {
    "home": Row(get=signed_in(200), post=signed_in(405)),
    "start": Row(get=signed_in(302), post=signed_in(405)),
    "workspace_create": Row(get=REFUSED, post=signed_in(400)),
    "workspace": Row(get=readers(200), post=signed_in(405)),
    "workspace_settings": Row(get=managers(200), post=managers(302), data={"name": "Garden"}),
    "workspace_member_add": Row(
        get=REFUSED, post=managers(302), data={"username": "ann", "role": "owner"}
    ),
    "workspace_member_remove": Row(get=REFUSED, post=managers(302), data={"username": "ann"}),
    "workspace_tools": Row(get=REFUSED, post=managers(302), data={"tool_policy": "ask"}),
    "workspace_tool_server_connect": Row(get=REFUSED, post=managers(404)),  # there is none
    "workspace_permission_revoke": Row(get=REFUSED, post=managers(404)),  # there is none
    "workspace_files": Row(get=readers(200), post=signed_in(405)),
    "session_create": Row(get=REFUSED, post=writers(302)),
    "session": Row(get=readers(200), post=signed_in(405)),
    "turn": Row(get=readers(200), post=signed_in(405)),
    "turn_source": Row(get=readers(200), post=signed_in(405)),
    "tool_call_approve": Row(get=REFUSED, post=writers(302)),  # it has ended: a message
    "tool_call_deny": Row(get=REFUSED, post=writers(302), data={"reason": "No."}),
    "tool_call_cancel": Row(get=REFUSED, post=writers(302)),
    "turn_output": Row(get=readers(200), post=signed_in(405)),
    "tool_call": Row(get=readers(200), post=signed_in(405)),
    "tool_call_output": Row(get=readers(200), post=signed_in(405)),
    "session_state": Row(get=readers(200), post=signed_in(405)),
    "session_state_edit": Row(get=REFUSED, post=writers(400)),  # no action
    "turn_call": Row(get=readers(200), post=signed_in(405)),
    "model_call": Row(get=readers(200), post=signed_in(405)),
    "model_call_text": Row(get=readers(200), post=signed_in(405)),
    "model_call_request": Row(get=readers(200), post=signed_in(405)),
    "session_changes": Row(get=readers(200), post=signed_in(405)),
    "session_changes_revert": Row(get=REFUSED, post=writers(400)),  # there is nothing
    "session_window": Row(get=readers(200), post=signed_in(405)),
    "session_find": Row(get=readers(200), post=signed_in(405)),
    "session_attachments": Row(get=readers(200), post=writers(400)),  # no file
    "attachment": Row(get=readers(200), post=signed_in(405)),
    "attachment_thumb": Row(get=readers(200), post=signed_in(405)),
    "attachment_remove": Row(get=REFUSED, post=writers(409)),  # it is sent
    "session_commands": Row(get=readers(200), post=writers(200), data={"text": "/rename Beans"}),
    "session_export": Row(get=readers(200), post=REFUSED),
    "session_send": Row(get=REFUSED, post=writers(400)),  # nothing to send
    "session_rename": Row(get=REFUSED, post=writers(302), data={"title": "Beans"}),
    "session_pin": Row(get=REFUSED, post=writers(302)),
    "session_archive": Row(get=REFUSED, post=writers(302)),
    "session_compact": Row(get=REFUSED, post=writers(302), data={"client_id": "bad"}),
    "session_undo_compaction": Row(get=REFUSED, post=writers(404)),  # there is none
    "session_model": Row(get=REFUSED, post=writers(302), data={"model": "claude-sonnet-5-5"}),
    "palette": Row(get=signed_in(200), post=signed_in(405)),
    "help": Row(get=signed_in(200), post=signed_in(405)),
    "search": Row(get=signed_in(200), post=signed_in(405)),
    "sign_in": Row(
        get=for_roles(stranger=200, others=302), post=for_roles(stranger=200, others=302)
    ),
    "sign_in_link": Row(get=for_roles(stranger=410, others=302), post=REFUSED),
    "sign_out": Row(get=REFUSED, post=everybody(302)),
    "password_change": Row(get=signed_in(200), post=signed_in(200)),
    "password_change_done": Row(get=signed_in(200), post=signed_in(200)),
    "healthz": Row(get=everybody(200), post=REFUSED),
    "readyz": Row(get=everybody(200), post=REFUSED),
    "metrics": Row(get=everybody(200), post=REFUSED),
}
"""Name of a URL → what it answers. A stranger is sent to sign in (302); to a person
who is no member the workspace and what is in it do not exist (404)."""

OF_THE_WORKSPACE = [
    name for name, row in TABLE.items() if 404 in (*row.get.values(), *row.post.values())
]


def walk(patterns: list[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """All (qualified name, route) of the URLconf."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            inner = f"{prefix}{pattern.namespace}:" if pattern.namespace else prefix
            yield from walk(pattern.url_patterns, inner)
        elif isinstance(pattern, URLPattern):
            yield f"{prefix}{pattern.name}", str(pattern.pattern)


URLS = dict(walk(get_resolver().url_patterns))
ADMIN_URLS = {name: route for name, route in URLS.items() if name.startswith("admin:")}


def test_every_url_has_a_row() -> None:
    assert set(URLS) - set(ADMIN_URLS) == set(TABLE)


@pytest.fixture
def addresses(workspace: Workspace, session: Session) -> dict[str, str]:
    """The address of every URL, with things that exist in its place."""
    say(session, "Plant the beans", "In May")
    run = Run.objects.create(
        session=session, client_id="client-0000", state="completed", created_at=timezone.now()
    )
    ModelCall.objects.create(
        session=session,
        run=run,
        ordinal=0,
        model="m",
        manifest="{}",
        request_digest="",
        turn_number=2,
        created_at=timezone.now(),
    )
    call = ToolCall.objects.create(
        session=session,
        run=run,
        call_id="c",
        name="look",
        state="completed",
        turn_number=2,
        created_at=timezone.now(),
    )
    attachment = keep_attachment(
        session.pk, data=image_bytes(), name="bed.png", user_pk=None, turn=1
    )
    values = {
        "attachment": attachment.uuid,
        "run": run.uuid,
        "call": call.uuid,
        "ordinal": 0,
        "slug": workspace.slug,
        "uuid": session.uuid,
        "number": 1,
        "compaction": session.uuid,
        "token": "unknown",
        "name": "unknown",
        "pk": 999,
    }
    return {
        name: reverse(
            name, kwargs={key: value for key, value in values.items() if f":{key}>" in URLS[name]}
        )
        for name in TABLE
    }


@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true"}], ids=["plain", "htmx"])
@pytest.mark.parametrize("role", ROLES)
def test_a_page_answers_as_the_role_allows(
    role: str, headers: dict[str, str], addresses: dict[str, str], make_person: MakePerson
) -> None:
    person = make_person(role)
    got = {
        name: browser_of(person).get(address, headers=headers).status_code
        for name, address in addresses.items()
    }
    expected = {name: row.get[role] for name, row in TABLE.items()}
    if role == "stranger" and headers:  # a part of a page never becomes the sign-in page
        expected = {name: 204 if code == 302 else code for name, code in expected.items()}
    assert got == expected


@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true"}], ids=["plain", "htmx"])
@pytest.mark.parametrize("role", ROLES)
def test_a_form_is_taken_as_the_role_allows(
    role: str, headers: dict[str, str], addresses: dict[str, str], make_person: MakePerson
) -> None:
    person = make_person(role)
    got = {
        name: browser_of(person).post(address, TABLE[name].data, headers=headers).status_code
        for name, address in addresses.items()
    }
    assert got == {name: row.post[role] for name, row in TABLE.items()}


@pytest.mark.parametrize("name", OF_THE_WORKSPACE)
def test_a_stranger_is_sent_to_sign_in_and_back_to_a_page(
    name: str, addresses: dict[str, str], user: User
) -> None:
    row = TABLE[name]
    response = Client().generic("POST" if 302 in row.post.values() else "GET", addresses[name])
    page, _, back = response["Location"].partition("?next=")
    assert page == reverse("sign_in")
    assert browser_of(user).get(back).status_code == 200


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.post != REFUSED])
def test_a_form_without_a_token_is_refused(
    name: str, addresses: dict[str, str], user: User, session: Session
) -> None:
    client = Client(enforce_csrf_checks=True)
    if name != "sign_in":
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    response = client.post(addresses[name], TABLE[name].data)
    assert response.status_code == 403
    assert "style=" not in response.text
    assert "<style" not in response.text


def test_a_thing_of_somebody_else_looks_like_one_that_is_not_there(
    addresses: dict[str, str], other_user: User, session: Session
) -> None:
    client = browser_of(other_user)
    theirs = client.get(addresses["session"])
    none = client.get(reverse("session", args=["00000000-0000-4000-8000-000000000000"]))
    assert without_tokens(theirs.text) == without_tokens(none.text)
    assert theirs.headers.keys() == none.headers.keys()


def without_tokens(html: str) -> str:
    return re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", html)


@pytest.fixture
def stocked(session: Session, user: User) -> None:
    """Something of every kind that the admin may show."""
    say(session, "Plant the beans", "In May")
    accept_message(
        session, client_id="client-0001", text="And peas?", user_pk=user.pk, max_queued=5
    )
    create_sign_in_link(user)


def admin_pages() -> list[tuple[str, type[Any]]]:
    """Every model of the admin with the stem of its URLs' names."""
    return [
        (f"admin:{model._meta.app_label}_{model._meta.model_name}", model)
        for model in admin.site._registry
    ]


@pytest.mark.usefixtures("stocked")
@pytest.mark.parametrize("role", ROLES)
def test_the_admin_shows_what_the_permission_covers(role: str, make_person: MakePerson) -> None:
    person = make_person(role)
    client = browser_of(person)
    for stem, model in admin_pages():
        status = 302
        if person is not None and person.is_staff:
            may_see = person.is_superuser or (role == "staff_viewing" and model is Session)
            status = 200 if may_see else 403
        assert client.get(reverse(f"{stem}_changelist")).status_code == status, (stem, role)
        for found in model._default_manager.all()[:1]:
            change = reverse(f"{stem}_change", args=[found.pk])
            assert client.get(change).status_code == status, (stem, role)


@pytest.mark.parametrize("role", ["stranger", "other", "viewer", "member", "owner"])
def test_the_admin_is_closed_to_everybody_but_staff(role: str, make_person: MakePerson) -> None:
    client = browser_of(make_person(role))
    fill = {"object_id": "1", "app_label": "auth", "content_type_id": "1", "url": "x", "id": "1"}
    for name, route in ADMIN_URLS.items():
        if name in ("admin:login", "admin:logout"):
            continue
        keys = {
            key: value for key, value in fill.items() if f":{key}>" in route or f"<{key}>" in route
        }
        if name == "admin:None":
            continue
        address = reverse(name, kwargs=keys)
        for method in ("get", "post"):
            response = getattr(client, method)(address)
            assert response.status_code in (302, 403, 404), (name, method)
            if response.status_code == 302:
                assert response["Location"].startswith(reverse("admin:login")), (name, method)


SOCKET = {
    "stranger": 4401,
    "other": 4404,
    "viewer": "watches",
    "member": "writes",
    "owner": "writes",
    "staff_viewing": "watches",
    "staff": 4404,
    "superuser": "watches",
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends")
@pytest.mark.parametrize("role", ROLES)
async def test_the_socket_does_what_the_role_allows(
    role: str, session: Session, make_person_before: User | None
) -> None:
    socket = await open_socket(session, make_person_before)
    try:
        if isinstance(SOCKET[role], int):
            assert await socket.close_code() == SOCKET[role]
            return
        assert (await socket.next())["type"] == "hello"
        await socket.send({"type": "send", "client_id": "client-0001", "text": "Hello"})
        answer = await socket.until("ack", "error")
        expected = "ack" if SOCKET[role] == "writes" else "error"
        assert answer["type"] == expected
        if expected == "error":
            assert (answer["code"], answer["client_id"]) == ("not_permitted", "client-0001")
    finally:
        await socket.close()


@pytest.fixture
def make_person_before(
    request: pytest.FixtureRequest, transactional_db: None, make_person: MakePerson
) -> User | None:
    return make_person(request.node.callspec.params["role"])
