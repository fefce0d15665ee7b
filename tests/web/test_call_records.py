"""The page of a tool call's record, and the pages of its output."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from conversations.archive.append import NewEvent, append
from conversations.archive.sessions import create_session
from conversations.domain.events import AssistantText, Payload, ToolCallCompleted
from conversations.domain.tool_calls import ApprovalRequest
from conversations.domain.turns import NewTurn
from conversations.models import FileChange, Run, Session, ToolCall, Workspace

from .conftest import say

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}
MEGABYTE = 1_000_000
DIFF = "--- a/beds.py\n+++ b/beds.py\n@@ -1 +1 @@\n-plant = 1\n+plant = 2\n"

type Make = Callable[..., ToolCall]


@pytest.fixture
def make_call(session: Session, user: User) -> Make:
    """Return a function that creates a completed call with its result in a turn.

    ``fields`` are fields of the call, and ``row`` are fields of the event about its completion.
    """

    def make(*, output: str = "fine", row: dict[str, Any] | None = None, **fields: Any) -> ToolCall:
        run, _ = Run.objects.get_or_create(
            session=session,
            client_id="client-0000",
            defaults={"state": "completed", "created_at": timezone.now()},
        )
        values = {"name": "shell_execute", "state": "completed", "ok": True, "call_id": "c"}
        [turn] = say(session, "Plant them")
        call = ToolCall.objects.create(
            session=session,
            run=run,
            turn_number=turn,
            created_at=timezone.now(),
            **values | {"call_id": f"c{turn}"} | fields,
        )
        payload = ToolCallCompleted(
            call_id=call.call_id, name=call.name, ok=call.ok, call=str(call.uuid), **row or {}
        )
        [call.result_turn] = append(
            session.pk,
            session_uuid=session.uuid,
            turns=[NewTurn(role="tool", content=output, tool_name=call.name)],
            events=[NewEvent(payload=payload, new=0)],
        ).turns
        call.save()
        return call

    return make


def address(call: ToolCall, name: str = "tool_call") -> str:
    return reverse(name, args=[call.session.uuid, call.uuid])


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_record_shows_the_call_its_decision_and_its_result(
    owner: Client, user: User, session: Session, make_call: Make
) -> None:
    asked = ApprovalRequest(
        call="", call_id="c", name="edit_file", kind_label="changes of files", diff=DIFF
    )
    now = timezone.now()
    call = make_call(
        name="edit_file",
        arguments=json.dumps({"path": "beds.py", "old_text": "<b>1"}),
        asked=json.dumps(asked.as_data()),
        asked_at=now,
        decision="always",
        decided_by=user,
        decided_at=now + timedelta(seconds=3),
        started_at=now + timedelta(seconds=4),
        duration_ms=120,
        output="Edited beds.py.",
        row={"diff": DIFF, "exit_code": 3},
    )
    FileChange.objects.create(session=session, call=call, path="beds.py", created_at=now)
    html = owner.get(address(call)).text
    text = text_of(html)
    for words in (
        "Edit beds.py",
        "Done , exit 3",
        "Always allowed by ann: changes of files",
        "Duration 120 ms",
        "turn 1",
        "Changes +1 −1",
        "1 changed",
        "old_text: &lt;b&gt;1",
        "Edited beds.py.",
    ):
        assert words in text, words
    for what in ("Called", "Asked", "Decided", "Started"):
        assert f"<dt>{what}</dt>" in html
    assert f'href="/s/{session.uuid}/changes/?call={call.uuid}"' in html
    part = owner.get(address(call), headers=HTMX).text
    assert part.lstrip().startswith('<section class="panel-part"')


def test_waiting_call_shows_the_diff_that_it_would_make(
    owner: Client, session: Session, make_call: Make
) -> None:
    asked = ApprovalRequest(call="", call_id="c", name="edit_file", diff=DIFF)
    call = make_call(name="edit_file", state="waiting_approval", ok=None)
    ToolCall.objects.filter(pk=call.pk).update(asked=json.dumps(asked.as_data()), result_turn=None)
    text = text_of(owner.get(address(call)).text)
    assert "Waiting" in text
    assert "Proposed changes +1 −1" in text
    assert "Output" not in text
    assert "No output." in text_of(owner.get(address(call, "tool_call_output")).text)


@pytest.mark.parametrize("damaged", ["", "{", "[]", '"x"', "null"])
def test_damaged_record_causes_no_error(owner: Client, make_call: Make, damaged: str) -> None:
    call = make_call()
    ToolCall.objects.filter(pk=call.pk).update(asked=damaged, arguments=damaged)
    assert owner.get(address(call)).status_code == 200


def test_output_is_paginated_without_gaps(owner: Client, make_call: Make) -> None:
    output = "".join(f"\x1b[3{n % 8}mline {n}\x1b[0m\n" for n in range(1500))
    call = make_call(output=output)
    url: str | None = address(call, "tool_call_output")
    found: list[str] = []
    while url is not None:
        html = owner.get(url, headers=HTMX).text
        [code] = re.findall(r"<code>(.*?)</code>", html, re.DOTALL)
        assert code.count("\n") <= 200
        found += re.findall(r"line \d+", code)
        more = re.search(r'<a href="([^"]+)" data-action="more">Show more', html)
        url = more[1] if more else None
    assert found == [f"line {n}" for n in range(1500)]


@pytest.mark.parametrize(
    ("start", "status"), [("5", 200), ("99999999", 200), ("-1", 400), ("x", 400)]
)
def test_start_of_an_output_page_is_validated(
    owner: Client, make_call: Make, start: str, status: int
) -> None:
    call = make_call()
    assert owner.get(address(call, "tool_call_output"), {"from": start}).status_code == status


def test_result_without_a_call_record_is_shown_by_its_turn(owner: Client, session: Session) -> None:
    content = json.dumps({"success": False, "output": "", "error": "broken <b>"})
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(role="tool", content=content, tool_name="look")],
    )
    html = owner.get(reverse("turn_output", args=[session.uuid, 1])).text
    assert "<code>broken &lt;b&gt;</code>" in html
    assert owner.get(reverse("turn_output", args=[session.uuid, 9])).status_code == 404


def test_a_call_of_another_session_is_not_found(
    owner: Client, user: User, workspace: Workspace, make_call: Make
) -> None:
    call = make_call()
    other = create_session(workspace, owner=user)
    for name in ("tool_call", "tool_call_output"):
        assert owner.get(reverse(name, args=[other.uuid, call.uuid])).status_code == 404


def test_page_of_tool_rows_costs_about_as_much_as_a_page_of_texts(
    owner: Client, user: User, workspace: Workspace
) -> None:
    """The length of the output does not matter, because a row holds only its beginning."""

    def opened(row: Payload, *, content: str) -> tuple[int, int]:
        session = create_session(workspace, owner=user)
        append(
            session.pk,
            session_uuid=session.uuid,
            turns=[NewTurn(role="tool", content=content)] * 50,
            events=[NewEvent(payload=row, new=place) for place in range(50)],
        )
        with CaptureQueriesContext(connection) as queries:
            response = owner.get(reverse("session", args=[session.uuid]))
        assert response.text.count("data-seq=") == 50
        return len(queries), len(response.content)

    output = "".join(f"{number} {'word ' * 12}\n" for number in range(16_000))[:MEGABYTE]
    call = ToolCallCompleted(
        call_id="a",
        name="shell_execute",
        ok=True,
        output=output[:20_000],
        output_chars=len(output),
        arguments={"command": "make"},
    )
    text = AssistantText(text="\n\n".join(["A paragraph of an answer. " * 12] * 5))
    with_tools, with_texts = opened(call, content=output), opened(text, content="x")
    assert with_tools[0] == with_texts[0]
    assert with_tools[1] < 1.5 * with_texts[1]
