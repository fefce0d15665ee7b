"""The access matrix: every URL, every page of the admin and every socket, for every role.

The URLs come from the URLconf, so the tests fail if a URL is added without a row here. A reviewer
who reads a session leaves exactly one entry in the audit log. Other roles leave none.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import admin
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.http import QueryDict
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, resolve, reverse
from django.utils import timezone

from conversations.archive.attachments import save_attachment
from conversations.archive.audit import readings_of
from conversations.archive.workspaces import add_member
from conversations.domain.audit import LIVE
from conversations.models import (
    AuditEntry,
    ModelCall,
    Run,
    Session,
    ToolCall,
    Turn,
    Workspace,
)
from conversations.web.consumers import _REQUESTS
from conversations.web.urls import websocket_urlpatterns
from tests.archive.files import image_bytes
from tests.features import collect, merge
from tests.web.conftest import without_tokens

from .conftest import AS_REVIEWER, ROLES, MakePerson, browser_of, permissions_of, say
from .rows import (
    REFUSED,
    Row,
    Statuses,
    administrators,
    everybody,
    for_roles,
    managers,
    members,
    readers,
    reviewers,
    signed_in,
    writers,
)
from .sockets import Socket, open_socket

TABLE: dict[str, Row] = {
    "home": Row(get=signed_in(200), post=signed_in(405)),
    "start": Row(get=signed_in(302), post=signed_in(405)),
    "workspace_create": Row(get=REFUSED, post=signed_in(400)),
    "workspace": Row(get=readers(200), post=signed_in(405)),
    "workspace_settings": Row(get=managers(200), post=managers(302), data={"name": "Garden"}),
    "workspace_programs": Row(get=managers(200), post=signed_in(405)),
    "workspace_members": Row(get=managers(200), post=signed_in(405)),
    "workspace_member_add": Row(
        get=REFUSED, post=managers(302), data={"username": "ann", "role": "owner"}
    ),
    "workspace_member_remove": Row(get=REFUSED, post=managers(302), data={"username": "ann"}),
    "workspace_memory": Row(get=readers(200), post=signed_in(405)),
    "workspace_memory_add": Row(
        get=REFUSED,
        post=writers(302),
        data={"kind": "rule", "text": "Use tabs", "scope": "person"},
    ),
    "workspace_memory_edit": Row(get=REFUSED, post=signed_in(404)),  # no such object
    "workspace_memory_remove": Row(get=REFUSED, post=signed_in(404)),
    "workspace_tools": Row(
        get=managers(200),
        post=managers(302),
        data={"tool_policy": "ask", "channel_recall": "session"},
    ),
    "workspace_tool_server_connect": Row(get=REFUSED, post=managers(404)),  # no such object
    "workspace_tool_server_sign_in": Row(get=REFUSED, post=managers(404)),
    "workspace_tool_server_sign_out": Row(get=REFUSED, post=managers(404)),
    "tool_server_callback": Row(get=signed_in(302), post=REFUSED),
    "workspace_permission_revoke": Row(get=REFUSED, post=managers(404)),  # no such object
    "workspace_feed": Row(get=readers(200) | {"stranger": 401}, post=REFUSED),
    "workspace_paths": Row(get=members(200), post=signed_in(405)),
    "workspace_files": Row(get=members(200), post=signed_in(405)),
    "workspace_file_preview": Row(get=members(200), post=signed_in(405), query="?path=bean.txt"),
    "workspace_file_download": Row(get=members(200), post=signed_in(405), query="?path=bean.txt"),
    "workspace_file_upload": Row(get=REFUSED, post=writers(400)),  # no file
    "workspace_sessions": Row(get=REFUSED, post=writers(302)),  # shows a message: none is chosen
    "session_create": Row(get=REFUSED, post=writers(302)),
    "session": Row(get=readers(200), post=signed_in(405)),
    "turn": Row(get=readers(200), post=signed_in(405)),
    "session_fork": Row(get=REFUSED, post=writers(302)),
    "turn_source": Row(get=readers(200), post=signed_in(405)),
    "tool_call_approve": Row(get=REFUSED, post=writers(302)),  # shows a message: it has ended
    "tool_call_deny": Row(get=REFUSED, post=writers(302), data={"reason": "No."}),
    "tool_call_cancel": Row(get=REFUSED, post=writers(302)),
    # This address only redirects to the changes, and their page is the reading.
    "tool_call_file": Row(get=readers(302), post=signed_in(405), reads=False),
    "tool_call_answer": Row(get=REFUSED, post=writers(302)),  # shows a message: it asks nothing
    "turn_output": Row(get=readers(200), post=signed_in(405)),
    "tool_call": Row(get=readers(200), post=signed_in(405)),
    "tool_call_output": Row(get=readers(200), post=signed_in(405)),
    "session_state": Row(get=readers(200), post=signed_in(405)),
    "session_state_edit": Row(get=REFUSED, post=writers(400)),  # no action
    "session_state_keep": Row(get=REFUSED, post=writers(400)),  # no such item
    "turn_call": Row(get=readers(200), post=signed_in(405)),
    "model_call": Row(get=readers(200), post=signed_in(405)),
    "model_call_text": Row(get=readers(200), post=signed_in(405)),
    "model_call_request": Row(get=readers(200), post=signed_in(405)),
    "session_changes": Row(get=readers(200), post=signed_in(405)),
    "session_outline": Row(get=readers(200), post=signed_in(405)),
    "session_branches": Row(get=readers(200), post=signed_in(405)),
    "session_branch": Row(get=readers(200), post=signed_in(405)),
    "session_branch_use": Row(get=REFUSED, post=writers(302)),  # shows a message
    "session_versions": Row(get=readers(200), post=signed_in(405)),
    "session_changes_revert": Row(get=REFUSED, post=writers(400)),  # no changes to undo
    "session_window": Row(get=readers(200), post=signed_in(405)),
    "session_find": Row(get=readers(200), post=signed_in(405), query="?q=beans"),
    "session_attachments": Row(get=readers(200), post=writers(400)),  # no file
    "attachment": Row(get=readers(200), post=signed_in(405)),
    "attachment_thumb": Row(get=readers(200), post=signed_in(405)),
    "attachment_remove": Row(get=REFUSED, post=writers(409)),  # the file is already sent
    "session_commands": Row(
        get=readers(200), post=writers(200), data={"text": "/rename Beans"}, reads=False
    ),
    "session_readers": Row(get=managers(200), post=signed_in(405), reads=False),
    "session_send": Row(get=REFUSED, post=writers(400)),  # nothing to send
    "session_rename": Row(get=REFUSED, post=writers(302), data={"title": "Beans"}),
    "session_pin": Row(get=REFUSED, post=writers(302)),
    "session_archive": Row(get=REFUSED, post=writers(302)),
    "session_compact": Row(get=REFUSED, post=writers(302), data={"client_id": "bad"}),
    "session_undo_compaction": Row(get=REFUSED, post=writers(404)),  # no such object
    "session_include": Row(get=REFUSED, post=writers(302)),
    "session_model": Row(get=REFUSED, post=writers(302), data={"model": "demo"}),
    "review": Row(get=reviewers(200), post=signed_in(405)),
    "review_next": Row(get=reviewers(302), post=signed_in(405)),
    "review_sample": Row(get=reviewers(200), post=signed_in(405)),
    "review_search": Row(get=reviewers(200), post=signed_in(405), query="?q=beans", reads=True),
    "review_session": Row(get=reviewers(200), post=signed_in(405)),
    "review_turn": Row(get=reviewers(200), post=signed_in(405)),
    "review_remark": Row(get=REFUSED, post=reviewers(302), data={"text": "Look at this"}),
    "review_mark": Row(get=REFUSED, post=reviewers(302), data={"through": "1"}),
    "review_note_withdraw": Row(get=REFUSED, post=reviewers(404)),  # no such object
    "review_flag_resolve": Row(get=REFUSED, post=reviewers(404)),  # no such object
    "palette": Row(get=signed_in(200), post=signed_in(405)),
    "help": Row(get=signed_in(200), post=signed_in(405)),
    "review_reason": Row(get=signed_in(200), post=signed_in(302), data={"reason": "A complaint"}),
    "audit": Row(get=administrators(200), post=signed_in(405)),
    "audit_export": Row(get=administrators(200), post=REFUSED),
    "search": Row(get=signed_in(200), post=signed_in(405), query="?q=beans", reads=True),
    "sign_in": Row(
        get=for_roles(stranger=200, others=302), post=for_roles(stranger=200, others=302)
    ),
    "sign_in_link": Row(get=for_roles(stranger=410, others=302), post=REFUSED),
    "sign_out": Row(get=REFUSED, post=everybody(302)),
    "password_change": Row(get=signed_in(200), post=signed_in(200)),
    "password_change_done": Row(get=signed_in(200), post=signed_in(200)),
    "workspace_group_add": Row(get=REFUSED, post=managers(302)),  # shows a message: no group
    "workspace_group_remove": Row(get=REFUSED, post=managers(404)),  # no such object
    "workspace_invite": Row(get=REFUSED, post=managers(200), data={"role": "member"}),
    "workspace_invitation_revoke": Row(get=REFUSED, post=managers(404)),  # no such object
    "providers": Row(get=administrators(200), post=REFUSED),
    "providers_refresh": Row(get=REFUSED, post=administrators(503)),  # no runtime was started
    "providers_test": Row(get=REFUSED, post=administrators(503)),
    "providers_find": Row(get=REFUSED, post=administrators(503)),
    "providers_add": Row(get=REFUSED, post=administrators(503)),
    "people": Row(get=administrators(200), post=REFUSED),
    "people_invite": Row(get=REFUSED, post=administrators(200)),
    "people_invitation_revoke": Row(get=REFUSED, post=administrators(404)),  # no such object
    "person": Row(get=administrators(404), post=REFUSED),  # no such object
    "person_roles": Row(get=REFUSED, post=administrators(404)),
    "person_close": Row(get=REFUSED, post=administrators(404)),
    "person_open": Row(get=REFUSED, post=administrators(404)),
    "person_owner": Row(get=REFUSED, post=administrators(404)),
    "person_sign_out": Row(get=REFUSED, post=administrators(404)),
    "person_rank": Row(get=REFUSED, post=administrators(404)),
    "person_unlock": Row(get=REFUSED, post=administrators(404)),
    "person_reset_password": Row(get=REFUSED, post=administrators(404)),
    "groups": Row(get=administrators(200), post=REFUSED),
    "group_create": Row(get=REFUSED, post=administrators(400)),
    "group": Row(get=administrators(404), post=REFUSED),  # no such object
    "group_add": Row(get=REFUSED, post=administrators(404)),
    "group_take_out": Row(get=REFUSED, post=administrators(404)),
    "group_remove": Row(get=REFUSED, post=administrators(404)),
    "join": Row(get=everybody(410), post=everybody(410)),  # no such invitation
    "account": Row(get=signed_in(200), post=signed_in(405)),
    "account_preferences": Row(get=signed_in(200), post=signed_in(400)),  # nothing chosen
    "account_devices": Row(get=signed_in(200), post=signed_in(405)),
    "account_data": Row(get=signed_in(200), post=signed_in(405)),
    "tokens": Row(get=signed_in(200), post=signed_in(400)),  # nothing chosen
    "token_revoke": Row(get=REFUSED, post=signed_in(404)),  # no such object
    "account_export": Row(get=signed_in(200), post=REFUSED),
    "account_choose": Row(get=REFUSED, post=signed_in(204), data={"theme": "dark"}),
    "device_sign_out": Row(get=REFUSED, post=signed_in(404)),  # no such object
    "devices_sign_out": Row(get=REFUSED, post=signed_in(302), data={"others": "1"}),
    "diagram": Row(get=everybody(200), post=REFUSED),
    "healthz": Row(get=everybody(200), post=REFUSED),
    "readyz": Row(get=everybody(200), post=REFUSED),
    "metrics": Row(get=everybody(200), post=REFUSED),
} | merge("PAGES")
"""Name of a URL → the statuses of its answers. A stranger is redirected to sign in (302). A person
who is not a member is told that the workspace and its contents do not exist (404)."""


def walk(patterns: list[Any], prefix: str = "", above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the qualified name and the route of every URL in the URLconf."""
    for pattern in patterns:
        route = above + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            inner = f"{prefix}{pattern.namespace}:" if pattern.namespace else prefix
            yield from walk(pattern.url_patterns, inner, route)
        elif isinstance(pattern, URLPattern):
            yield f"{prefix}{pattern.name}", route


URLS = {
    name: route
    for name, route in walk(get_resolver().url_patterns)
    if not name.startswith(("api:", "api_"))  # the matrix of the API is in tests/api
}
ADMIN_URLS = {name: route for name, route in URLS.items() if name.startswith("admin:")}


OF_THE_WORKSPACE = [
    name for name in TABLE if "<uuid:uuid>" in URLS[name] or "<slug:slug>" in URLS[name]
]


def test_every_url_has_a_row() -> None:
    assert set(URLS) - set(ADMIN_URLS) == set(TABLE)


def reads(name: str) -> bool:
    """Return whether a GET shows the content of a session."""
    row = TABLE[name]
    is_of_session = "<uuid:uuid>" in URLS[name] if row.reads is None else row.reads
    return is_of_session and row.get["reviewer"] == 200


@pytest.fixture
def addresses(
    workspace: Workspace, session: Session, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The address of every URL. The workspace, session, turn and calls in them exist."""
    say(session, "Plant the beans", "In May")
    (Path(workspace.root) / "bean.txt").write_text("A bean")
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
    attachment = save_attachment(
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
        "entry": session.uuid,
        "token": "unknown",
        "name": "unknown",
        "pk": 2**31 - 1,
        "user_pk": 999,
        "note": session.uuid,
        "flag": session.uuid,
    }
    for make in collect("make_page_values"):
        values |= make(session, monkeypatch)
    return {
        name: reverse(
            name, kwargs={key: value for key, value in values.items() if f":{key}>" in URLS[name]}
        )
        + row.query
        for name, row in TABLE.items()
    }


PLAIN: dict[str, str] = {}
HTMX = {"HX-Request": "true"}

type Answers = dict[str, tuple[int, int]]
"""Name of a URL → the status, and the number of readings of the session that were recorded."""


class Readings:
    """A counter of the readings of a session that were recorded since the last count."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seen = 0

    def new(self) -> int:
        count = readings_of(self._session.uuid).count()
        new, self._seen = count - self._seen, count
        return new


ASKED = tuple(role for role in ROLES if role != "other")
"""All roles but ``other``, which has no right that ``staff`` lacks and gets the same answers."""

BY_HTMX = ("viewer", "member", "staff", "superuser")
"""Roles that ask for a part of a page instead of the whole page, because the same rules apply and
it takes half as long. The owner, the reviewer and the administrator ask for whole pages, and a
superuser has all rights of the last two. The stranger asks for both."""

ASKS_ALL = ("stranger", "owner")
"""Roles that try every method at every address. All other roles leave out the addresses that do not
know the method. Roles that are not in ``CHECKED`` also leave out the addresses that answer all
signed-in people alike, unless a GET is a reading."""

CHECKED = ("stranger", "owner", "reviewer", "administrator", "superuser")
"""Roles whose pages have their markup checked. Together they see every page."""

GERMAN = {"Accept-Language": "de"}
IN_GERMAN = ("owner", "administrator")
"""Roles that ask for pages in German. The language changes nothing else."""

TITLE = "A\x1b[31m\x85\u202eB\u200b"


def tried(role: str, method: str) -> list[str]:
    """Return the names of the URLs that the role asks for by this method."""

    def depends_on_who_asks(name: str) -> bool:
        statuses: Statuses = getattr(TABLE[name], method)
        answers = {statuses[one] for one in ROLES if one != "stranger"}
        is_looked_at = role in CHECKED and answers != {405}
        return len(answers) > 1 or is_looked_at or (method == "get" and reads(name))

    return [name for name in TABLE if role in ASKS_ALL or depends_on_who_asks(name)]


def test_other_and_staff_get_the_same_answers() -> None:
    for name, row in TABLE.items():
        for statuses in (row.get, row.post):
            assert statuses["other"] == statuses["staff"], name


_ID = re.compile(r"""<[a-z][^<>]*?\sid=["']?([^"'\s>]+)""")
_DATETIME = re.compile(r"""\sdatetime=["']([^"']*)""")
_VALID_DATETIME = re.compile(r"\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,3})?(Z|[+-]\d\d:\d\d)")
"""HTML's format of a global date and time. A fraction has at most three digits."""


def check_markup(response: Any, name: str) -> None:
    """Assert that the page has unique ids, valid times and no control characters."""
    if response.status_code in (302, 405) or "html" not in response.get("Content-Type", ""):
        return
    ids = _ID.findall(response.text)
    assert [one for one in set(ids) if ids.count(one) > 1] == [], name
    moments = _DATETIME.findall(response.text)
    assert [one for one in moments if not _VALID_DATETIME.fullmatch(one)] == [], name
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u200b\ufdd0-\ufdef]", response.text), (
        name
    )


@pytest.mark.parametrize("role", ASKED)
def test_a_page_answers_as_the_role_allows(
    role: str, addresses: dict[str, str], session: Session, make_person: MakePerson
) -> None:
    """Every page has valid markup, even if a title holds control characters."""
    Session.objects.filter(pk=session.pk).update(title=TITLE)
    person = make_person(role)
    client, readings = browser_of(person), Readings(session)
    stocked = set(AuditEntry.objects.values_list("pk", flat=True))

    def get(name: str, headers: dict[str, str]) -> tuple[int, int]:
        response = client.get(addresses[name], headers=headers)
        if role in CHECKED:
            check_markup(response, name)
        return response.status_code, readings.new()

    def expected(name: str) -> tuple[int, int]:
        status = TABLE[name].get[role]
        return status, int(role in AS_REVIEWER and reads(name))

    headers = HTMX if role in BY_HTMX else GERMAN if role in IN_GERMAN else PLAIN
    answers: Answers = {name: get(name, headers) for name in tried(role, "get")}
    assert answers == {name: expected(name) for name in answers}
    if role == "stranger":  # a part of a page never redirects to the sign-in page
        parts: Answers = {name: get(name, HTMX) for name in answers}
        assert parts == {
            name: (204 if code == 302 else code, n) for name, (code, n) in answers.items()
        }
    assert {entry.actor for entry in AuditEntry.objects.exclude(pk__in=stocked)} <= {person}
    assert numbers_of_readers(session) == [entry.number for entry in readings_of(session.uuid)]


def numbers_of_readers(session: Session) -> list[int]:
    """Return the numbers of the entries that the owner sees on all pages of the readers."""
    owner, address, found = browser_of(session.owner), None, []
    while address != "":
        page = owner.get(address or reverse("session_readers", args=[session.uuid])).text
        found += [int(number) for number in re.findall(r'id="entry-(\d+)"', page)]
        address = "".join(re.findall(r'href="([^"]+)">Older</a>', page))
    return found


def test_missing_required_reason_hides_sessions_and_records_nothing(
    addresses: dict[str, str], make_person: MakePerson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "review_reason", "required")
    client = browser_of(make_person("reviewer"))
    stocked = set(AuditEntry.objects.values_list("pk", flat=True))
    shown = {name: address for name, address in addresses.items() if reads(name)}
    for name, address in shown.items():
        response = client.get(address)
        assert (response.status_code, "Plant the beans" in response.text) == (403, False), name
    assert set(AuditEntry.objects.values_list("pk", flat=True)) == stocked
    client.post(reverse("review_reason"), {"reason": "A complaint"})
    statuses = {
        name: client.get(address, headers=HTMX).status_code for name, address in shown.items()
    }
    assert statuses == dict.fromkeys(shown, 200)
    entered = AuditEntry.objects.exclude(pk__in=stocked)
    assert [entry.reason for entry in entered] == ["A complaint"] * len(shown)


@pytest.mark.parametrize("role", ASKED)
def test_a_form_is_accepted_as_the_role_allows(
    role: str, addresses: dict[str, str], session: Session, make_person: MakePerson
) -> None:
    """A form that is shown again with its errors has valid markup. No POST is a reading."""
    Session.objects.filter(pk=session.pk).update(title=TITLE)
    browser = Browser(make_person(role))

    def post(name: str, headers: dict[str, str]) -> int:
        response = browser.client.post(addresses[name], TABLE[name].data, headers=headers)
        if role in CHECKED and response.status_code == 400:
            check_markup(response, name)
        return response.status_code

    names = tried(role, "post")
    for headers in (PLAIN, HTMX) if role == "stranger" else (HTMX if role in BY_HTMX else PLAIN,):
        answers = {name: post(name, headers) for name in names}
        expected = {name: TABLE[name].post[role] for name in answers}
        if role == "stranger" and headers is HTMX:  # a message instead of the redirect
            led = [name for name, status in expected.items() if status == 302]
            expected |= {name: 401 for name in led if name != "sign_out"}
        assert answers == expected
    assert not readings_of(session.uuid)


class Browser:
    """A browser that signs in again after a form has ended the sign-in."""

    def __init__(self, person: User | None) -> None:
        self._person = person
        self._client = browser_of(person)

    @property
    def client(self) -> Client:
        if self._person and SESSION_KEY not in self._client.session:
            self._client = browser_of(self._person)
        return self._client


def test_stranger_is_redirected_to_sign_in_and_then_to_a_page(
    addresses: dict[str, str], user: User
) -> None:
    """The page after the sign-in can be opened, or redirects to a page that can be opened."""
    user.user_permissions.set(permissions_of("reviewer"))
    client, stranger = browser_of(user), Client()
    shown = {addresses[name] for name, row in TABLE.items() if 200 in row.get.values()}

    @cache
    def is_a_page(address: str) -> bool:
        return address in shown or client.get(address, follow=True).status_code == 200

    def sent_to(name: str) -> tuple[str, bool]:
        method = "POST" if 302 in TABLE[name].post.values() else "GET"
        response = stranger.generic(method, addresses[name])
        sent = urlsplit(response["Location"])
        return sent.path, is_a_page(QueryDict(sent.query)["next"])

    pages = set(OF_THE_WORKSPACE) - {"workspace_feed"}  # feed readers cannot fill in a form
    answers = {name: sent_to(name) for name in pages}
    assert answers == dict.fromkeys(pages, (reverse("sign_in"), True))


def test_a_form_without_a_csrf_token_is_refused(addresses: dict[str, str], user: User) -> None:
    """The middleware covers every view that is not exempt, and no view with a form is exempt."""
    exempt = [
        name
        for name, row in TABLE.items()
        if row.post != REFUSED
        and getattr(resolve(urlsplit(addresses[name]).path).func, "csrf_exempt", False)
    ]
    assert exempt == []
    client = Client(enforce_csrf_checks=True)
    assert client.post(addresses["sign_in"]).status_code == 403
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    for name in ("session_send", "account_choose", "workspace_settings"):
        response = client.post(addresses[name], TABLE[name].data)
        assert response.status_code == 403, name
        assert "style=" not in response.text, name
        assert "<style" not in response.text, name


def test_session_of_another_person_looks_like_a_missing_session(
    addresses: dict[str, str], other_user: User, session: Session
) -> None:
    client = browser_of(other_user)
    theirs = client.get(addresses["session"])
    none = client.get(reverse("session", args=["00000000-0000-4000-8000-000000000000"]))
    assert without_tokens(theirs.text) == without_tokens(none.text)
    assert theirs.headers.keys() == none.headers.keys()


OURS = {
    f"admin:{model._meta.app_label}_{model._meta.model_name}": model
    for model in admin.site._registry
    if model._meta.app_label == "conversations"
}
NOT_VISITED = {"admin:login", "admin:logout", "admin:None"}
"""Two pages that are open to everybody, and the pattern that catches all other addresses."""


def admin_addresses() -> dict[str, str]:
    """Return the addresses of the admin's pages, each about an existing row if there is one."""
    found = {}
    for name in ADMIN_URLS.keys() - NOT_VISITED:
        model = OURS.get(name.rpartition("_")[0])
        row = model._default_manager.first() if model else None
        kwargs = {"app_label": "auth", "content_type_id": 1, "url": "x", "id": 1}
        kwargs["object_id"] = row.pk if row else 1
        taken = re.findall(r"<(?:\w+:)?(\w+)>", ADMIN_URLS[name])
        found[name] = reverse(name, kwargs={key: kwargs[key] for key in taken})
    return found


def test_admin_records_of_ones_own_workspace_leave_no_audit_entry(
    session: Session, make_person: MakePerson, workspace: Workspace
) -> None:
    staff = make_person("staff")
    assert staff
    add_member(workspace, user_pk=staff.pk, role="viewer")
    change = reverse("admin:conversations_session_change", args=[session.pk])
    assert browser_of(staff).get(change).status_code == 200
    assert not readings_of(session.uuid)


def test_the_admin_is_closed_to_everybody_but_staff(
    workspace: Workspace, user: User, make_person: MakePerson
) -> None:
    """A stranger tries every address. The other roles, and POST requests, try the addresses of one
    table only, because the same check applies to every address.
    """
    addresses = admin_addresses()
    some = {name: address for name, address in addresses.items() if "_turn_" in name}
    assert len(some) == 5
    for role in set(ROLES) - {"staff", "superuser"}:
        client = browser_of(make_person(role))
        for name, address in (addresses if role == "stranger" else some).items():
            for method in ("get", "post") if name in some else ("get",):
                response = getattr(client, method)(address)
                assert response.status_code == 302, (role, name, method)
                assert response["Location"].startswith(reverse("admin:login")), (role, name)
    assert not AuditEntry.objects.exists()


SOCKET = {
    "stranger": 4401,
    "other": 4404,
    "viewer": "watches",
    "member": "writes",
    "owner": "writes",
    "reviewer": "watches",
    "administrator": 4404,
    "staff": 4404,
    "superuser": "watches",
}


@dataclass(frozen=True, slots=True)
class FrameRow:
    """A type of frame.

    ``more`` are its fields apart from the id. ``writes`` says whether only those who may write in
    the session may send it.
    """

    writes: bool
    more: dict[str, Any] = field(default_factory=dict)


UNKNOWN = "11111111-2222-4333-8444-555555555555"

FRAMES = {
    "send": FrameRow(True, {"text": "Hello"}),
    "edit": FrameRow(True, {"turn": 1, "text": "Hello again"}),
    "regenerate": FrameRow(True, {"turn": 2}),
    "retry": FrameRow(True),
    "continue": FrameRow(True),
    "compact": FrameRow(True),
    "stop": FrameRow(True),
    "withdraw": FrameRow(True, {"run": UNKNOWN}),
    "now": FrameRow(True, {"run": UNKNOWN}),
    "approve": FrameRow(True, {"call": UNKNOWN}),
    "deny": FrameRow(True, {"call": UNKNOWN, "reason": "No."}),
    "cancel": FrameRow(True, {"call": UNKNOWN}),
    "answer": FrameRow(True, {"call": UNKNOWN, "question": UNKNOWN, "action": "decline"}),
    "sync": FrameRow(False),
    "trimmed": FrameRow(False, {"rows": 1}),
    "ping": FrameRow(False),
    "typing": FrameRow(False),
}


def test_every_frame_has_a_row() -> None:
    assert set(FRAMES) == set(_REQUESTS)


async def refusal_of(socket: Socket, frame: dict[str, Any]) -> str:
    """Return the code of the error that answers the frame, or "" if there is no error.

    Frames are handled one after the other, so the answer to a later ping ends the wait.
    """
    await socket.send(frame)
    await socket.send({"type": "ping"})
    answer = await socket.until("error", "pong")
    if answer["type"] == "pong":
        return ""
    await socket.until("pong")
    return str(answer["code"])


def test_every_socket_is_covered() -> None:
    """The only routes are the socket of a session and the answer at every other address."""
    routes = [str(route.pattern) for route in websocket_urlpatterns]
    assert routes == ["ws/s/<uuid:uuid>/", ""]


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
        may_write = SOCKET[role] == "writes"
        for name, row in FRAMES.items():
            refusal = await refusal_of(
                socket, {"type": name, "client_id": "client-0001"} | row.more
            )
            assert (refusal == "not_permitted") == (row.writes and not may_write), name
        assert await Turn.objects.filter(session=session).aexists() == may_write
    finally:
        await socket.close()
        entries = await sync_to_async(list)(readings_of(session.uuid))
        expected = [(LIVE, role)] if role in AS_REVIEWER else []
        assert [(entry.action, entry.actor_name) for entry in entries] == expected


@pytest.fixture
def make_person_before(
    request: pytest.FixtureRequest, transactional_db: None, make_person: MakePerson
) -> User | None:
    return make_person(request.node.callspec.params["role"])
