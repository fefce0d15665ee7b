"""A run that a page follows with a plain ``EventSource``."""

from collections.abc import Callable

from tests.e2e.conftest import Chat
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

FOLLOW = """
async ([session, text]) => {
  const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
  const sent = await fetch(`/api/v1/sessions/${session}/messages`, {
    method: "POST",
    headers: { "X-CSRFToken": token, "Content-Type": "application/json" },
    body: JSON.stringify({ text }),
  });
  const run = await sent.json();
  const source = new EventSource(run.stream);
  const got = { status: sent.status, opened: 0, kinds: [], text: "", state: "" };
  source.onopen = () => { got.opened += 1 };
  for (const kind of ["run", "row", "delta", "end"])
    source.addEventListener(kind, (event) => {
      const data = JSON.parse(event.data);
      if (kind === "delta") got.text += data.text;
      else got.kinds.push(data.event_type ?? kind);
      got.state = data.state ?? got.state;
    });
  await new Promise((resolve) => {
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) resolve() };
  });
  return got;
}
"""


def test_an_event_source_follows_a_run_to_its_end_and_then_closes(
    wire: WireThread, open_chat: Callable[..., Chat]
) -> None:
    """The source reconnects once after the end, and is told that there are no more events."""
    chat = open_chat().new()
    wire.enqueue(Scenario(words=40, rate=100))
    got = chat.page.evaluate(FOLLOW, [chat.uuid, "What now?"])
    assert got["kinds"] == ["run", "user_message", "assistant_text", "turn_separator", "end"]
    assert (got["status"], got["opened"], got["state"]) == (202, 1, "completed")
    assert chat.rows.nth(1).inner_text().split()[:5] == got["text"].split()[:5]
