"""Exporting a session by its address and by the composer's ``/export`` command."""

import json
import re
from typing import Any

import pytest
from django.test import AsyncClient, Client

from conversations.models import Session
from conversations.runtime.current import current_runtime
from conversations.web.commands import COMMANDS
from tests.web.conftest import AS_REVIEWER, MakePerson, browser_of, say
from tests.web.test_audit_pages import read_for_a_reason, require_entry
from tests.web.test_commands import of, order

pytestmark = pytest.mark.django_db


def test_the_command_list_names_the_export_formats(owner: Client, session: Session) -> None:
    [command] = [one for one in COMMANDS if one.name == "export"]
    described = owner.get(of(session, "commands/")).json()["commands"][-1]
    assert [one["value"] for one in described["choices"]] == list(command.choices)
    assert list(command.choices) == ["markdown", "jsonl", "anthropic", "openai"]


def test_a_viewer_may_export(session: Session, make_person: MakePerson) -> None:
    answer = order(browser_of(make_person("viewer")), session, "/export")
    assert answer.json()["url"].endswith("format=markdown")


@pytest.mark.parametrize("role", sorted(AS_REVIEWER))
def test_the_owner_sees_that_a_reviewer_exported_the_session(
    role: str, owner: Client, session: Session, make_person: MakePerson
) -> None:
    reviewer = browser_of(make_person(role))
    page = read_for_a_reason(reviewer, owner, session, of(session, "export/"))
    assert f"<b>{role}</b> exported the session" in page


def test_an_export_is_refused_if_its_audit_entry_cannot_be_written(
    session: Session, make_person: MakePerson
) -> None:
    say(session, "Hello", "Plant the beans")
    require_entry(browser_of(make_person("superuser")), of(session, "export/"))


def test_the_export_command_accepts_a_format(owner: Client, session: Session) -> None:
    url = of(session, "export/")
    assert order(owner, session, "/export").json()["url"] == f"{url}?format=markdown"
    assert order(owner, session, "/export JSONL").json()["url"] == f"{url}?format=jsonl"
    assert order(owner, session, "/export pdf").json()["code"] == "bad_format"


async def read_export(browser: AsyncClient, session: Session, format: str) -> tuple[Any, str]:
    response = await browser.get(of(session, f"export/?format={format}"))
    assert response.streaming
    return response, b"".join([piece async for piece in response]).decode()  # type: ignore[attr-defined]


@pytest.mark.django_db(transaction=True)
async def test_a_session_is_downloaded_whole(async_browser: AsyncClient, session: Session) -> None:
    await Session.objects.filter(pk=session.pk).aupdate(title='../Über "Bohnen"\r\n<x>')
    for text in ("Plant the beans", "And the peas?" * 9000):
        await async_browser.post(of(session, "send/"), {"text": text})
        await (await current_runtime()).wait_idle(session.pk)
    response, text = await read_export(async_browser, session, "markdown")
    named = response["Content-Disposition"]
    assert named.startswith("attachment; filename")
    assert re.search(r"utf-8''%C3%BCber-bohnen-x-[0-9a-f]{8}\.md$", named)
    assert response["Content-Type"] == "text/markdown; charset=utf-8"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert "Plant the beans" in text
    assert text.count("And the peas?") >= 9000
    response, text = await read_export(async_browser, session, "jsonl")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["type"] for line in lines].count("turn") == 4
    assert re.search(r"\.jsonl", response["Content-Disposition"])
    refused = await async_browser.get(of(session, "export/?format=pdf"))
    assert refused.status_code == 400
    head = await async_browser.head(of(session, "export/"))
    assert head.status_code == 200
