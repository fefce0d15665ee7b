"""Compaction: a cheaper model writes a summary for the window without delaying messages."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.agent.window.manifest import rebuild_request
from conversations.agent.window.summary import SYSTEM
from conversations.archive.append import append
from conversations.archive.context import (
    CompactionRequest,
    append_loaded_skill,
    read_active_compaction,
    request_compaction,
)
from conversations.archive.runs import interrupt_run
from conversations.archive.session_records import list_sessions
from conversations.archive.sessions import archive_session
from conversations.archive.transcript import read_page
from conversations.archive.verify import verify_session
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.stream import BlockDelta, ModelInfo, ModelRequest, StreamItem
from conversations.domain.text import dump_json
from conversations.domain.turns import NewTurn
from conversations.domain.windows import HEADINGS, WindowRules
from conversations.models import ChatEvent, Compaction, ModelCall, Run, Session, Turn, Workspace
from conversations.rendering.messages import fill_marks
from conversations.runtime.service import Runtime
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import Page, ask, change_options, fresh

SUMMARY = "## Goal\nA garden.\n\n## Open points\n<script>alert(1)</script> **Plant** beans."

RULES = WindowRules(keep_recent=2)


@pytest.fixture
async def compacting(start_runtime: Callable[..., Any]) -> Runtime:
    started: Runtime = await start_runtime(rules=RULES)
    return started


async def talk(runtime: Runtime, wire: WireThread, session: Session, *, times: int) -> None:
    for number in range(times):
        wire.enqueue(Scenario(text=f"Answer {number}. " + "Beans grow. " * 40))
        await ask(
            runtime, session, f"question {number} of {await sync_to_async(last_turn)(session)}"
        )


def last_turn(session: Session) -> int:
    return Turn.objects.filter(session=session.pk).count()


async def compact(runtime: Runtime, session: Session, **fields: Any) -> Run:
    client_id = f"compact-{await Run.objects.acount()}"
    accepted = await runtime.compact(session, client_id=client_id, user_pk=None, **fields)
    await runtime.wait_idle(session.pk)
    return await Run.objects.aget(pk=accepted.run_pk)


async def in_force(session: Session) -> tuple[int, str] | None:
    found = await sync_to_async(read_active_compaction)(session.pk)
    return (found.to_turn, found.summary) if found else None


async def notices(session: Session) -> list[dict[str, Any]]:
    events = ChatEvent.objects.filter(session=session.pk, event_type="info").order_by("seq")
    return [json.loads(payload) async for payload in events.values_list("payload", flat=True)]


def first_text(request: dict[str, Any]) -> str:
    text: str = request["messages"][0]["content"][0]["text"]
    return text


async def test_a_summary_replaces_all_but_the_last_exchanges(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    await talk(compacting, wire, garden, times=5)
    wire.enqueue(Scenario(text=SUMMARY))
    run = await compact(compacting, garden)
    assert (run.state, run.error_code, await in_force(garden)) == ("completed", "", (6, SUMMARY))
    wire.enqueue(Scenario(text="Go on."))
    await ask(compacting, garden, "and now")
    request = wire.requests[-1]
    assert "A garden." in first_text(request)
    assert "question 0" not in json.dumps(request["messages"][1:])
    assert "question 3" in json.dumps(request["messages"])
    assert await Turn.objects.filter(session=garden.pk).acount() == 12
    verified = await sync_to_async(verify_session)(await fresh(garden))
    assert verified.problem == ""


async def test_a_cheaper_model_gets_the_turns_as_a_quotation(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    compacting.models.listed = [
        ModelInfo(id=name, name=name, max_input_tokens=200_000, max_output_tokens=8000)
        for name in ("claude-opus-5-5", "claude-haiku-5-5", "claude-haiku-4-5")
    ]
    call = ToolCall(name="look", input={"path": "src/a.py"})
    wire.enqueue(Scenario(tools=(call,)), Scenario(text="Nothing there."))
    await ask(compacting, garden, "look around")
    await talk(compacting, wire, garden, times=2)
    wire.enqueue(Scenario(text=SUMMARY))
    await compact(compacting, garden)
    request = wire.requests[-1]
    assert request["model"] == "claude-haiku-5-5"
    assert request["system"][0]["text"] == SYSTEM
    assert all(f"- {heading}:" in SYSTEM for heading in HEADINGS)
    assert not request.get("tools")
    text = first_text(request)
    assert "[turn 1, person]\nlook around" in text
    assert '(calls look with {"path":"src/a.py"})' in text
    assert "[turn 3, result of look]\nThere is no tool named 'look'." in text
    assert "[turn 5, person]" not in text


async def test_the_summary_row_has_an_undo_form_and_is_the_same_when_reloaded(
    compacting: Runtime,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    await talk(compacting, wire, garden, times=4)
    page = open_page(compacting)
    wire.enqueue(Scenario(text=SUMMARY))
    await compact(compacting, garden)
    row = page.rows[-1]
    reloaded = await sync_to_async(read_page)(await fresh(garden), limit=100)
    assert reloaded.rows[-1].html == row["html"]
    assert "Turns 1–4 are summarized for the model (" in fill_marks(row["html"])
    assert "<strong>Plant</strong>" in row["html"]
    assert "<script>" not in row["html"]
    kept = await Compaction.objects.aget()
    assert f'formaction="/s/{garden.uuid}/compactions/{kept.uuid}/undo/"' in row["html"]
    assert kept.after_tokens < kept.before_tokens
    assert page.of_type("window")[-1]["floor"] == (await fresh(garden)).floor_turn == 5
    states = [(frame["run_state"], frame["text"]) for frame in page.of_type("state")]
    assert ("running", "Summarizing turns 1–4") in states
    assert states[-1][0] == "idle"


async def test_undoing_a_summary_returns_the_turns_to_the_window(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    await talk(compacting, wire, garden, times=4)
    wire.enqueue(Scenario(text=SUMMARY), Scenario(text="a"), Scenario(text="b"))
    await compact(compacting, garden)
    await ask(compacting, garden, "with it")
    kept = await Compaction.objects.aget()
    await compacting.undo_compaction(garden, uuid=kept.uuid, user_pk=None)
    await ask(compacting, garden, "without it")
    request = wire.requests[-1]
    assert first_text(request).startswith("question 0")
    assert "A garden." not in json.dumps(request["messages"])
    assert [info["code"] for info in await notices(garden)] == ["compacted", "compaction_undone"]


async def test_the_next_summary_begins_where_the_last_one_ended(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    await talk(compacting, wire, garden, times=4)
    wire.enqueue(Scenario(text="The first summary."))
    await compact(compacting, garden)
    await talk(compacting, wire, garden, times=3)
    wire.enqueue(Scenario(text="The second summary."))
    await compact(compacting, garden)
    text = first_text(wire.requests[-1])
    assert "<summary>\nThe first summary.\n</summary>" in text
    assert "[turn 4," not in text
    assert "[turn 5, person]" in text
    assert await in_force(garden) == (10, "The second summary.")
    assert [c.from_turn async for c in Compaction.objects.order_by("pk")] == [1, 1]


async def test_a_long_conversation_is_summarised_in_stages_that_can_be_rebuilt(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(rules=RULES, max_input_tokens=1300, compact_tokens=100)
    for number in range(9):
        wire.enqueue(Scenario(text=f"Answer {number}. " + "Beans grow. " * 90))
        await ask(runtime, garden, f"question {number}")
    count = len(wire.requests)
    wire.enqueue(*[Scenario(text=f"Summary {n}.") for n in range(9)])
    run = await compact(runtime, garden)
    stages = wire.requests[count:]
    assert len(stages) > 2
    for number, request in enumerate(stages[1:]):
        assert f"<summary>\nSummary {number}.\n</summary>" in first_text(request)
    assert all(len(first_text(request)) < 1300 * 4 for request in stages)
    assert await in_force(garden) == (14, f"Summary {len(stages) - 1}.")
    await asyncio.gather(*runtime.database.background)
    calls = [call async for call in ModelCall.objects.filter(run=run)]
    assert len(calls) == len(stages)
    for call in calls:
        rebuilt = await sync_to_async(rebuild_request)(call.pk)
        assert (rebuilt.matches, rebuilt.reason) == (True, "")
        manifest = json.loads(call.manifest)
        assert (manifest["v"], manifest["kind"]) == (2, "compaction")


async def test_the_oldest_turns_are_left_out_if_the_stages_cannot_hold_them(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(
        rules=RULES, max_input_tokens=1300, compact_tokens=100, compact_max_calls=1
    )
    for number in range(9):
        wire.enqueue(Scenario(text=f"Answer {number}. " + "Beans grow. " * 90))
        await ask(runtime, garden, f"question {number}")
    wire.enqueue(*[Scenario(text=SUMMARY)] * 3)
    await compact(runtime, garden)
    kept = await Compaction.objects.aget()
    assert kept.from_turn > 1
    assert kept.to_turn == 14
    await ask(runtime, garden, "and now")
    said = first_text(wire.requests[-1])
    assert f"[Summary of turns {kept.from_turn}-14, written by a model." in said
    await asyncio.gather(*runtime.database.background)
    call = await ModelCall.objects.alatest("pk")
    assert (await sync_to_async(rebuild_request)(call.pk)).matches


async def test_a_stage_that_is_too_long_is_shortened_and_retried(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    await talk(compacting, wire, garden, times=6)
    too_long = Scenario(
        status=400,
        error_type="invalid_request_error",
        error_message="prompt is too long: 210000 tokens > 200000 maximum",
    )
    wire.enqueue(too_long, *[Scenario(text=SUMMARY)] * 9)
    run = await compact(compacting, garden)
    assert run.state == "completed"
    assert (await in_force(garden) or (0,))[0] == 8
    failed = await ModelCall.objects.aget(run=run, ordinal=0)
    assert failed.error_code == "context_window_exceeded"


def keep_many(session: Session) -> None:
    """Append two hundred exchanges of about 150 tokens each."""
    turns = [
        NewTurn(role=role, content=f"{role} {number} " + "Beans grow. " * 24)
        for number in range(200)
        for role in ("user", "assistant")
    ]
    append(session.pk, session_uuid=session.uuid, turns=turns)


@pytest.mark.parametrize("refused", [0, 1])
async def test_a_summary_stays_within_the_limit_of_stages(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, refused: int
) -> None:
    runtime = await start_runtime(rules=RULES, max_input_tokens=4096, compact_max_calls=4)
    await sync_to_async(keep_many)(garden)
    too_long = Scenario(
        status=400,
        error_type="invalid_request_error",
        error_message="prompt is too long: 5000 tokens > 4096 maximum",
    )
    # A summary of the maximum length would leave no room for turns in a shortened stage.
    summary = "## Goal\n" + "The person wants a garden. " * 150
    wire.enqueue(*[too_long] * refused, *[Scenario(text=summary)] * 90)
    run = await compact(runtime, garden)
    assert (run.state, run.error_code) == ("completed", "")
    stages = await ModelCall.objects.filter(run=run).acount() - refused
    assert 1 < stages <= 4
    # The summary covers the newest of the older turns.
    kept = await Compaction.objects.aget()
    assert 390 < kept.to_turn <= 396
    assert kept.from_turn < kept.to_turn - stages


async def test_turns_that_the_last_stage_cannot_hold_stay_in_the_window(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(rules=RULES, max_input_tokens=4096, compact_max_calls=2)
    await sync_to_async(keep_many)(garden)
    too_long = Scenario(
        status=400,
        error_type="invalid_request_error",
        error_message="prompt is too long: 5000 tokens > 4096 maximum",
    )
    wire.enqueue(Scenario(text=SUMMARY), *[too_long] * 2, *[Scenario(text=SUMMARY)] * 90)
    run = await compact(runtime, garden)
    kept = await Compaction.objects.aget()
    assert await ModelCall.objects.filter(run=run).acount() == 4
    assert kept.from_turn < kept.to_turn < 396
    assert kept.after_turns == 400 - kept.to_turn
    wire.enqueue(Scenario(text="Go on."))
    await ask(runtime, garden, "and now")
    given = json.dumps(wire.requests[-1]["messages"])
    assert f"turns {kept.from_turn}-{kept.to_turn}, written" in given
    assert "user 197 Beans" in given


@pytest.mark.parametrize(
    ("scenario", "code"),
    [
        (Scenario(status=401, error_type="authentication_error"), "bad_key"),
        (Scenario(empty=True), "empty_answer"),
        (Scenario(text="No.", stop_reason="refusal"), "empty_answer"),
        (Scenario(text="Beans. " * 5000), "nothing_to_compact"),
    ],
)
async def test_a_failed_summary_leaves_a_notice_and_changes_nothing(
    compacting: Runtime, wire: WireThread, garden: Session, scenario: Scenario, code: str
) -> None:
    await talk(compacting, wire, garden, times=4)
    wire.enqueue(scenario)
    run = await compact(compacting, garden)
    assert (run.error_code, await in_force(garden)) == (code, None)
    call = await ModelCall.objects.aget(run=run)
    assert bool(call.input_tokens) == (code != "bad_key")
    [notice] = await notices(garden)
    assert notice.get("kind", "notice") == "notice"
    assert notice["text"].endswith("Nothing has changed.")
    wire.enqueue(Scenario(text="Fine."))
    assert (await ask(compacting, garden, "go on")).state == "completed"
    assert first_text(wire.requests[-1]).startswith("question 0")


async def test_a_summary_is_retried_if_the_provider_is_overloaded(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    await talk(compacting, wire, garden, times=4)
    overloaded = Scenario(status=529, error_type="overloaded_error", retry_after="0", times=1)
    wire.enqueue(replace(overloaded, text=SUMMARY))
    assert (await compact(compacting, garden)).state == "completed"
    assert await in_force(garden) == (4, SUMMARY)


async def test_the_sessions_model_replaces_a_compact_model_that_is_missing(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(rules=RULES, compact_model="claude-unknown")
    await talk(runtime, wire, garden, times=4)
    wire.enqueue(Scenario(text=SUMMARY))
    await compact(runtime, garden)
    assert wire.requests[-1]["model"] == runtime.models.model_for("")
    assert await in_force(garden) == (4, SUMMARY)


async def test_the_sessions_model_replaces_a_compact_model_that_refuses(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    """The small model that is chosen from the list may not support chat."""
    runtime = await start_runtime(rules=RULES, compact_model="claude-haiku-5-5")
    await talk(runtime, wire, garden, times=4)
    wire.enqueue(Scenario(status=400, error_message="It needs audio."), Scenario(text=SUMMARY))
    await compact(runtime, garden)
    asked = [request["model"] for request in wire.requests[-2:]]
    assert asked == ["claude-haiku-5-5", runtime.models.model_for("")]
    assert await in_force(garden) == (4, SUMMARY)


async def test_a_summary_can_be_stopped(
    compacting: Runtime,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await talk(compacting, wire, garden, times=4)
    page = open_page(compacting)
    stream, has_written = compacting.models.stream, asyncio.Event()

    async def watched(request: ModelRequest) -> AsyncIterator[StreamItem]:
        async with aclosing(stream(request)) as items:
            count = 0
            async for item in items:
                count += isinstance(item, BlockDelta)
                if count > 20:
                    has_written.set()
                yield item

    monkeypatch.setattr(compacting.models, "stream", watched)
    wire.enqueue(Scenario(words=400, rate=50))
    accepted = await compacting.compact(garden, client_id="compact-1", user_pk=None)
    await page.until(lambda: any("turns" in f["text"] for f in page.of_type("state")))
    await has_written.wait()
    await compacting.stop_run(garden)
    await compacting.wait_idle(garden.pk)
    run = await Run.objects.aget(pk=accepted.run_pk)
    assert (run.state, await in_force(garden), await notices(garden)) == ("stopped", None, [])
    call = await ModelCall.objects.aget(run=run)  # the provider counts its tokens
    assert (call.error_code, call.is_failed) == ("stopped", False)
    calls = ModelCall.objects.filter(session=garden.pk)
    used = sum([one.output_tokens or 0 async for one in calls])
    assert (await fresh(garden)).output_tokens == used
    assert (call.input_tokens or 0) > 100
    assert (call.output_tokens or 0) > 10


async def test_no_request_is_made_if_there_is_nothing_to_summarise(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    with pytest.raises(Rejected):
        await compact(compacting, garden)
    await talk(compacting, wire, garden, times=2)
    run = await compact(compacting, garden)
    assert (run.state, run.error_code) == ("completed", "nothing_to_compact")
    assert len(wire.requests) == 2


async def test_a_summary_is_refused_during_a_run_and_made_once_per_client_id(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    await talk(compacting, wire, garden, times=3)
    wire.enqueue(Scenario(words=50, rate=200), Scenario(text=SUMMARY))
    await compacting.send(garden, client_id="client-busy", text="busy", user_pk=None)
    with pytest.raises(Conflict):
        await compacting.compact(garden, client_id="compact-1", user_pk=None)
    await compacting.wait_idle(garden.pk)
    first = await compacting.compact(garden, client_id="compact-1", user_pk=None)
    await compacting.wait_idle(garden.pk)
    again = await compacting.compact(garden, client_id="compact-1", user_pk=None)
    assert first.run == again.run
    assert await Compaction.objects.acount() == 1


async def test_loaded_skills_survive_a_restart_and_a_second_summary(
    start_runtime: Callable[..., Any], compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    await talk(compacting, wire, garden, times=4)
    await sync_to_async(append_loaded_skill)(
        garden.pk, name="roses", path="p", content="Cut above the leaf.", turn=2
    )
    wire.enqueue(Scenario(text=SUMMARY))
    await compact(compacting, garden)
    await compacting.stop()
    resumed = await start_runtime(rules=RULES)
    assert await kinds(garden) == ["message"] * 4 + ["compact"]
    await talk(resumed, wire, garden, times=3)
    wire.enqueue(Scenario(text="The second summary."), Scenario(text="Yes."))
    await compact(resumed, garden)
    await ask(resumed, garden, "go on")
    first = first_text(wire.requests[-1])
    assert "The second summary." in first
    assert "Cut above the leaf." in first


# Automatic summaries


async def kinds(session: Session) -> list[str]:
    runs = Run.objects.filter(session=session.pk).order_by("pk")
    return [kind async for kind in runs.values_list("kind", flat=True)]


async def fill(runtime: Runtime, wire: WireThread, session: Session, *, at: int = 1) -> None:
    """Fill the session with a long exchange and two short ones.

    With the default ``at``, its window counts as full after the next answer.
    """
    wire.enqueue(Scenario(text="Beans grow. " * 300), Scenario(text="Yes."), Scenario(text="No."))
    for number in range(3):
        await ask(runtime, session, f"question {number}")
    change_options(runtime, compact_at=at)


async def test_a_full_window_is_summarised_after_the_answer(
    compacting: Runtime,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    await fill(compacting, wire, garden, at=100_000)
    wire.enqueue(Scenario(text="Answered."), Scenario(text="Answered."), Scenario(text=SUMMARY))
    await ask(compacting, garden, "one more")
    assert await kinds(garden) == ["message"] * 4, "the window has room"
    page = open_page(compacting)
    change_options(compacting, compact_at=1)
    await ask(compacting, garden, "and one more")
    assert await kinds(garden) == ["message"] * 5 + ["compact"]
    kept = await Compaction.objects.aget()
    assert (kept.reason, kept.actor_id, kept.to_turn) == ("threshold", None, 6)
    assert page.row_types[-4:] == ["user_message", "assistant_text", "turn_separator", "info"]


async def test_regenerate_and_continue_do_not_start_a_summary(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    await fill(compacting, wire, garden)
    wire.enqueue(Scenario(text="Again."), Scenario(text="More."))
    await compacting.regenerate(garden, client_id="client-again", turn=None, user_pk=None)
    await compacting.wait_idle(garden.pk)
    await compacting.continue_run(garden, client_id="client-go-on", user_pk=None)
    await compacting.wait_idle(garden.pk)
    assert await kinds(garden) == ["message"] * 3 + ["regenerate", "continue"]


@pytest.mark.parametrize("how", ["fails", "too long", "undone"])
async def test_a_useless_summary_is_retried_only_after_the_window_has_grown(
    compacting: Runtime, wire: WireThread, garden: Session, how: str
) -> None:
    await fill(compacting, wire, garden)
    summary = {
        "fails": Scenario(status=401, error_type="authentication_error"),
        "too long": Scenario(text="Beans. " * 480),
        "undone": Scenario(text=SUMMARY),
    }[how]
    wire.enqueue(Scenario(text="Answered."), summary)
    await ask(compacting, garden, "one more")
    if how == "undone":
        kept = await Compaction.objects.aget()
        await compacting.undo_compaction(garden, uuid=kept.uuid, user_pk=None)
    assert await in_force(garden) is None
    assert (await kinds(garden)).count("compact") == 1
    if how == "too long":  # in the format of an earlier version
        text = dump_json({"reason": "threshold", "tokens": (await fresh(garden)).context_tokens})
        await Run.objects.filter(kind="compact").aupdate(text=text)
    wire.enqueue(Scenario(text="Answered."))
    await ask(compacting, garden, "two more")
    assert (await kinds(garden)).count("compact") == 1
    wire.enqueue(Scenario(text="Roses are red. " * 500), Scenario(text=SUMMARY))
    await ask(compacting, garden, "three more")
    assert (await kinds(garden)).count("compact") == 2
    assert await in_force(garden) is not None


async def test_no_request_is_made_for_a_summary_that_cannot_help(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    compacting.options = replace(compacting.options, compact_at=1)
    wire.enqueue(Scenario(text="Yes."), Scenario(text="No."), Scenario(text="Beans grow. " * 300))
    for number in range(3):
        await ask(compacting, garden, f"question {number}")
    assert len(wire.requests) == 3
    assert await Compaction.objects.acount() == 0
    assert await notices(garden) == []


async def test_an_automatic_summary_is_stopped_by_the_next_message(
    compacting: Runtime,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    await fill(compacting, wire, garden)
    page = open_page(compacting)
    wire.enqueue(Scenario(text="Answered."), Scenario(words=4000, rate=50), Scenario(text="Next."))
    asked = len(wire.requests)
    await compacting.send(garden, client_id="client-full", text="one more", user_pk=None)
    await page.until(lambda: any("turns" in f["text"] for f in page.of_type("state")))
    async with asyncio.timeout(60):
        while len(wire.requests) < asked + 2:  # until the summary is requested
            await asyncio.sleep(0.01)
    await ask(compacting, garden, "next")
    runs = [run async for run in Run.objects.filter(session=garden.pk).order_by("pk")]
    assert [run.kind for run in runs[3:]] == ["message", "compact", "message"]
    assert [run.state for run in runs[3:]] == ["completed", "stopped", "completed"]
    assert await notices(garden) == []


async def test_a_queued_message_cancels_an_automatic_summary(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    await fill(compacting, wire, garden, at=0)
    await sync_to_async(request_compaction)(
        garden,
        client_id="compact-1",
        request=CompactionRequest(reason="threshold"),
        user_pk=None,
    )
    wire.enqueue(Scenario(text="Answered."))
    await ask(compacting, garden, "one more")
    runs = [run async for run in Run.objects.filter(session=garden.pk).order_by("pk")]
    assert [(run.kind, run.state) for run in runs[3:]] == [
        ("compact", "stopped"),
        ("message", "completed"),
    ]
    assert len(wire.requests) == 4


async def test_the_strategy_of_a_workspace_acts_before_the_floor_moves(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(rules=RULES, max_input_tokens=7000, compact_tokens=200)
    await Workspace.objects.aupdate(window_strategy="summarize")
    for number in range(12):
        wire.enqueue(Scenario(text="Beans grow. " * 100))
        await ask(runtime, garden, f"question {number}")
        if "compact" in await kinds(garden):
            break
        assert (await fresh(garden)).floor_turn == 1
    await runtime.wait_idle(garden.pk)
    kept = await Compaction.objects.aget()
    assert (kept.reason, kept.floor_before) == ("threshold", 1)


async def test_a_failed_summary_is_retried_after_the_floor_has_moved(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    rules = WindowRules(strategy="summarize", keep_recent=2)
    runtime = await start_runtime(rules=rules, max_input_tokens=7000, compact_tokens=200)

    answer = Scenario(text="Beans grow. " * 100)
    failure = Scenario(status=401, error_type="authentication_error")
    floors: list[int] = []
    for number in range(25):
        wire.enqueue(answer, failure)
        await ask(runtime, garden, f"question {number}")
        wire.server.forget()
        if (await kinds(garden)).count("compact") > len(floors):
            floors.append((await fresh(garden)).floor_turn)
        if len(floors) == 2:
            break
    [first, second] = floors
    assert first < second


async def test_an_archived_session_is_summarised_only_with_the_reason_end(
    compacting: Runtime, wire: WireThread, garden: Session
) -> None:
    await talk(compacting, wire, garden, times=4)
    await sync_to_async(archive_session)(garden, archived=True)
    with pytest.raises(Conflict):
        await compact(compacting, garden)
    wire.enqueue(Scenario(text=SUMMARY))
    await compact(compacting, garden, reason="end")
    assert await in_force(garden) == (4, SUMMARY)


async def begin_long_summary(
    compacting: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> int:
    """Return the key of the summary's run once the page shows that it is being written."""
    await talk(compacting, wire, garden, times=4)
    page = open_page(compacting)
    wire.enqueue(Scenario(words=4000, rate=50))
    accepted = await compacting.compact(garden, client_id="compact-1", user_pk=None)
    await page.until(lambda: any("turns" in f["text"] for f in page.of_type("state")))
    return accepted.run_pk


async def test_a_summary_of_a_dead_process_leaves_only_a_notice(
    compacting: Runtime,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    run_pk = await begin_long_summary(compacting, wire, garden, open_page)
    await sync_to_async(interrupt_run)(run_pk, owner=compacting.owner.id)
    [notice] = await notices(garden)
    assert (notice["code"], notice.get("action")) == ("compaction_interrupted", None)
    await compacting.stop_run(garden)
    await compacting.wait_idle(garden.pk)
    assert await in_force(garden) is None
    items = await sync_to_async(list_sessions)(garden.workspace, limit=5)
    assert [item.state for item in items.items] == ["idle"]


@pytest.mark.parametrize("ended_by", ["server", "stop", "ctrl_c"])
async def test_shutdown_interrupts_a_summary_unless_a_person_stopped_it(
    compacting: Runtime,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
    ended_by: str,
) -> None:
    run_pk = await begin_long_summary(compacting, wire, garden, open_page)
    if ended_by == "stop":
        await compacting.stop_run(garden)
    await compacting.stop(by_person=ended_by == "ctrl_c")
    run = await Run.objects.aget(pk=run_pk)
    told = [(notice["code"], fill_marks(notice["text"])) for notice in await notices(garden)]
    if ended_by == "server":
        text = "The server stopped while a summary was being written. Nothing has changed."
        assert (run.state, told) == ("interrupted", [("compaction_interrupted", text)])
    else:
        assert (run.state, told) == ("stopped", [])
    assert (run.error_code, await in_force(garden)) == ("", None)


async def test_the_demo_model_writes_a_summary(
    start_runtime: Callable[..., Any], garden: Session
) -> None:
    runtime = await start_runtime(rules=RULES, providers=(), demo_delay=0.0)
    for number in range(4):
        await ask(runtime, garden, f"tell me about bean {number} " + "please " * 60)
    await compact(runtime, garden)
    found = await in_force(garden)
    assert found is not None
    assert all(f"## {heading}" in found[1] for heading in HEADINGS)
    assert "- turn 1: tell me about bean 0" in found[1]
