"""Rows of the recall tool: the line that names the query, and the links to turns."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from conversations.agent.recall.quotation import QuotedGroup, QuotedMessage, quote
from conversations.domain.events import ToolCallCompleted, ToolCallStarted
from conversations.domain.searchable import RECALL_TOOL
from conversations.rendering.messages import fill_marks
from conversations.rendering.rows import RowPosition, render_row
from conversations.rendering.tool_rows import recall_line, render_output_page

HERE = UUID("11111111-2222-4333-8444-555555555555")
THERE = UUID("99999999-2222-4333-8444-555555555555")
PLACE = RowPosition(session=HERE, seq="7", turn="3", created_at=datetime(2026, 3, 1, tzinfo=UTC))


def completed(output: str, *, name: str = RECALL_TOOL) -> str:
    payload = ToolCallCompleted(
        call_id="a", name=name, ok=True, output=output, arguments={"action": "summary"}
    )
    return fill_marks(render_row(payload, place=PLACE))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"action": "search", "query": "auth token"}, 'search "auth token"'),
        ({"action": "range", "start_turn": 41, "end_turn": 57}, "range 41–57"),
        ({"action": "range", "start_turn": 41, "end_turn": 41}, "range 41"),
        ({"action": "range", "cursor": "1.0.9"}, "range"),
        ({"action": "tool_calls", "tool_name": "bash", "query": "x"}, 'tool_calls bash "x"'),
        ({"action": "summary", "session": str(THERE)}, "summary in 99999999"),
        ({"action": ["odd"], "start_turn": {"a": 1}}, ""),
        ("not an object", ""),
        (None, ""),
    ],
)
def test_the_line_names_the_query(arguments: Any, line: str) -> None:
    assert recall_line(arguments) == line


def test_the_started_and_the_completed_row_have_the_line() -> None:
    arguments = {"action": "search", "query": "<b>beans"}
    started = ToolCallStarted(call_id="a", name=RECALL_TOOL, arguments=arguments)
    done = ToolCallCompleted(call_id="a", name=RECALL_TOOL, ok=True, arguments=arguments)
    for payload in (started, done):
        html = fill_marks(render_row(payload, place=PLACE))
        assert '<b title="conversation_recall">Recall</b>' in html
        assert '<code>search "&lt;b&gt;beans"</code>' in html


def test_each_quoted_turn_is_a_link() -> None:
    html = completed("[Turn 12] user: (x)\n  [Turn 13] said\n[Turn 14] assistant: (x)\n  [Turn 15]")
    assert f'<a href="/s/{HERE}/t/12/">[Turn 12]</a> user: (x)\n  [Turn 13] said' in html
    assert html.count("<a ") == 2


def test_turns_of_another_session_link_to_it() -> None:
    said = [QuotedMessage(turn=4, head="[Turn 4] user: (x)", text="hello", length=5)]
    html = completed(quote([QuotedGroup(session=THERE, title="Flowers", messages=said)]))
    assert f'<a href="/s/{THERE}/">[Session {THERE}]</a>' in html
    assert f'<a href="/s/{THERE}/t/4/">[Turn 4]</a>' in html


def test_markup_in_quoted_text_stays_text() -> None:
    html = completed('[Turn 1] <a href="x">: (x)\n  <script>[Turn 2]</script>\n[Turn 1"><img>]')
    assert "<script" not in html
    assert "<img" not in html
    assert html.count("<a ") == 1


def pages_of(output: str) -> str:
    html, start = "", 0
    while start is not None:
        page = render_output_page(output, name=RECALL_TOOL, start=start, session=HERE)
        html, start = html + page.html, page.next  # type: ignore[assignment]
    return html


def test_a_long_output_has_all_its_links_on_its_pages() -> None:
    output = "\n".join(f"[Turn {n}] user: (x)\n  {'word ' * 200}" for n in range(1, 33))
    assert f'<a href="/s/{HERE}/t/1/">' in completed(output)
    assert pages_of(output).count(f'<a href="/s/{HERE}/t/') == 32


def test_a_later_page_links_to_the_other_session() -> None:
    said = [
        QuotedMessage(turn=n, head=f"[Turn {n}] user: (x)", text="word " * 500, length=2500)
        for n in range(30)
    ]
    html = pages_of(quote([QuotedGroup(session=THERE, title="Flowers", messages=said)]))
    assert f'<a href="/s/{THERE}/t/29/">' in html


def test_the_output_of_other_tools_has_no_links() -> None:
    assert "<a " not in completed("[Turn 12] user: (x)", name="bash")
