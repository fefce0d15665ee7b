"""Messages as templates with values: translation, and safety against forged marks."""

from dataclasses import fields, replace
from datetime import UTC, datetime
from html import escape
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from django.utils.translation import override
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.events import (
    AssistantText,
    ContentIndicator,
    Fallback,
    Info,
    Payload,
    ToolCallCompleted,
    ToolCallStarted,
    TurnSeparator,
    UserMessage,
    dump_payload,
    event_type_of,
    parse_payload,
)
from conversations.domain.messages import Message, message_data, read_message, say, say_number
from conversations.domain.tool_questions import QUESTION_ANSWERED, QUESTION_ASKED
from conversations.rendering.messages import fill_marks, mark, mark_text, translate
from conversations.rendering.rows import RowPosition, render_queue, render_row
from conversations.rendering.source_text import MARK_END, MARK_PART, MARK_START
from conversations.rendering.streaming import ALL, BlockStream
from conversations.rendering.tool_rows import tool_word

PLACE = RowPosition(
    session=UUID("11111111-2222-4333-8444-555555555555"),
    seq="7",
    turn="3",
    created_at=datetime(2026, 3, 1, tzinfo=UTC),
)
MORE = say_number("%(count)s more line", "%(count)s more lines", 3)
FAILED = say("%(told)s: %(why)s", told=say("Denied by %(person)s", person="<Ann & co>"), why="100%")


def test_a_message_is_its_english_text() -> None:
    assert (MORE, FAILED) == ("3 more lines", "Denied by <Ann & co>: 100%")
    assert say("50 % done") == "50 % done"


@pytest.mark.parametrize("message", [MORE, FAILED])
def test_a_message_is_stored_with_its_template_and_values(message: Message) -> None:
    read = parse_payload("info", dump_payload(Info(text=message)))
    assert isinstance(read, Info)
    assert isinstance(read.text, Message)
    assert (read.text, message_data(read.text)) == (message, message_data(message))


@pytest.mark.parametrize(
    "data",
    [
        *(None, 1, "x", [], {}, {"template": 1}),
        {"template": "%(a)s", "values": {"b": 1}},
    ],
)
def test_invalid_data_is_read_as_an_empty_message(data: object) -> None:
    assert read_message(data) == ""


def test_stored_templates_can_do_nothing_but_take_values() -> None:
    assert read_message({"template": "%(a)999999999s %s %d", "values": {"a": 1}}) == (
        "%(a)999999999s %s %d"
    )


def test_a_message_is_translated_to_the_active_language() -> None:
    with override("de"):
        assert translate(MORE) == "3 weitere Zeilen"
        assert translate(FAILED) == "Abgelehnt von <Ann & co>: 100%"
        assert fill_marks(mark(FAILED)) == "Abgelehnt von &lt;Ann &amp; co&gt;: 100%"
        assert translate("Denied") == "Denied"  # a person's or a program's own text
    assert translate(MORE) == MORE
    assert fill_marks(mark(FAILED)) == "Denied by &lt;Ann &amp; co&gt;: 100%"


def test_a_row_does_not_depend_on_the_active_language() -> None:
    payload = Info(text=FAILED, kind="error", action="retry", detail="x")
    with override("de"):
        html = render_row(payload, place=PLACE)
        shown = fill_marks(html)
    assert html == render_row(payload, place=PLACE)
    assert "Abgelehnt von" in shown
    assert "Erneut versuchen" in shown
    assert MARK_START not in shown


def test_text_from_elsewhere_is_not_formatted() -> None:
    """A provider's message is its own template, so nothing in it is replaced."""
    told = say('model "<b>" failed: 100 %(x)s &amp; %%')
    assert fill_marks(mark(told)) == escape(told)
    assert fill_marks(mark(say("%(told)s Retry.", told=told))) == f"{escape(told)} Retry."


def test_hidden_characters_in_values_are_made_visible() -> None:
    for message in (say("Denied by %(person)s", person="a\u202eb"), say("a\u202eb")):
        assert "aU+202Eb" in fill_marks(mark_text(message))


SIGNS = st.sampled_from([MARK_START, MARK_END, MARK_PART, "<", ">", '"', "%(a)s", "a=", "x", "\\"])


@given(st.lists(SIGNS).map("".join), st.lists(SIGNS).map("".join))
def test_a_forged_mark_stays_text(one: str, other: str) -> None:
    html = f'<p title="{mark(one)}">{mark(other)}</p>'
    shown = fill_marks(html)
    assert shown.count("<") == shown.count(">") == shown.count('"') == 2
    assert not MARKS.intersection(shown)


MARKS = {MARK_START, MARK_END, MARK_PART}
DENIED = f"{MARK_START}Denied{MARK_END}"


def nest(levels: int, number: str = "0") -> str:
    """Return a forged mark in which each level contains the level below it four times."""
    text = "x"
    for _ in range(levels):
        parts = ["%(a)s" * 4, "", number, f"a={text}"]
        text = f"{MARK_START}{MARK_PART.join(parts)}{MARK_END}"
    return text


CALL = "99999999-2222-4333-8444-555555555555"
FILE = {"name": "@", "label": "@", "kind": "@", "media_type": "@", "size": 1}
CALLED = {"call_id": "@", "name": "@", "arguments": {"@": "@", "command": "@"}, "call": "@"}
FIELD: dict[str, object] = {"name": "@", "title": "@", "description": "@", "default": "@"}
QUESTION = {"id": "@", "call": CALL, "server": "@", "message": "@"}
PROMPT = {"model": "@", "max_tokens": 5, "system": "@", "stop": []}
PROMPT |= {"messages": [{"role": "@", "text": "@"}]}
ASKED = {"name": "@", "summary": "@", "command": "@", "diff": "@@ -1 +1 @@\n-@\n+@\n", "note": "@"}


def notice(code: str = "@", **data: object) -> Info:
    return Info(text="@", kind="@", code=code, detail="@", action="@", run="@", data=data)


EVERY_ROW: list[Payload] = [
    UserMessage(text="@ `@`\n```@\n@\n```", by="@", attachments=["@", FILE]),
    AssistantText(text="@ <https://a.org/@> [@](https://@.org/@)\n\n```@\n@\n```", thinking="@"),
    ToolCallStarted(**CALLED),
    ToolCallStarted(call_id="@", name="conversation_recall", arguments={"query": "@"}),
    *(ToolCallCompleted(**CALLED, ok=ok, output="@", error="@", state="@") for ok in (True, False)),
    ToolCallCompleted(**CALLED, ok=True, diff="@@ -1 +1 @@\n-@\n+@\n", output="\x1b[31m@\r@"),
    ToolCallCompleted(**CALLED, state="denied", decision="deny", decided_by="@", reason="@"),
    ContentIndicator(label="@", kind="@", media_type="@", call_id="@", attachment="@"),
    TurnSeparator(run="@", state="@", stop_reason="@", model="@", cost_usd="@", input_tokens=1),
    notice(),
    Info(text=say("Denied by %(person)s", person="@")),
    notice("compacted", summary="@", model="@"),
    notice("approval_asked", call=CALL, call_id="@", kind_label="@", **ASKED),
    notice("approval_decided", call="@", decision="deny", by="@", reason="@"),
    notice(QUESTION_ASKED, **QUESTION, prompt=PROMPT),
    notice(QUESTION_ASKED, **QUESTION, url="https://@.org/@"),
    notice(QUESTION_ASKED, **QUESTION, fields=[FIELD | {"kind": kind} for kind in ("text", "one")]),
    notice(QUESTION_ANSWERED, question="@", content={"@": "@"}),
]


def write(payload: Payload, text: str) -> Payload:
    """Return the payload with the text in place of each ``@``."""

    def put(value: Any) -> Any:
        if isinstance(value, Message):
            return say(value.template, **put(value.values))
        if isinstance(value, dict):
            return {put(name): put(one) for name, one in value.items()}
        if isinstance(value, list):
            return [put(one) for one in value]
        return value.replace("@", text) if isinstance(value, str) else value

    return replace(payload, **{f.name: put(getattr(payload, f.name)) for f in fields(payload)})


@pytest.mark.parametrize("payload", EVERY_ROW, ids=event_type_of)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(DENIED, id="one"),
        pytest.param(nest(7), id="nested"),
        pytest.param(nest(1, "9" * 4500), id="large number"),
        pytest.param(f"\ud800{DENIED}", id="not encodable"),
        pytest.param(quote(DENIED), id="in an address"),
        pytest.param(MARK_START, id="half of one"),
    ],
)
def test_marks_in_a_payload_are_not_filled(payload: Payload, text: str) -> None:
    given = write(payload, text)
    html = render_row(given, place=PLACE)
    read = parse_payload(event_type_of(given), dump_payload(given))
    harmless = "".join("\ufffd" if sign in MARKS else sign for sign in text)
    with override("de"):
        shown = fill_marks(html)
        assert shown == fill_marks(render_row(write(payload, harmless), place=PLACE))
    assert html == render_row(read, place=PLACE)
    assert len(shown) < 100_000


@given(st.sampled_from(EVERY_ROW), st.lists(SIGNS).map("".join))
def test_random_marks_in_a_payload_are_not_filled(payload: Payload, text: str) -> None:
    harmless = "".join("\ufffd" if sign in MARKS else sign for sign in text)
    html, other = (render_row(write(payload, one), place=PLACE) for one in (text, harmless))
    assert fill_marks(html) == fill_marks(other)


def test_marks_in_an_unreadable_row_are_not_filled() -> None:
    html = render_row(Fallback(reason=DENIED, raw=nest(7)), place=PLACE)
    assert "\ufffdDenied\ufffd" in fill_marks(html)


def test_marks_in_a_queued_message_are_not_filled() -> None:
    files = [{"name": DENIED, "uuid": ""}]
    item = {"run": "r", "client_id": "c", "now": False, "text": nest(9), "attachments": files}
    item |= {"author": "1", "by": DENIED}
    with override("de"):
        shown = fill_marks(render_queue([item]))
    assert shown.count("\ufffdDenied\ufffd") == 2
    assert len(shown) < 5_000


def test_marks_in_the_name_of_a_tool_are_not_filled() -> None:
    assert tool_word(f"mcp__a__{DENIED}")[0] == "a: \ufffdDenied\ufffd"


def test_marks_are_filled_to_a_limited_depth() -> None:
    shown = fill_marks(nest(40))
    assert len(shown) < 100_000
    assert not MARKS.intersection(shown)
    assert fill_marks(nest(1, "9" * 4500)) == "xxxx"


def test_a_stored_message_has_a_limited_size() -> None:
    data: Any = {"template": "x"}
    for levels in range(1, 2_000):
        data = {"template": "%(a)s" * 4, "values": {"a": data}}
        if levels in (3, 1_999):
            assert read_message(data) == ("x" * 64 if levels == 3 else "")
    wide = {"template": "%(a)s" * 1_000, "values": {"a": "x" * 1_000}}
    assert read_message(wide) == ""


def test_a_block_with_a_mark_in_its_end_is_replaced_as_a_whole() -> None:
    """The length of the block's end differs between languages, so a patch cannot count from it."""
    stream = BlockStream()
    patches = []
    for delta in ("- a\n- b[^1]", " c", "\n\n  d"):
        stream.feed(delta)
        patches.append(stream.patch())
    assert MARK_START in patches[0][1]
    assert patches[1][1].startswith(" c")
    assert patches[2] == (ALL, stream.open_html())


def test_an_empty_answer_is_named_in_the_readers_language() -> None:
    end = TurnSeparator(state="failed", stop_reason="empty_answer")
    row = render_row(end, place=PLACE)
    with override("de"):
        assert "leere Antwort" in fill_marks(row)
