"""Summarizing older turns and undoing the summary in a browser."""

import json
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import (
    NARROW,
    WIDE,
    Chat,
    Server,
    long_session,
    take_both_pictures,
)

SUMMARY = """\
## Goal
A shed of 3 × 4 m in the corner behind the apple tree (turn 2).

## Instructions from the person
- "Never use plywood" (turn 11).

## Decisions
- Larch for the walls, since it needs no paint (turn 14).

## What was done
- The list of timber was worked out; `plan.md` holds it.

## Files
- `plan.md`: written at turn 16, changed at turn 20.

## Open points
- Whether the door opens to the south."""


def summarise(page: Page) -> None:
    page.get_by_label("Actions for this session").click()
    page.get_by_role("button", name="Summarize older turns").click()


def row_of(page: Page) -> Any:
    return page.locator('#rows [data-code="compacted"]')


def test_a_summary_is_shown_and_undone_with_one_click(
    open_chat: Callable[..., Chat], server: Server, wire: WireThread
) -> None:
    uuid = long_session(server, turns=60, title="The shed")
    chat = open_chat().open(uuid)
    watching = open_chat().open(uuid)
    wire.enqueue(Scenario(text=SUMMARY))
    summarise(chat.page)
    expect(row_of(chat.page)).to_contain_text("Turns 1–52 are summarized for the model")
    expect(row_of(watching.page)).to_be_visible()
    chat.wait_idle()
    take_both_pictures(chat.page, "compaction-wide")
    row_of(chat.page).get_by_text("Summary by").click()
    expect(chat.page.get_by_role("heading", name="Instructions from the person")).to_be_visible()
    take_both_pictures(chat.page, "compaction-open-wide")
    chat.page.set_viewport_size(NARROW)
    take_both_pictures(chat.page, "compaction-open-narrow")
    assert not chat.page.evaluate("document.documentElement.scrollWidth > innerWidth")
    chat.page.set_viewport_size(WIDE)
    wire.enqueue(Scenario(text="South, as you said."))
    chat.ask("Which way does the door open?")
    sent = json.dumps(wire.requests[-1]["messages"])
    assert "Never use plywood" in sent
    assert "Row number 50" not in sent
    row_of(chat.page).get_by_role("button", name="Undo the summary").click()
    expect(chat.page.get_by_text("The summary of turns 1–52 is undone.")).to_be_visible()
    expect(watching.page.get_by_text("The summary of turns 1–52 is undone.")).to_be_visible()
    wire.enqueue(Scenario(text="As before."))
    chat.ask("And now?")
    sent = json.dumps(wire.requests[-1]["messages"])
    assert "Never use plywood" not in sent
    assert "Row number 50" in sent
