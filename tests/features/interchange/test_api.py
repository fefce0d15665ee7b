"""Exporting and importing sessions through the API."""

import json
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils.translation import override

from conversations.api.json_format import refuse_constant
from conversations.features.interchange.export import session_lines
from conversations.features.interchange.models import Import
from conversations.features.interchange.service import MAX_OPEN_IMPORTS
from conversations.models import Session, Workspace
from loomweb.server import UPLOADS
from tests.api.conftest import caller_of, token_of
from tests.api.test_sessions import address_of
from tests.web.conftest import say
from tests.web.test_audit_pages import body_of

from .test_pages import CHATGPT, carry_out


@pytest.fixture
def owner(user: User) -> Client:
    return caller_of(user)


@pytest.fixture(autouse=True)
def _data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path)


def upload(client: Client, data: bytes = CHATGPT, **more: Any) -> Any:
    file = SimpleUploadedFile("what/ever.bin", data)
    keys = {name: more.pop(name) for name in ("headers",) if name in more}
    return client.post("/api/v1/workspaces/garden/imports", {"file": file} | more, **keys)


@pytest.mark.django_db
def test_an_upload_is_imported_and_reports_its_result(owner: Client, workspace: Workspace) -> None:
    answer = upload(owner, headers={"Idempotency-Key": "one"})
    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert (made["state"], made["format"], made["workspace"]) == ("waiting", "auto", "garden")
    assert upload(owner, headers={"Idempotency-Key": "one"}).json() == made
    assert Import.objects.count() == 1
    assert answer["Location"] == f"/api/v1/imports/{made['uuid']}"
    carry_out()
    done = owner.get(answer["Location"]).json()
    assert (done["state"], done["format"], done["error"]) == ("done", "chatgpt", "")
    assert done["counts"]["sessions_added"] == Session.objects.count() > 0
    assert [set(report) for report in done["reports"]] in ([], [{"place", "text"}])
    [listed] = owner.get("/api/v1/imports").json()["items"]
    assert listed == {name: value for name, value in done.items() if name != "reports"}


@pytest.mark.django_db
def test_the_api_returns_import_reports_in_english(owner: Client, workspace: Workspace) -> None:
    address = upload(owner, b'{"type":"session"}\n[]\n')["Location"]
    carry_out()
    assert '"said"' in Import.objects.get().report
    with override(settings.LANGUAGE_CODE):  # a request does not restore the language
        done = owner.get(address, headers={"Accept-Language": "de"}).json()
    assert done["reports"] == [{"place": "line 2", "text": "skipped: not an object but list"}]


@pytest.mark.django_db
def test_a_waiting_import_can_be_stopped(owner: Client, workspace: Workspace) -> None:
    address = upload(owner)["Location"]
    stopped = owner.post(f"{address}/stop").json()
    assert (stopped["state"], stopped["finished_at"] is None) == ("stopped", False)
    assert owner.post(f"{address}/stop").json() == stopped


@pytest.mark.django_db
def test_invalid_and_excess_uploads_are_refused(
    owner: Client, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert upload(owner, format="pdf").status_code == 422
    assert owner.post("/api/v1/workspaces/garden/imports").status_code == 422
    for _ in range(MAX_OPEN_IMPORTS):
        assert upload(owner).status_code == 201
    assert upload(owner).json()["code"] == "too_many_imports"
    monkeypatch.setattr(settings.LOOM, "max_import_bytes", 10)
    assert upload(owner).json()["code"] == "import_too_large"
    monkeypatch.setattr(settings.LOOM, "max_import_bytes", 0)
    assert upload(owner).status_code == owner.get("/api/v1/imports").status_code == 404


def test_the_server_accepts_large_uploads_from_the_page_and_the_api() -> None:
    for name, given in (("imports", []), ("api:workspace_imports", ["garden"])):
        assert UPLOADS.fullmatch(reverse(name, args=given))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("format", "beginning"), [("jsonl", '{"type":"session"'), ("markdown", "# ")]
)
async def test_a_session_is_exported(
    session: Session, user: User, format: str, beginning: str
) -> None:
    await sync_to_async(say)(session, "Plant the beans", "In May")
    token = await sync_to_async(token_of)(user)
    answer = await AsyncClient().get(
        address_of(session, f"/export?format={format}"),
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.status_code == 200
    text = b"".join([piece async for piece in answer]).decode()
    assert text.startswith(beginning)
    if format == "jsonl":
        assert text.splitlines() == await sync_to_async(lambda: list(session_lines(session)))()


@pytest.mark.django_db
def test_an_unknown_export_format_is_refused(session: Session, owner: Client) -> None:
    answer = owner.get(address_of(session, "/export?format=pdf"))
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_format")


NOT_FINITE = """\
{"type":"session","uuid":"7b0b3ac2-6a0e-4c35-9bb1-3f8e6a2b8f11","metadata":{"score":-Infinity}}
{"type":"turn","number":1,"role":"user","content":"NaN?","metadata":{"score":NaN}}
{"type":"turn","number":2,"role":"assistant","content":"","tool_calls":[\
{"id":"c","name":"t","input":{"at":[Infinity,1.5]}}]}
{"type":"event","seq":1,"event_type":"tool_call_started","turn":2,"payload":\
{"v":1,"call_id":"c","name":"t","arguments":{"at":[Infinity,1.5]}}}
"""


@pytest.mark.django_db
def test_numbers_that_json_cannot_express_become_null(owner: Client, workspace: Workspace) -> None:
    upload(owner, NOT_FINITE.encode())
    carry_out()
    session = Session.objects.get(uuid="7b0b3ac2-6a0e-4c35-9bb1-3f8e6a2b8f11")

    def read(ending: str, kind: str = "sessions") -> Any:
        answer = owner.get(f"/api/v1/{kind}/{session.uuid}{ending}")
        text = body_of(answer) if answer.streaming else answer.text
        return json.loads(text, parse_constant=refuse_constant)

    first, second = read("/turns")["items"]
    assert (first["content"], first["metadata"]["score"]) == ("NaN?", None)
    assert second["tool_calls"][0]["input"] == {"at": [None, 1.5]}
    [event] = read("/events")["items"]
    assert event["payload"]["arguments"] == {"at": [None, 1.5]}
    assert read("")["metadata"] == {"score": None}
    assert read("", "conversations")["messages"][1]["tool_calls"][0]["input"]["at"] == [None, 1.5]
    for format in ("anthropic", "openai"):
        assert read(f"/messages?format={format}")["items"]
        assert read(f"/export?format={format}")["messages"]
