"""Rows of tool calls: summary line, contents, questions and safety against markup."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.utils.translation import override
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.events import (
    ContentIndicator,
    Fallback,
    Info,
    Payload,
    ToolCallCompleted,
    ToolCallStarted,
    UserMessage,
    parse_payload,
)
from conversations.domain.tool_calls import OPEN_STATES
from conversations.domain.tool_questions import QUESTION_ANSWERED, QUESTION_ASKED
from conversations.domain.turns import StoredTurn, synthesise_rows
from conversations.rendering.diffs import render_diff
from conversations.rendering.messages import fill_marks
from conversations.rendering.rows import RowPosition, show_rows
from conversations.rendering.rows import render_row as render_marked_row
from conversations.rendering.terminal import render_terminal
from conversations.rendering.tool_rows import STATES, render_output_page
from tests.properties import costly

from .texts import any_text

SESSION = UUID("11111111-2222-4333-8444-555555555555")
CALL = "99999999-2222-4333-8444-555555555555"
PLACE = RowPosition(session=SESSION, seq="7", turn="3", created_at=datetime(2026, 3, 1, tzinfo=UTC))
RECORD = f"/s/{SESSION}/tools/{CALL}/"
VOID = {"img", "input", "br", "hr"}


def render_row(payload: Payload | Fallback, *, place: RowPosition) -> str:
    return fill_marks(render_marked_row(payload, place=place))


DIFF = """\
--- a/src/app.py
+++ b/src/app.py
@@ -1,4 +1,4 @@
 def plant(what):
-    return dig(what, 1)
+    return dig(what, 2)
--- a/not/a/header
+++ nor this
"""


class Checker(HTMLParser):
    """A parser that fails if elements are not closed in order. It records tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return checker


def render(payload: Payload) -> str:
    html = render_row(payload, place=PLACE)
    check(html)
    html.encode()
    return html


def completed(**named: Any) -> str:
    values = {"call_id": "a", "name": "shell_execute", "ok": True, "call": CALL}
    return render(ToolCallCompleted(**(values | named)))


def asked(**data: Any) -> str:
    values = {"call": CALL, "call_id": "a", "name": "shell_execute", "summary": "In beds/"}
    return render(
        Info(text="?", kind="approval", code="approval_asked", data=values | data),
    )


def text_of(html: str) -> str:
    return re.sub(r"<[^>]*>", "", html)


def shown(text: str) -> str:
    return render_terminal(text, most_lines=40, most_chars=4000, most_spans=100).html


# The line


def test_the_summary_line_has_command_duration_and_state() -> None:
    html = completed(
        arguments={"command": "pytest -q", "timeout": 60},
        ok=False,
        error="collected 1 item\n\x1b[1m\x1b[31mE   ValueError: late\x1b[0m\n\n1 failed, 2 passed",
        exit_code=1,
        duration_ms=2300,
        output_chars=812_000,
    )
    summary = html[html.index("<summary") : html.index("</summary>")]
    assert '<b title="shell_execute">Run</b><code>pytest -q</code>' in summary
    assert "<span>exit 1</span><span>2.3 s</span><span>812 KB</span>" in summary
    assert '<span class="state" data-state="failed">Failed</span>' in summary
    assert "<details open>" not in html
    assert '<p class="cut failure">ValueError: late</p>' in html
    assert "timeout: 60" in html


@pytest.mark.parametrize(
    ("state", "ok", "word"),
    [
        ("", True, "Done"),
        ("completed", True, "Done"),
        ("completed", False, "Failed"),
        ("", None, "Outcome unknown"),
        ("denied", False, "Denied"),
        ("stopped", False, "Stopped"),
        ("interrupted", False, "Interrupted"),
        ("odd", None, "odd"),
    ],
)
def test_each_state_has_its_word(state: str, ok: bool | None, word: str) -> None:
    html = completed(state=state, ok=ok, error="x")
    assert f">{word}</span></summary>" in html
    assert ("failure" in html) == (word == "Failed")


def test_a_started_call_is_shown_as_waiting() -> None:
    """A call may wait behind another call's question. The page's script has the same words."""
    html = render(ToolCallStarted(call_id="a", name="read_file", call=CALL))
    assert '<span class="state" data-state="started">Waiting</span>' in html
    script = (Path(__file__).parents[2] / "static" / "js" / "calls.js").read_text()
    words = re.findall(r'^  (\w+): \["(\w+)", gettext\("(\w+)"\)\],$', script, re.MULTILINE)
    assert {state: (mark, word) for state, mark, word in words} == {
        state: STATES[state] for state in OPEN_STATES
    }


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("read_file", {"path": "src/a.py", "start_line": 3}, "<code>src/a.py</code>"),
        ("move_file", {"path": "a.py", "target": "b/a.py"}, "<code>a.py → b/a.py</code>"),
        ("search_files", {"pattern": "def x", "path": "src"}, "<code>def x in src</code>"),
        ("fetch_url", {"url": "https://example.org"}, "<code>https://example.org</code>"),
        ("mcp__garden__plant_all", {"what": "peas"}, ">garden: plant_all</b><code>peas</code>"),
        ("unheard_of", {"count": 3}, '<b title="unheard_of">unheard_of</b><code>3</code>'),
        ("look", '{"path": "as text"}', "<code>as text</code>"),
        ("look", "{not json", "<code>{not json</code>"),
        ("look", ["a"], '<b title="look">look</b><small>'),
        ("look", None, '<b title="look">look</b><small>'),
    ],
)
def test_the_summary_line_shows_the_main_argument(name: str, arguments: Any, line: str) -> None:
    for payload in (
        ToolCallStarted(call_id="a", name=name, arguments=arguments),
        ToolCallCompleted(call_id="a", name=name, ok=True, arguments=arguments),
    ):
        assert line in render(payload)


def test_the_rows_of_a_call_share_its_id() -> None:
    started = render(ToolCallStarted(call_id="a", name="x", call=CALL))
    decided = render(
        Info(
            text="",
            kind="approval",
            code="approval_decided",
            data={"call": CALL, "call_id": "a", "decision": "once", "by": "ann"},
        )
    )
    rows = [started, asked(), decided, completed()]
    for step, html in enumerate(rows, 1):
        assert f'data-call="{CALL}" data-step="{step}"' in html
    old = render(ToolCallStarted(call_id="a", name="x"))
    assert 'data-call="a" data-step="1"' in old
    assert "/tools/" not in old


def test_a_result_without_arguments_gets_those_of_its_call() -> None:
    started = [
        render(ToolCallStarted(call_id=id, name="Bash", arguments={"command": f"cat {id}"}))
        for id in ("<a>", "b")
    ]
    results = [
        render(ToolCallCompleted(call_id=id, name="Bash", ok=True, output=f"of {id}"))
        for id in ("<a>", "b")
    ]
    marked = show_rows([*started, *results])
    assert '<b title="Bash">Bash</b><code>cat &lt;a&gt;</code><small>' in marked[2]
    assert text_of(marked[2]) == text_of(
        render(
            ToolCallCompleted(
                call_id="<a>",
                name="Bash",
                ok=True,
                output="of <a>",
                arguments={"command": "cat <a>"},
            )
        )
    )
    assert "cat b" in marked[3]
    assert "cat b" not in marked[2]
    told = [render(ToolCallStarted(call_id="c", name="x", call=CALL)), completed()]
    assert show_rows(told)[1] == told[1]


def test_an_argument_without_a_name_is_shown() -> None:
    row = render(ToolCallStarted(call_id="a", name="x", arguments={"": "to be seen", "b": "c"}))
    assert "to be seen" in row.partition("<pre")[2]


CALLS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=12)


@given(CALLS)
def test_earlier_rows_of_a_call_are_settled(steps: list[tuple[str, int]]) -> None:
    """The last row of a call is never settled, and it settles the earlier rows.

    Only a decision leaves the row of the call's start beside it.
    """
    rows = [
        f'<article class="row" data-seq="{n}" data-call="{call}" data-step="{step}"></article>'
        for n, (call, step) in enumerate(steps)
    ]
    marked = show_rows(["<p>a line</p>", *rows])[1:]
    kept = ["settled" not in html for html in marked]
    for place, (call, step) in enumerate(steps):
        later = next((s for c, s in steps[place + 1 :] if c == call), None)
        if later in (None, 1) or step == 4:
            assert kept[place]
        if later == 4 and step != 4:
            assert not kept[place]
    assert [html.replace('class="row settled"', 'class="row"') for html in marked] == rows


def test_the_question_and_the_result_settle_earlier_rows() -> None:
    rows = [
        render(ToolCallStarted(call_id="a", name="x", call=CALL)),
        asked(),
        render(Info(text="x", code="approval_decided", data={"call": CALL})),
        completed(),
    ]
    kept = [
        [place for place, html in enumerate(show_rows(rows[:count])) if " settled" not in html]
        for count in range(1, 5)
    ]
    assert kept == [[0], [1], [0, 2], [3]]


def test_the_answer_settles_the_question_of_a_tool_server() -> None:
    question = {"id": "q", "call": CALL, "server": "almanac", "message": "Your name?"}
    question |= {"url": "", "fields": []}
    answer = {"question": "q", "content": {"name": "Bob"}}
    rows = [
        render(Info(text="?", kind="approval", code=QUESTION_ASKED, data=question)),
        render(Info(text="x", code=QUESTION_ANSWERED, data=answer)),
    ]
    assert ["Your name?" in rows[0], "Bob" in rows[1]] == [True, True]
    assert [" settled" in html for html in show_rows(rows)] == [True, False]


# Contents


def test_an_edit_shows_the_diff_and_not_the_two_texts() -> None:
    html = completed(
        name="edit_file",
        arguments={"path": "src/app.py", "old_text": "was here", "new_text": "is here"},
        diff=DIFF,
        output="Edited src/app.py.",
    )
    assert "Changes +2 −2" in html
    assert "was here" not in html
    assert "is here" not in html
    failed = completed(
        name="edit_file",
        ok=False,
        arguments={"path": "src/app.py", "old_text": "was here", "new_text": "is here"},
        error="Not found.",
    )
    assert "was here" in failed


def test_a_diff_has_line_numbers_and_marks_changed_words() -> None:
    diff = render_diff(DIFF, most_lines=100, most_chars=10_000)
    assert (diff.added, diff.removed, diff.left_out) == (2, 2, 0)
    assert '<span class="df">src/app.py\n</span>' in diff.html
    assert '<span class="dd" data-n="2">-    return dig(what, <em>1</em>)\n</span>' in diff.html
    assert '<span class="da" data-n="2">+    return dig(what, <em>2</em>)\n</span>' in diff.html
    assert '<span class="dd" data-n="3">--- a/not/a/header\n</span>' in diff.html
    assert '<span class="da" data-n="3">+++ nor this\n</span>' in diff.html


@pytest.mark.parametrize(
    ("head", "shown_as"),
    [
        ("--- /dev/null\n+++ b/new.py\n", "new.py (new)"),
        ("--- a/old.py\n+++ /dev/null\n", "old.py (removed)"),
        ("--- a/old.py\n+++ b/new.py\n", "old.py → new.py"),
        ("diff --git a/x b/x\nindex 1..2\n--- a/x\t2026\n+++ b/x\t2026\n", "x"),
    ],
)
def test_a_diff_names_its_file(head: str, shown_as: str) -> None:
    diff = render_diff(head + "@@ -1 +1 @@\n-a\n+b\n", most_lines=9, most_chars=999)
    assert fill_marks(diff.html).startswith(f'<span class="df">{shown_as}\n</span>')
    with override("de"):
        german = shown_as.replace("new)", "neu)").replace("removed)", "entfernt)")
        assert fill_marks(diff.html).startswith(f'<span class="df">{german}\n</span>')


def test_a_long_diff_is_cut_and_counted() -> None:
    body = "".join(f"+line {number}\n" for number in range(500))
    html = completed(diff=f"--- /dev/null\n+++ b/x\n@@ -0,0 +1,500 @@\n{body}")
    assert "Changes +500 −0" in html
    assert f'<a href="{RECORD}" data-action="panel">Show more (352 more lines)</a>' in html
    assert "line 499" not in html


def test_the_row_names_the_person_who_decided() -> None:
    assert "Allowed once by ann" in completed(decision="once", decided_by="ann")
    denied = completed(
        ok=False, state="denied", decision="deny", decided_by="ann", reason="Not <now>."
    )
    assert "Denied by ann: Not &lt;now&gt;." in denied
    assert "Allowed" not in completed(decision="policy")


def test_a_long_output_links_to_its_rest() -> None:
    output = "\n".join(map(str, range(1000)))
    html = completed(output=output, output_chars=900_000)
    assert f'<a href="{RECORD}output/" data-action="more">Show more (900 KB)</a>' in html
    assert "\n9\n" in html
    assert "\n10\n" not in html
    failed = completed(ok=False, error=output, output_chars=900_000)  # a failed row shows more
    assert "\n39\n" in failed
    assert "\n40\n" not in failed
    known = completed(ok=False, error=output)  # the output is whole, so its end is shown
    assert '\n9\n\n<span class="gap">⋯</span>\n970\n' in known
    assert "\n999</code>" in known
    without = completed(output=output, call="")
    assert f'<a href="/s/{SESSION}/t/3/output/" data-action="more">' in without
    assert "Show more" not in completed(output="short\n" * 40)
    assert "Show more (9 KB)" in completed(output="short\n" * 40, output_chars=9000)
    assert "No output" in completed()


def test_the_pages_of_an_output_hold_all_of_it_once() -> None:
    lines = (f"line {number} {'x' * (number % 300)}\n" for number in range(900))
    text = "".join(lines) + "y" * 50_000
    start: int | None = 0
    found = ""
    while start is not None:
        page = render_output_page(text, name="x", start=start, session=SESSION)
        assert page.html.count("\n") <= 200
        assert len(page.html) <= 20_000
        found, start = found + page.html, page.next
    assert found == text


def test_a_page_continues_the_colour_and_cuts_no_escape_sequence() -> None:
    text = "\x1b[1;31m" + "r" * 19_990 + "\x1b[0m\x1b[32m green"
    first = render_output_page(text, name="x", start=0, session=SESSION)
    assert "[" not in first.html
    assert first.next is not None
    second = render_output_page(text, name="x", start=first.next, session=SESSION)
    assert second.html == '<span class="f2"> green</span>'
    middle = render_output_page(text, name="x", start=100, session=SESSION)
    assert middle.html.startswith('<span class="tb f1">rrr')


# Terminals


def test_terminal_codes_are_rendered() -> None:
    for text, html in [
        ("\x1b[31mred\x1b[0m plain", '<span class="f1">red</span> plain'),
        ("\x1b[1;92mok\x1b[22;39m.", '<span class="tb f10">ok</span>.'),
        ("\x1b[38;5;196mx\x1b[m", '<span class="f9">x</span>'),
        ("\x1b[38;5;244mx\x1b[m", '<span class="f8">x</span>'),
        ("\x1b[38;2;20;180;40mx", '<span class="f2">x</span>'),
        ("\x1b[38:2::20:180:40mx", '<span class="f2">x</span>'),
        ("\x1b[41;97mx\x1b[49mx", '<span class="b1">x</span><span class="f15">x</span>'),
        ("\x1b[7;31mx\x1b[27my", '<span class="tv">x</span><span class="f1">y</span>'),
        ("\x1b[3;4;9;2mx", '<span class="td ti tu ts">x</span>'),
        ("\x1b[999;38;5mx\x1b[38mx", "xx"),
        ("\x9b31mred", '<span class="f1">red</span>'),
        ("\x1b]0;title\x07a\x1b]8;;http://evil\x1b\\b\x1b]8;;\x1b\\", "ab"),
        ("\x1bP1$q\x1b\\a\x1b_payload\x1b\\b\x1b^x\x1b\\c", "abc"),
        ("a\x1b[2J\x1b[10;10H\x1b[?25l\x1b[5Ab\x1bc\x1b(Bc", "abc"),
        ("10 %\r50 %\r100 % done\nnext", "100 % done\nnext"),
        ("long word\rshort", "shortword"),
        ("downloading 1\r\x1b[Kdone\n", "done\n"),
        ("abc\x1b[1K\rx\x1b[2Ky", " y"),
        ("ab\b\bX", "Xb"),
        ("\x1b[31mab\r\x1b[32mX\x1b[0m", '<span class="f2">X</span><span class="f1">b</span>'),
        ("one\r\r\ntwo\r\n", "one\ntwo\n"),
        ("a\x00\x07\x7f\x1b", "a\ufffd␇␡␛"),
        ("rm\u202etxt.exe", 'rm<span class="ctl">U+202E</span>txt.exe'),
        ("\u200bzero\ufeff", '<span class="ctl">U+200B</span>zero<span class="ctl">U+FEFF</span>'),
        ("👩‍👧 é שלום", "👩‍👧 é שלום"),
        ("<script>&amp;", "&lt;script&gt;&amp;amp;"),
    ]:
        assert shown(text) == html, (text, html)


HOSTILE = {
    "one line": "x" * 300_000,
    "lines": "\n" * 300_000,
    "a colour a letter": "".join(f"\x1b[3{n % 8}mx" for n in range(50_000)),
    "returns": "ab\r" * 40_000,
    "backspaces": "a\b" * 150_000,
    "erasing": "abc\r\x1b[2K" * 40_000,
    "endless titles": "\x1b]0;" * 70_000,
    "half sequences": "\x1b[" * 150_000,
    "C1": "\x9d" * 300_000,
    "order": "\u202e" * 150_000,
    "markup": "<b>&" * 80_000,
    "numbers": "\x1b[" + "1;" * 120_000 + "m",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_row_of_a_hostile_call_stays_small(text: str) -> None:
    arguments = {"command": text, "path": text, "x": {"y": text}}
    html = completed(name=text[:255], output=text, diff=text, arguments=arguments)
    assert len(html.encode()) < 100_000
    assert len(completed(output=text).encode()) < 32_000
    page = render_output_page(text, name="x", start=0, session=SESSION)
    check(f"<pre>{page.html}</pre>")
    assert len(page.html) < 250_000


def test_the_row_of_a_megabyte_of_output_stays_small() -> None:
    output = "".join(f"{number} {'word ' * 12}\n" for number in range(16_000))
    assert len(output) > 1_000_000
    html = completed(
        arguments={"command": "make"}, output=output[:20_000], output_chars=len(output)
    )
    assert len(html.encode()) < 5000


@costly
@given(
    name=any_text, text=any_text, arguments=st.one_of(any_text, st.dictionaries(any_text, any_text))
)
def test_no_field_can_inject_elements_or_attributes(name: str, text: str, arguments: Any) -> None:
    evil = f"<script>alert(1)</script>\"'><img src=x onerror=y>{text}"
    data = dict.fromkeys(
        ("name", "summary", "command", "diff", "note", "kind_label", "by", "reason"), evil
    )
    rows = (
        ToolCallStarted(call_id=evil, name=name + evil, arguments=arguments, call=evil),
        ToolCallCompleted(
            call_id=evil,
            name=evil + name,
            ok=False,
            output=evil,
            error=evil,
            diff=f"--- {evil}\n+++ {evil}\n@@ -1 +1 @@\n-{evil}\n+{evil}\n{evil}",
            arguments=arguments,
            call=evil,
            state=evil,
            decision="deny",
            decided_by=evil,
            reason=evil,
        ),
        Info(text="?", code="approval_asked", data=data | {"call": CALL}),
        Info(text="?", code="approval_asked", data=data | {"call": evil}),
        Info(text="?", code="approval_decided", data=data | {"call": evil, "decision": "deny"}),
        ContentIndicator(label=evil, kind=evil, media_type=evil, attachment=evil),
        UserMessage(text="x", attachments=[evil, {"name": evil, "attachment": evil}, 3]),
    )
    for payload in rows:
        checker = check(render_row(payload, place=PLACE))
        assert not checker.tags & {"script", "img"}
        assert not any(name.startswith("on") or name == "style" for name in checker.attributes)


@given(any_text, st.integers(0, 40), st.integers(1, 60))
def test_any_text_can_be_shown_and_cut(text: str, lines: int, chars: int) -> None:
    found = render_terminal(text, most_lines=lines, most_chars=chars, most_spans=5)
    check(f"<pre>{found.html}</pre>")
    diff = render_diff(text, most_lines=lines, most_chars=chars)
    check(f"<pre>{diff.html}</pre>")


# The question


def test_the_card_shows_the_command_and_the_answers() -> None:
    html = asked(
        command="rm -rf build\nmake",
        note="Outside the sandbox",
        kind_label="“rm” with any arguments",
    )
    assert '<pre class="command" tabindex="0"><code>rm -rf build\nmake</code></pre>' in html
    assert "Outside the sandbox" in html
    assert f'form="act" formaction="{RECORD}approve/" data-action="approve">Approve<' in html
    assert (
        'name="always" value="1" data-action="approve">Always allow “rm” with any arguments' in html
    )
    assert f'form="act" formaction="{RECORD}deny/" data-action="deny">Deny<' in html
    assert "Always" not in asked(command="a; b")
    hidden = asked(summary="", name="<b>\u202e", note="\u202e", kind_label="\u202e")
    assert hidden.count('<span class="ctl">U+202E</span>') == 2
    assert "Always allow U+202E<" in hidden
    assert "&lt;b&gt;" in hidden


def test_the_card_of_an_edit_shows_the_diff() -> None:
    html = asked(name="edit_file", summary="src/app.py", diff=DIFF)
    assert "<small>+2 −2</small>" in html
    assert "return dig(what, <em>2</em>)" in html


def test_a_card_that_is_cut_links_to_the_whole() -> None:
    html = asked(command="x" * 30_000)
    assert "10\u202f000 more characters" in html
    assert f'<a href="{RECORD}" data-action="panel">Show in full</a>' in html


@pytest.mark.parametrize("data", [None, {}, {"call": "no uuid"}, {"call": 3}])
def test_a_question_without_a_valid_call_is_a_notice(data: Any) -> None:
    for code in ("approval_asked", "approval_decided"):
        html = render(Info(text="Something was asked.", kind="approval", code=code, data=data))
        assert "Something was asked.</p>" in html
        assert "<button" not in html


# Rows of earlier versions


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ('{"tool_name": "grep", "args": {"pattern": "x"}, "success": true}', "x Done"),
        ('{"name": "bash", "input": {"command": "ls"}, "ok": false, "error": "no"}', "ls Failed"),
        ('{"output": "an orphan"}', "tool Outcome unknown"),
        ('{"name": "x", "args": "{\\"path\\": \\"a.py\\"}", "elapsed_ms": 12}', "a.py 12 ms"),
        ('{"name": "x", "result": {"rows": 3}, "ok": true}', '{"rows":3}'),
        ('{"name": "x", "state": 5, "diff": 7, "exit_code": "one"}', "x"),
    ],
)
def test_calls_of_earlier_versions_are_readable(payload: str, words: str) -> None:
    found = parse_payload("tool_call_completed", payload)
    text = " ".join(text_of(render(found).replace("<", " <")).split())
    for word in words.split(" "):
        assert word in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"success": true, "output": "fine", "error": null}', ("Done", "fine")),
        ('{"success": false, "output": "", "error": "broken"}', ("Failed", "broken")),
        ('{"success": "maybe"}', ("Outcome unknown", "maybe")),
        ("{damaged", ("Outcome unknown", "{damaged")),
        ("", ("Outcome unknown", "No output")),
    ],
)
def test_a_result_without_a_call_is_readable(content: str, words: tuple[str, str]) -> None:
    turn = StoredTurn(
        number=3,
        role="tool",
        content=content,
        blocks=None,
        tool_calls=None,
        tool_call_id=None,
        tool_name=None,
        token_count=0,
        stop_reason="",
        complete=True,
        metadata="{}",
        created_at=PLACE.created_at,
    )
    [payload] = synthesise_rows(turn)
    text = text_of(render(payload))
    assert all(word in text for word in words)


# Files


def test_an_image_is_a_thumbnail_that_links_to_it() -> None:
    html = render(
        ContentIndicator(
            label="plan.png", kind="image", media_type="image/png", size=20_480, attachment=CALL
        )
    )
    url = f"/s/{SESSION}/attachments/{CALL}/"
    link = f'<a href="{url}" data-action="view" title="plan.png">'
    assert f'{link}<img src="{url}thumb/" alt="plan.png" loading="lazy"></a>' in html
    assert "<small>image/png</small><small>20 KB</small>" in html
    assert "not available" not in html
    told = render(ContentIndicator(label="plan.png", kind="image"))
    assert "<img" not in told
    assert "<small>not available</small>" in told
    message = UserMessage(
        text="See",
        attachments=[{"name": "plan.png", "kind": "image", "attachment": CALL}, "old.txt"],
    )
    html = render(message)
    assert f'<img src="{url}thumb/"' in html
    assert "<b>old.txt</b>" in html


def test_long_texts_in_questions_and_answers_are_cut() -> None:
    """Texts of an imported row can have any length."""
    long = "x" * 5_000
    card = asked(summary=long, note=long, kind_label=long)
    assert [len(run) for run in re.findall("x{99,}", card)] == [1000, 1000, 300]
    data = {"call": CALL, "decision": "other"}
    decided = render_row(Info(text=long, code="approval_decided", data=data), place=PLACE)
    assert [len(run) for run in re.findall("x{99,}", decided)] == [2500]
    answered = Info(text=long, code="question_answered", data={"question": "q", "content": {}})
    html = render_row(answered, place=PLACE)
    assert [len(run) for run in re.findall("x{99,}", html)] == [2000]
