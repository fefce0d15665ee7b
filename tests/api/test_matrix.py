"""Access to every operation of the API, for every role and with every scope missing.

The operations come from the API itself, so the tests fail if a new one has no row here.
A person who reads a session as a reviewer leaves exactly one entry in the audit log.
All other readers leave none.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import AsyncClient, Client
from django.utils import timezone

from conversations.accounts.tokens import (
    APPROVE,
    AUDIT,
    MANAGE,
    READ,
    REVIEW,
    SCOPES,
    WRITE,
)
from conversations.api.auth import scope_of
from conversations.api.fields import KEY_HEADER
from conversations.api.main import api
from conversations.archive.attachments import save_attachment
from conversations.archive.audit import readings_of
from conversations.domain.audit import API, READINGS
from conversations.models import AuditEntry, Run, Session, ToolCall, Workspace
from conversations.runtime.following import END_ID
from loomweb.env import BASE_DIR
from tests.archive.files import image_bytes
from tests.features import collect, merge
from tests.test_docs import section
from tests.web.conftest import AS_REVIEWER, ROLES, MakePerson, runtime_ends, say  # noqa: F401

from .conftest import token_of
from .rows import Operation, Row, administrators, owners, readers, reviewers, signed_in, writers

SESSION = "/sessions/{uuid}"
CALL = SESSION + "/calls/{call}"
UNKNOWN = "11111111-2222-4333-8444-555555555555"
RUN = SESSION + "/runs/{run}"
GARDEN = "/workspaces/{slug}"
KEY = GARDEN + "/keys/{key}"
MEMBER = GARDEN + "/members/{username}"
REVIEWED = "/review/sessions/{uuid}"
CONVERSATION = "/conversations/{uuid}"
BEAD = "/beads/{bead}/conversation"

TABLE: dict[Operation, Row] = {
    ("GET", "/models"): Row(gets=signed_in(200)),
    ("GET", "/workspaces"): Row(gets=signed_in(200)),
    ("GET", GARDEN): Row(gets=readers(200)),
    ("POST", "/workspaces"): Row(gets=signed_in(400), scope=MANAGE, body={"root": "/"}),
    ("GET", GARDEN + "/settings"): Row(gets=owners(200), scope=MANAGE),
    ("PATCH", GARDEN + "/settings"): Row(gets=owners(200), scope=MANAGE, body={"name": "Garden"}),
    ("GET", GARDEN + "/memory"): Row(gets=readers(200)),
    ("POST", GARDEN + "/memory"): Row(
        gets=writers(201), scope=WRITE, body={"text": "Use tabs", "scope": "person"}
    ),
    ("PATCH", GARDEN + "/memory/{entry}"): Row(  # no such entry
        gets=signed_in(404), scope=WRITE, body={"text": "Use tabs"}
    ),
    ("DELETE", GARDEN + "/memory/{entry}"): Row(gets=signed_in(404), scope=WRITE),
    ("GET", GARDEN + "/members"): Row(gets=owners(200), scope=MANAGE),
    ("PUT", MEMBER): Row(gets=owners(200), scope=MANAGE, body={"role": "owner"}),
    ("DELETE", MEMBER): Row(gets=owners(400), scope=MANAGE),  # the last owner
    ("GET", GARDEN + "/groups"): Row(gets=owners(200), scope=MANAGE),
    ("PUT", GARDEN + "/groups/{id}"): Row(gets=owners(404), scope=MANAGE, body={"role": "viewer"}),
    ("DELETE", GARDEN + "/groups/{id}"): Row(gets=owners(404), scope=MANAGE),  # no such group
    ("GET", GARDEN + "/invitations"): Row(gets=owners(200), scope=MANAGE),
    ("POST", GARDEN + "/invitations"): Row(gets=owners(201), scope=MANAGE, body={}),
    ("DELETE", GARDEN + "/invitations/{id}"): Row(gets=owners(404), scope=MANAGE),  # no such id
    ("GET", "/review/sessions"): Row(gets=reviewers(200), scope=REVIEW),
    ("GET", REVIEWED + "/remarks"): Row(gets=reviewers(200), scope=REVIEW, reads=False),
    ("POST", REVIEWED + "/notes"): Row(
        gets=reviewers(201), scope=REVIEW, body={"text": "Look"}, reads=False
    ),
    ("POST", REVIEWED + "/notes/{note}/withdraw"): Row(gets=reviewers(404), scope=REVIEW),
    ("POST", REVIEWED + "/flags"): Row(
        gets=reviewers(201), scope=REVIEW, body={"label": "other"}, reads=False
    ),
    ("POST", REVIEWED + "/flags/{flag}/resolve"): Row(gets=reviewers(404), scope=REVIEW),
    ("POST", REVIEWED + "/mark"): Row(gets=reviewers(409), scope=REVIEW, body={"through": 0}),
    ("GET", "/audit"): Row(gets=administrators(200), scope=AUDIT),
    ("GET", "/audit/export"): Row(gets=administrators(200), scope=AUDIT),
    ("GET", "/sessions"): Row(gets=signed_in(200)),
    ("GET", GARDEN + "/sessions"): Row(gets=readers(200)),
    ("POST", GARDEN + "/sessions"): Row(gets=writers(201), scope=WRITE, body={}),
    ("GET", KEY): Row(gets=readers(200), reads=True),
    ("PUT", KEY): Row(gets=writers(200), scope=WRITE),
    ("GET", "/conversations"): Row(gets=signed_in(200)),
    ("GET", CONVERSATION): Row(gets=readers(200)),
    ("GET", BEAD): Row(gets=readers(200) | {"reviewer": 404, "superuser": 404}, reads=False),
    ("PUT", BEAD): Row(gets=writers(200), scope=WRITE, body={"project_id": "garden"}),
    ("POST", KEY): Row(gets=writers(201), scope=WRITE),
    ("GET", SESSION): Row(gets=readers(200)),
    ("PATCH", SESSION): Row(gets=writers(200), scope=WRITE, body={"title": "Beans"}),
    ("GET", SESSION + "/state"): Row(gets=readers(200)),
    ("POST", SESSION + "/state/{item}"): Row(
        gets=writers(400), scope=WRITE, body={"action": "pin"}
    ),
    ("POST", SESSION + "/state/{item}/keep"): Row(
        gets=writers(400), scope=WRITE, body={"scope": "person"}
    ),
    ("GET", SESSION + "/changes"): Row(gets=readers(200)),
    ("POST", SESSION + "/changes/revert"): Row(gets=writers(400), scope=WRITE, body={}),
    ("POST", SESSION + "/summaries/{summary}/undo"): Row(gets=writers(404), scope=WRITE),
    ("POST", SESSION + "/turns/{number}/include"): Row(gets=writers(400), scope=WRITE),  # not aside
    ("GET", SESSION + "/turns"): Row(gets=readers(200)),
    ("GET", SESSION + "/turns/{number}"): Row(gets=readers(200)),
    ("GET", SESSION + "/events"): Row(gets=readers(200)),
    ("GET", SESSION + "/calls"): Row(gets=readers(200)),
    ("GET", CALL): Row(gets=readers(200)),
    ("POST", CALL + "/approve"): Row(gets=writers(409), scope=APPROVE, body={}),  # an ended call
    ("POST", CALL + "/deny"): Row(gets=writers(409), scope=APPROVE, body={}),
    ("POST", CALL + "/answer"): Row(
        gets=writers(409), scope=APPROVE, body={"question": UNKNOWN, "action": "decline"}
    ),
    ("POST", CALL + "/cancel"): Row(gets=writers(409), scope=WRITE),
    ("GET", SESSION + "/recall"): Row(gets=readers(200), query="?q=beans"),
    ("GET", "/search"): Row(gets=signed_in(200), query="?q=beans", reads=True),
    ("POST", SESSION + "/attachments"): Row(gets=writers(201), scope=WRITE, file="files"),
    ("POST", SESSION + "/attachments/resource"): Row(
        gets=writers(404), scope=WRITE, body={"resource": "none:a:b"}
    ),
    ("GET", SESSION + "/attachments/{attachment}"): Row(gets=readers(200)),
    ("DELETE", SESSION + "/attachments/{attachment}"): Row(gets=writers(409), scope=WRITE),
    ("GET", SESSION + "/runs"): Row(gets=readers(200)),
    ("GET", RUN): Row(gets=readers(200)),
    ("GET", RUN + "/stream"): Row(gets=readers(204), headers={"Last-Event-ID": END_ID}),
    ("POST", RUN + "/withdraw"): Row(gets=writers(409), scope=WRITE),
    ("POST", RUN + "/now"): Row(gets=writers(409), scope=WRITE, body={}),
    ("GET", SESSION + "/messages"): Row(gets=readers(200)),
    ("GET", SESSION + "/events/stream"): Row(gets=readers(200), query="?after=0"),
    ("POST", SESSION + "/messages"): Row(gets=writers(400), scope=WRITE, body={}),
    ("POST", SESSION + "/runs"): Row(
        gets=writers(400), scope=WRITE, body={"kind": "edit", "turn": 1}
    ),
    ("POST", SESSION + "/stop"): Row(gets=writers(204), scope=WRITE),
    ("POST", SESSION + "/turns/{number}/fork"): Row(gets=writers(201), scope=WRITE),
    ("GET", SESSION + "/branches"): Row(gets=readers(200)),
    ("POST", SESSION + "/branches/{number}/use"): Row(gets=writers(400), scope=WRITE),  # no branch
    ("POST", SESSION + "/rewind"): Row(gets=writers(200), scope=WRITE, body={"from_turn": 1}),
    ("POST", CONVERSATION + "/reset"): Row(gets=writers(200), scope=WRITE, body={}),
} | merge("OPERATIONS")
"""The expected answers of each operation. A stranger has no token (401). For a person who is
no member, the workspace and everything in it do not exist (404)."""


def list_operations() -> Iterator[tuple[Operation, str]]:
    """Yield every operation of the API with the scope that it requires."""
    for router in api._get_bound_routers():
        for path, view in router.path_operations.items():
            for operation in view.operations:
                whole = re.sub(r"{\w+:(\w+)}", r"{\1}", f"/{router.prefix}/{path}")
                place = re.sub("/+", "/", whole).rstrip("/")
                for method in operation.methods:
                    yield (method, place), scope_of(operation)


OPERATIONS = dict(list_operations())


def test_every_operation_has_a_row_and_asks_for_its_scope() -> None:
    assert {operation: row.scope for operation, row in TABLE.items()} == OPERATIONS


ALLOWED = {
    "/imports": "import",
    "/share-links": "share",
    "/changes/revert": "undo file changes",
    "/memory": "workspace memory",
    "/approve": "approve",
    "/deny": "deny",
    "/answer": "answer",
    "/members": "members",
    "/groups": "groups",
    "/invitations": "invitations",
    "/budgets": "budgets",
    "/holds": "holds",
}
"""Words for the actions at these addresses, as people read them when they choose scopes."""


def test_the_page_and_the_document_name_what_a_scope_allows() -> None:
    table = section((BASE_DIR / "docs/api.md").read_text(), "Authentication")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.M))
    assert list(rows) == list(SCOPES)
    for (_, address), scope in OPERATIONS.items():
        for part, word in ALLOWED.items():
            if part in address and scope in (WRITE, APPROVE, MANAGE):
                assert word in SCOPES[scope], address
                assert word in rows[scope], address
    others = {scope for (method, _), scope in OPERATIONS.items() if method == "GET"} - {READ}
    assert others <= set(re.findall(r"`(\w+)`", rows[READ]))


def reads(operation: Operation) -> bool:
    """Return whether the operation shows reviewers what was said in a session."""
    row = TABLE[operation]
    is_of_session = "{uuid}" in operation[1] if row.reads is None else row.reads
    return is_of_session and row.gets["reviewer"] < 300


@pytest.fixture
def addresses(transactional_db: None, workspace: Workspace, session: Session) -> dict[str, Any]:
    """Return a value for each path parameter."""
    Session.objects.filter(pk=session.pk).update(key="bead:ac-1")
    say(session, "Plant the beans", "In May")
    now = timezone.now()
    run = Run.objects.create(
        session=session, client_id="client-0000", state="completed", user_turn=1, created_at=now
    )
    call = ToolCall.objects.create(
        session=session,
        run=run,
        call_id="c",
        name="look",
        state="completed",
        turn_number=2,
        created_at=now,
    )
    attachment = save_attachment(
        session.pk, data=image_bytes(), name="bed.png", user_pk=None, turn=1
    )
    values = {
        "slug": workspace.slug,
        "uuid": session.uuid,
        "number": 1,
        "key": "bead:ac-1",
        "bead": "ac-1",
        "call": call.uuid,
        "run": run.uuid,
        "attachment": attachment.uuid,
        "username": session.owner.username,
        "id": 0,
        "note": session.uuid,
        "flag": session.uuid,
        "item": "nothing",
        "summary": session.uuid,
        "entry": session.uuid,
    }
    for make in collect("make_operation_values"):
        values |= make(session)
    return values


def address_of(operation: Operation, addresses: dict[str, Any]) -> str:
    return f"/api/v1{operation[1].format(**addresses)}{TABLE[operation].query}"


class Caller:
    """A program that sends the token, or none if ``token`` is None."""

    def __init__(self, token: str | None, **headers: str) -> None:
        self._headers = headers | ({"Authorization": f"Bearer {token}"} if token else {})

    async def call(self, operation: Operation, addresses: dict[str, Any]) -> Any:
        row = TABLE[operation]
        address = address_of(operation, addresses)
        headers = self._headers | row.headers
        client, method = AsyncClient(), operation[0]
        if row.file:
            data = {row.file: [SimpleUploadedFile("notes.txt", b"Plant the beans")]}
            return await client.post(address, data, headers=headers)
        request: Any = {"headers": headers}
        if row.body is not None:
            request |= {"data": row.body, "content_type": "application/json"}
        return await getattr(client, method.lower())(address, **request)


SAID = {
    "The token does not have the scope “write”.": "insufficient_scope",
    "The token does not have the scope “read”.": "insufficient_scope",
    "The CSRF token is missing or wrong.": "csrf",
}
"""Codes by error message, because errors of the Messages API have no code."""


def code_of(answer: Any) -> str:
    body = answer.json()
    return str(body["code"] if "code" in body else SAID[body["error"]["message"]])


async def caller_for(person: User | None, **token: Any) -> Caller:
    return Caller(await sync_to_async(token_of)(person, **token) if person else None)


async def read_beginning(response: Any) -> bytes:
    """Read until the response contains the words that were said: some streams never end."""
    read = b""
    async for piece in response:
        read += piece
        if b"beans" in read:
            break
    response.close()
    return read


def new_readings(session: Session, seen: list[int]) -> int:
    """Return how many readings of the session were recorded since the last call."""
    seen.append(readings_of(session.uuid).count())
    return seen[-1] - (seen[-2] if len(seen) > 1 else 0)


READERS = ("stranger", "viewer", "staff", "administrator")
"""Roles whose requests do not change the answers that other roles get. ``other`` has no right
that ``staff`` lacks, and gets the same answers everywhere."""


CHANGING = ("member", "owner", "reviewer", "superuser")


def test_every_role_or_an_equivalent_one_is_tested() -> None:
    assert {*READERS, *CHANGING, "other"} == set(ROLES)
    for operation, row in TABLE.items():
        assert row.gets["other"] == row.gets["staff"], operation


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends")
@pytest.mark.parametrize("roles", [READERS, *((role,) for role in CHANGING)], ids="-".join)
async def test_an_operation_answers_as_the_role_allows(
    roles: tuple[str, ...], addresses: dict[str, Any], session: Session, make_person: MakePerson
) -> None:
    seen = list[int]()
    for role in roles:
        person = await sync_to_async(make_person)(role)
        await check_answers(role, person, addresses, session, seen)


async def check_answers(
    role: str, person: User | None, addresses: dict[str, Any], session: Session, seen: list[int]
) -> None:
    caller = await caller_for(person)
    before = await AuditEntry.objects.acount()
    answers = {}
    for operation in TABLE:
        response = await caller.call(operation, addresses)
        if response.streaming:
            beginning = await read_beginning(response)
            assert b"beans" in beginning or "{" not in operation[1]
        new = await sync_to_async(new_readings)(session, seen)
        answers[operation] = (response.status_code, new)
    assert answers == {
        operation: (row.gets[role], int(role in AS_REVIEWER and reads(operation)))
        for operation, row in TABLE.items()
    }
    entries = AuditEntry.objects.filter(number__gt=before, action__in=READINGS)
    async for entry in entries.select_related("actor"):
        assert (entry.actor, entry.action) == (person, API)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends")
async def test_creating_twice_with_one_idempotency_key_creates_once(
    addresses: dict[str, Any], make_person: MakePerson
) -> None:
    tokens = dict[str, str]()
    for operation, row in TABLE.items():
        role = next((role for role, status in row.gets.items() if status == 201), None)
        if operation[0] != "POST" or role is None:
            continue
        if role not in tokens:
            person = await sync_to_async(make_person)(role)
            tokens[role] = await sync_to_async(token_of)(person)
        caller = Caller(tokens[role], **{KEY_HEADER: operation[1]})
        first = await caller.call(operation, addresses)
        again = await caller.call(operation, addresses)
        assert (first.status_code, again.status_code) == (201, 201), operation
        assert again.json() == first.json(), operation
        assert again.get("Location") == first.get("Location"), operation


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends")
async def test_a_token_without_the_scope_is_refused(
    addresses: dict[str, Any], user: User, session: Session
) -> None:
    callers = {
        scope: await caller_for(user, scopes=SCOPES.keys() - {scope})
        for scope in {row.scope for row in TABLE.values()}
    }
    for operation, row in TABLE.items():
        answer = await callers[row.scope].call(operation, addresses)
        assert (answer.status_code, code_of(answer)) == (403, "insufficient_scope"), operation
    assert await Session.objects.acount() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends")
async def test_reviewing_without_a_required_reason_is_refused(
    addresses: dict[str, Any],
    session: Session,
    make_person: MakePerson,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings.LOOM, "review_reason", "required")
    person = await sync_to_async(make_person)("reviewer")
    token = await sync_to_async(token_of)(person)
    shown = [operation for operation in TABLE if reads(operation)]
    readings = readings_of(session.uuid)
    for operation in shown:
        answer = await Caller(token).call(operation, addresses)
        assert (answer.status_code, answer.json()["code"]) == (403, "reason_needed"), operation
        assert "Loom-Reason" in answer.json()["detail"]
    assert not await readings.aexists()
    for operation in shown:
        caller = Caller(token, **{"Loom-Reason": "A complaint"})
        answer = await caller.call(operation, addresses)
        assert answer.status_code == TABLE[operation].gets["reviewer"], operation
    assert [entry.reason async for entry in readings] == ["A complaint"] * len(shown)


@pytest.mark.django_db(transaction=True)
def test_browser_requests_that_change_data_need_a_csrf_token(
    addresses: dict[str, Any], user: User
) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    for operation in TABLE:
        method, address = operation[0], address_of(operation, addresses)
        if method == "GET":
            continue
        answer = browser.generic(method, address, b"{}", content_type="application/json")
        assert (answer.status_code, code_of(answer)) == (403, "csrf"), operation


@pytest.mark.django_db
def test_an_inaccessible_session_looks_like_a_missing_one(
    session: Session, other_user: User
) -> None:
    headers = {"Authorization": f"Bearer {token_of(other_user)}"}
    none = "00000000-0000-4000-8000-000000000000"
    answers = [
        Client().get(f"/api/v1/sessions/{uuid}", headers=headers) for uuid in (session.uuid, none)
    ]
    assert answers[0].content == answers[1].content
