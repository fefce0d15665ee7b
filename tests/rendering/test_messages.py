"""Sentences as data: said in any language, and harmless whatever they are made of."""

import json
from datetime import UTC, datetime
from html import escape
from uuid import UUID

import pytest
from django.utils.translation import override
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.events import Info, UserMessage, dump_payload, parse_payload
from conversations.domain.messages import Message, message_data, read_message, say, say_number
from conversations.rendering.messages import fill_marks, mark, mark_text, translate
from conversations.rendering.rows import RowPosition, render_row
from conversations.rendering.source_text import MARK_END, MARK_PART, MARK_START
from conversations.rendering.streaming import ALL, BlockStream

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
def test_it_is_stored_with_what_it_is_made_of(message: Message) -> None:
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
def test_other_data_are_no_message(data: object) -> None:
    assert read_message(data) == ""


def test_stored_templates_can_do_nothing_but_take_values() -> None:
    assert read_message({"template": "%(a)999999999s %s %d", "values": {"a": 1}}) == (
        "%(a)999999999s %s %d"
    )


def test_it_is_said_in_the_language_that_is_active() -> None:
    with override("de"):
        assert translate(MORE) == "3 weitere Zeilen"
        assert translate(FAILED) == "Abgelehnt von <Ann & co>: 100%"
        assert fill_marks(mark(FAILED)) == "Abgelehnt von &lt;Ann &amp; co&gt;: 100%"
        assert translate("Denied") == "Denied"  # a person's or a program's own text
    assert translate(MORE) == MORE
    assert fill_marks(mark(FAILED)) == "Denied by &lt;Ann &amp; co&gt;: 100%"


def test_a_row_is_the_same_whoever_makes_it() -> None:
    payload = Info(text=FAILED, kind="error", action="retry", detail="x")
    with override("de"):
        html = render_row(payload, place=PLACE)
        shown = fill_marks(html)
    assert html == render_row(payload, place=PLACE)
    assert "Abgelehnt von" in shown
    assert "Erneut versuchen" in shown
    assert MARK_START not in shown


def test_a_frame_of_many_pages_is_json_in_each_language() -> None:
    frame = json.dumps({"html": mark(FAILED), "other": 'a "b" \\ '}, ensure_ascii=False)
    with override("de"):
        told = json.loads(fill_marks(frame, in_json=True))
    assert told == {"html": "Abgelehnt von &lt;Ann &amp; co&gt;: 100%", "other": 'a "b" \\ '}


def test_a_sentence_of_others_stays_as_it_is() -> None:
    """A provider's, for instance: it is its own template, whatever is in it."""
    told = say('model "<b>" failed: 100 %(x)s &amp; %%')
    assert fill_marks(mark(told)) == escape(told)
    assert fill_marks(mark(say("%(told)s Retry.", told=told))) == f"{escape(told)} Retry."


def test_what_is_hidden_is_seen_in_values() -> None:
    for message in (say("Denied by %(person)s", person="a\u202eb"), say("a\u202eb")):
        assert "aU+202Eb" in fill_marks(mark_text(message))


SIGNS = st.sampled_from([MARK_START, MARK_END, MARK_PART, "<", ">", '"', "%(a)s", "a=", "x", "\\"])


@given(st.lists(SIGNS).map("".join), st.lists(SIGNS).map("".join))
def test_a_forged_mark_stays_text(one: str, other: str) -> None:
    html = f'<p title="{mark(one)}">{mark(other)}</p>'
    shown = fill_marks(html)
    assert shown.count("<") == shown.count(">") == shown.count('"') == 2
    frame = json.dumps({"a": one, "b": [other]}, ensure_ascii=False)
    assert set(json.loads(fill_marks(frame, in_json=True))) == {"a", "b"}


def test_no_text_of_a_person_has_a_mark() -> None:
    forged = f"{MARK_START}Denied{MARK_END}"
    for text in (forged, f"`{forged}`", f"```\n{forged}\n```"):
        assert forged not in render_row(UserMessage(text=text), place=PLACE)


def test_a_block_whose_end_has_words_gives_way_as_a_whole() -> None:
    """Counted from its end, it would have another length in each language."""
    stream = BlockStream()
    patches = []
    for delta in ("- a\n- b[^1]", " c", "\n\n  d"):
        stream.feed(delta)
        patches.append(stream.patch())
    assert MARK_START in patches[0][1]
    assert patches[1][1].startswith(" c")
    assert patches[2] == (ALL, stream.open_html())
