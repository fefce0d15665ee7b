"""The output of a virtual screen reader for a chat with an approval, by keyboard alone.

It consists of the announcements during the chat, and then of the whole transcript.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from tests.e2e.conftest import Chat, settle
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .test_lighthouse import INSTALLED

PROGRAM = INSTALLED / "node_modules/@guidepup/virtual-screen-reader/lib/esm/index.browser.js"
SAID = Path(__file__).with_name("said.txt")
ANSWER = "It is written.\n\nThe second paragraph has `code`.\n\n- one\n- two"

LOAD = """
async (program) => {
  const url = URL.createObjectURL(new Blob([program], { type: "text/javascript" }));
  window.reader = (await import(url)).virtual;
  await reader.start({ container: document.querySelector("main") });
}
"""
READ_TRANSCRIPT = """
async () => {
  await reader.stop();
  await reader.start({ container: document.querySelector("#transcript") });
  for (let steps = 0; steps < 300; steps += 1) {
    await reader.next();
    if ((await reader.lastSpokenPhrase()).startsWith("end of log")) break;
  }
  return reader.spokenPhraseLog();
}
"""


def test_the_screen_reader_says_a_chat_as_recorded_in_the_file(
    open_chat: Callable[..., Chat], wire: WireThread
) -> None:
    chat = open_chat(bypass_csp=True).new()
    page = chat.page
    page.evaluate(LOAD, PROGRAM.read_text())
    call = ToolCall(name="write_file", input={"path": "said.txt", "content": "beans"})
    wire.enqueue(Scenario(tools=(call,)), Scenario(text=ANSWER))
    page.keyboard.type("Write it")
    page.keyboard.press("Enter")
    expect(page.get_by_role("group", name="Approval needed")).to_be_focused()
    settle(0.7)
    for key in ("Enter", "Tab", "Tab", "Enter"):
        page.keyboard.press(key)
        settle(0.2)
    chat.wait_idle()
    settle(0.5)
    live = page.evaluate("reader.spokenPhraseLog()")
    lines = ["Meanwhile:", *live, "", "The transcript:", *page.evaluate(READ_TRANSCRIPT)]
    text = "\n".join(without_figures(lines)) + "\n"
    if os.environ.get("SAID") == "write":
        SAID.write_text(text)
    assert text == SAID.read_text(), text


def without_figures(lines: list[str]) -> list[str]:
    """Replace figures that change in each run, and drop lines that only a clock has repeated."""
    said: list[str] = []
    for line in lines:
        for pattern, name in FIGURES:
            line = pattern.sub(name, line)
        if line not in ("polite: ", "assertive: ", *said[-1:]):
            said.append(line)
    return said


FIGURES = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\w+day, \w+ \d+, \d{4}", "DAY"),
        (r"\d+:\d\d(:\d\d)?( [AP]M)?", "TIME"),
        (r" · \d[\d.,]* (ms|s)\b", ""),  # hidden from screen readers, which this one ignores
        (r"\d[\d.,]* (ms|s)\b", "DURATION"),
        (r"[\d\s]+(?= tokens in)|\d+(?= % cached)|^\d+(?= out$)|(?<=^\$)[\d.]+$", "N"),
        (r"(?<=once by )\S+", "NAME"),
    )
]
