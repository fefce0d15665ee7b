"""The pages of recorded model calls, which show what the model was given."""

import json
import re
from html import unescape
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from conversations.archive.sessions import create_session
from conversations.models import ModelCall, Run, Session
from conversations.runtime.current import current_runtime

from .conftest import flat, say

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}

MANIFEST = {
    "v": 2,
    "model": "m",
    "max_tokens": 8000,
    "go_on": True,
    "strategy": "archive",
    "turns": [[1205, 1230]],
    "floor": 1205,
    "head": 1190,
    "left_out": 1204,
    "rewinds": 0,
    "state": {"turn": 1230, "seq": 1400, "digest": "abcdef0123456789"},
    "hint": "Turns 12 and 40 speak of beans.",
    "skills": [999],
    "compaction": 999,
    "shortened": [{"turn": 1210, "from": 9000, "to": 3000}],
    "limit": 200_000,
    "reserve": 16_000,
    "budget": 165_000,
    "ratio": 1.13,
    "estimated": {"system": 900, "tools": 700, "history": 30_000, "tail": 400, "total": 32_000},
    "breakpoints": [["system", 0], ["messages", 41, 0]],
    "tools": ["conversation_recall"],
    "choices": {"max_tokens": 8000, "stop_sequences": ["END"]},
    "lacks_thinking": [[1210, 1212]],
    "reduced": ["descriptions of tools", "tool fetch_url", "skill baking"],
}


def make_call(session: Session, manifest: Any, **fields: Any) -> ModelCall:
    """Create a model call with this manifest, in a run of its own unless ``run`` is given.

    A manifest that is a string is stored unchanged, to stand for an older version or a damaged
    disk.
    """
    run = fields.pop("run", None) or Run.objects.create(
        session=session,
        client_id=f"client-{Run.objects.count():04}",
        state="completed",
        created_at=timezone.now(),
    )
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    values = {"ordinal": 0, "model": "claude-m", "request_digest": "f" * 64, "turn_number": 2}
    return ModelCall.objects.create(
        session=session, run=run, manifest=text, created_at=timezone.now(), **{**values, **fields}
    )


@pytest.fixture
def answered(session: Session) -> Session:
    say(session, "Plant the beans", "In May")
    return session


def of_turn(session: Session, turn: int = 2) -> str:
    return reverse("turn_call", args=[session.uuid, turn])


def words(response: HttpResponse) -> str:
    return re.sub("[ \n]+", " ", re.sub("<[^>]+>", " ", response.text.partition("panel-part")[2]))


def test_page_of_a_call_shows_its_request_and_its_outcome(owner: Client, answered: Session) -> None:
    make_call(
        answered,
        MANIFEST,
        input_tokens=100,
        cache_read_tokens=29_900,
        cache_write_tokens=0,
        output_tokens=55,
        cost_microusd=12_345,
        first_token_ms=800,
        duration_ms=4_200,
        stop_reason="max_tokens",
    )
    page = words(owner.get(of_turn(answered)))
    for said in (
        "1\u202f205\u20131\u202f230",
        "1\u202f204 earlier turns, in the archive",
        "Turn 1\u202f190, whose answer starts further down",
        "after turn 1\u202f230 , abcdef012345",
        "Turns 12 and 40 speak of beans.",
        "9\u202f000 → 3\u202f000 tokens",
        "estimates times 1.13",
        "6 % less than estimated",
        "about 32\u202f000",
        "29\u202f900 tokens , 99 %",
        "$0.01",
        "800 ms",
        "cut off at the output limit",
        "after the system prompt, after message 42",
        "continue where the answer ended",
        "conversation_recall",
        "Parameter: stop_sequences [&quot;END&quot;]",
        "descriptions of tools, tool fetch_url, skill baking",
    ):
        assert said in page, said
    assert f'href="/s/{answered.uuid}/t/1210/"' in owner.get(of_turn(answered)).text
    german = words(owner.get(of_turn(answered), headers={"Accept-Language": "de"}))
    for said in (
        "Beschreibungen von Werkzeugen, Werkzeug fetch_url, Skill baking",
        "Schätzung mal 1.13",
        "am Ausgabelimit abgeschnitten",
        "das Nachdenken eines anderen Modells in den Beiträgen 1\u202f210\u20131\u202f212",
    ):
        assert said in german, said


@pytest.mark.parametrize(
    ("fields", "english", "german"),
    [
        ({"stop_reason": "end_turn"}, "answer complete", "Antwort vollständig"),
        ({"stop_reason": "tool_use"}, "with tool calls", "mit Werkzeugaufrufen"),
        ({"stop_reason": "stop_sequence"}, "at a stop sequence", "an einer Stoppsequenz"),
        (
            {"error_code": "timeout"},
            "The provider did not respond in time.",
            "Der Anbieter hat nicht rechtzeitig geantwortet.",
        ),
        ({"error_code": "interrupted"}, "interrupted", "unterbrochen"),
    ],
)
def test_outcome_of_a_call_is_in_the_page_language(
    owner: Client, answered: Session, fields: dict[str, str], english: str, german: str
) -> None:
    make_call(answered, MANIFEST | {"lacks_thinking": [[2, 2]]}, **fields)
    page = words(owner.get(of_turn(answered)))
    assert english in page
    assert "another model’s thinking in turn 2" in page
    page = words(owner.get(of_turn(answered), headers={"Accept-Language": "de"}))
    assert german in page
    assert "das Nachdenken eines anderen Modells in Beitrag 2" in page


def test_record_of_an_unknown_version_shows_a_notice(owner: Client, answered: Session) -> None:
    make_call(answered, MANIFEST | {"v": 1})
    page = words(owner.get(of_turn(answered)))
    assert "its version is unknown" in page
    assert "recorded without the data to rebuild its request" in page
    assert "Session state" not in page


DAMAGED = [
    "",
    "{",
    "[]",
    "null",
    "[" * 5000,
    '{"v": 2, "turns": 3}',
    '{"v": 2, "turns": [[1]]}',
    '{"v": 2, "turns": [["a", "b"]]}',
    '{"v": 2, "estimated": [1]}',
    '{"v": 2, "hint": {}}',
    '{"v": 2, "state": {"turn": null}}',
    '{"v": 2, "shortened": [{}]}',
    '{"v": 2, "breakpoints": [7]}',
    '{"v": 2}',
    '{"v": 2, "breakpoints": [["messages", "x"]]}',
    '{"v": 2, "breakpoints": [[]]}',
    '{"v": 2, "ratio": "x"}',
    '{"v": 2, "floor": 1e999}',
]


def test_damaged_record_shows_a_notice_instead_of_an_error(
    owner: Client, answered: Session
) -> None:
    call = make_call(answered, MANIFEST)
    where = [answered.uuid, call.run.uuid, 0]
    for manifest in DAMAGED:
        ModelCall.objects.filter(pk=call.pk).update(manifest=manifest)
        for name in ("model_call", "model_call_text", "model_call_request"):
            page = owner.get(reverse(name, args=where), headers=HTMX)
            assert page.status_code == 200, manifest
        page = owner.get(of_turn(answered), headers=HTMX)
        assert "claude-m" in page.text, manifest
        if manifest in DAMAGED[1:10]:
            assert "cannot be read" in page.text, manifest
            assert "The transcript is complete." in page.text, manifest
        window = owner.get(reverse("session_window", args=[answered.uuid]), headers=HTMX)
        assert window.status_code == 200, manifest


def test_turn_without_a_call_shows_a_notice(owner: Client, answered: Session) -> None:
    page = owner.get(of_turn(answered, 1))
    assert (page.status_code, "No model call is recorded" in page.text) == (200, True)
    assert owner.get(of_turn(answered, 3)).status_code == 404


def test_failed_calls_of_the_answer_are_listed(owner: Client, answered: Session) -> None:
    failed = make_call(answered, MANIFEST, turn_number=None, error_code="rate_limited")
    make_call(answered, MANIFEST, run=failed.run, ordinal=1)
    page = owner.get(of_turn(answered)).text
    address = reverse("model_call", args=[answered.uuid, failed.run.uuid, 0])
    assert f'href="{address}"' in page
    assert "failed: The provider's rate limit was reached." in unescape(page)
    assert "A call without an answer" in owner.get(address).text


def test_a_call_of_another_session_is_not_found(
    owner: Client, answered: Session, user: User
) -> None:
    other = create_session(answered.workspace, owner=user)
    call = make_call(other, MANIFEST)
    for name in ("model_call", "model_call_text", "model_call_request"):
        address = reverse(name, args=[answered.uuid, call.run.uuid, 0])
        assert owner.get(address).status_code == 404, name
    assert "No model call is recorded" in owner.get(of_turn(answered)).text


def test_window_page_lists_the_calls_in_pages(owner: Client, answered: Session) -> None:
    for _ in range(40):
        make_call(answered, MANIFEST)
    address = reverse("session_window", args=[answered.uuid])
    seen: list[str] = []
    for _ in range(4):
        page = owner.get(address, headers=HTMX)
        seen += re.findall(r'<li><a href="([^"]+)"', flat(page.text))
        more = re.search(r'href="([^"]+before=\d+)"', page.text)
        if more is None:
            break
        address = more[1]
    assert len(seen) == len(set(seen)) == 40
    assert owner.get(address.split("?")[0] + "?before=x").status_code == 400


def test_query_count_is_independent_of_the_number_of_calls(
    owner: Client, answered: Session
) -> None:
    costs = []
    for count in (1, 30):
        for _ in range(count):
            make_call(answered, MANIFEST)
        for address in (of_turn(answered), reverse("session_window", args=[answered.uuid])):
            owner.get(address, headers=HTMX)
            with CaptureQueriesContext(connection) as queries:
                assert owner.get(address, headers=HTMX).status_code == 200
            costs.append(len(queries))
    assert costs[:2] == costs[2:]


def test_calls_of_a_turn_are_found_by_an_index(answered: Session) -> None:
    calls = ModelCall.objects.filter(session=answered.pk, turn_number=2).order_by("-pk")
    plan = calls.explain()
    assert "model_call_of_turn" in plan


@pytest.fixture
async def call(async_browser: AsyncClient, session: Session) -> ModelCall:
    """A real call, for a message that was sent by a form and answered by the demo model."""
    data = {"text": "We use tabs, never spaces. <b>Bold</b>", "client_id": "client-0001"}
    await async_browser.post(reverse("session_send", args=[session.uuid]), data)
    await (await current_runtime()).wait_idle(session.pk)
    return await ModelCall.objects.select_related("run").aget()


def text_of(session: Session, call: ModelCall, query: str = "") -> str:
    where = [session.uuid, call.run.uuid, call.ordinal]
    return reverse("model_call_text", args=where) + query


@pytest.mark.django_db(transaction=True)
async def test_request_is_rebuilt_and_checked_against_its_digest(
    async_browser: AsyncClient, session: Session, call: ModelCall
) -> None:
    page = await async_browser.get(text_of(session, call))
    assert "identical to what was sent" in page.text
    assert "System prompt" in page.text
    assert "We use tabs, never spaces. &lt;b&gt;Bold&lt;/b&gt;" in page.text
    verdict = await async_browser.get(text_of(session, call, "?check=1"), headers=HTMX)
    assert flat(verdict.text).startswith('<p class="verdict" data-matches="yes">')
    assert "identical to what was sent" in (await async_browser.get(of_turn(session))).text


@pytest.mark.django_db(transaction=True)
async def test_digest_mismatch_is_reported(
    async_browser: AsyncClient, session: Session, call: ModelCall
) -> None:
    await ModelCall.objects.aupdate(request_digest="0" * 64)
    assert "the digests differ" in (await async_browser.get(text_of(session, call))).text


@pytest.mark.django_db(transaction=True)
async def test_request_can_be_downloaded(
    async_browser: AsyncClient, session: Session, call: ModelCall
) -> None:
    where = [session.uuid, call.run.uuid, call.ordinal]
    response = await async_browser.get(reverse("model_call_request", args=where))
    assert response["Content-Disposition"] == 'attachment; filename="request-2.json"'
    kept = json.loads(response.text)
    assert (kept["matches"], kept["digest"]) == (True, call.request_digest)
    assert "We use tabs" in kept["request"]["messages"][0]["content"][0]["text"]


@pytest.mark.django_db(transaction=True)
async def test_one_part_of_the_request_can_be_shown_alone(
    async_browser: AsyncClient, session: Session, call: ModelCall
) -> None:
    alone = (await async_browser.get(text_of(session, call, "?part=system"))).text
    assert "You" in alone
    assert "We use tabs" not in alone.partition("<pre")[2]
    for odd in ("?part=99", "?part=0000000019", "?part=x", "?from=999999", "?from=1"):
        assert (await async_browser.get(text_of(session, call, odd))).status_code == 200
    assert (await async_browser.get(text_of(session, call, "?from=x"))).status_code == 400


@pytest.mark.django_db(transaction=True)
async def test_window_page_shows_the_latest_call(
    async_browser: AsyncClient, session: Session, call: ModelCall
) -> None:
    page = await async_browser.get(reverse("session_window", args=[session.uuid]))
    assert "Latest call, for turn 2" in page.text
    await sync_to_async(session.refresh_from_db)()
    assert f"{session.context_tokens}" in page.text.replace("\u202f", "")
