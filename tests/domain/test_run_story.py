"""Run transcripts, which are the same in whichever way they are read."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.errors import Rejected
from conversations.domain.run_transcript import (
    DELTA,
    ROW,
    AnswerPart,
    RunTranscriptReader,
    StreamCursor,
    StreamEvent,
    StreamRow,
    cut_pieces,
    parse_stream_cursor,
    parts_of_turn,
)
from conversations.domain.text import dump_json

TEXTS = st.text(st.sampled_from("ab \n\téß日本🧵"), max_size=300)


@given(TEXTS)
def test_the_pieces_add_up_to_the_text_unless_it_is_blank(text: str) -> None:
    pieces = list(cut_pieces(text, 0, is_whole=True))
    assert "".join(pieces) == (text if text.strip() else "")
    assert all(piece.strip() for piece in pieces[:-1])


@given(TEXTS, st.integers(0, 300))
def test_later_text_changes_no_earlier_piece(text: str, length: int) -> None:
    pieces = list(cut_pieces(text, 0, is_whole=True))
    early = list(cut_pieces(text[:length], 0, is_whole=False))
    assert early == pieces[: len(early)]


@given(TEXTS, st.data())
def test_cutting_from_the_end_of_a_piece_gives_the_same_rest(
    text: str, data: st.DataObject
) -> None:
    pieces = list(cut_pieces(text, 0, is_whole=True))
    told = data.draw(st.integers(0, len(pieces)))
    offset = len("".join(pieces[:told]))
    assert list(cut_pieces(text, offset, is_whole=True)) == pieces[told:]


def test_a_line_or_some_words_or_forty_characters_are_a_piece() -> None:
    text = "One\ntwo three four five six\n\n" + "x" * 90 + " end"
    assert list(cut_pieces(text, 0, is_whole=True)) == [
        "One\n",
        "two three four ",
        "five six\n",
        "\n" + "x" * 40,
        "x" * 40,
        "x" * 10 + " end",
    ]


ANSWERS = st.lists(
    st.lists(
        st.builds(AnswerPart, st.sampled_from(["text", "thinking"]), TEXTS.filter(bool)), max_size=3
    ),
    min_size=1,
    max_size=3,
)


@given(ANSWERS, st.data())
def test_a_reader_can_resume_after_any_event(
    answers: list[list[AnswerPart]], data: st.DataObject
) -> None:
    """The events read live, from any states of the draft, equal those read all at once."""
    rows = [_row(seq, answer) for seq, answer in enumerate(answers, 5)]
    whole = list(RunTranscriptReader(StreamCursor()).events_of_rows(rows))
    live = list(_follow(rows, data))
    assert live == whole
    told = data.draw(st.integers(0, len(whole)))
    place = parse_stream_cursor(whole[told - 1].id) if told else StreamCursor()
    left = [row for row in rows if row.seq > place.row]
    assert list(RunTranscriptReader(place).events_of_rows(left)) == whole[told:]


def _row(seq: int, answer: list[AnswerPart]) -> StreamRow:
    return StreamRow(seq=seq, data={"seq": seq}, answer=tuple(answer))


def _follow(rows: list[StreamRow], data: st.DataObject) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    place = StreamCursor()
    for row in rows:
        story = RunTranscriptReader(place)  # as in another connection or process
        text = sum(len(part.text) for part in row.answer)
        for seen in sorted(data.draw(st.lists(st.integers(0, text), max_size=4))):
            events += story.events_of_answer(_beginning(row.answer, seen), is_whole=False)
            story = RunTranscriptReader(parse_stream_cursor(str(story.place)))
        events += story.events_of_rows([row])
        place = story.place
    return events


def _beginning(parts: tuple[AnswerPart, ...], length: int) -> list[AnswerPart]:
    found = []
    for part in parts:
        if length > 0:
            found.append(AnswerPart(part.kind, part.text[:length]))
        length -= len(part.text)
    return found


def test_an_answer_comes_before_its_row() -> None:
    events = list(
        RunTranscriptReader(StreamCursor(2)).events_of_rows(
            [_row(3, [AnswerPart("thinking", "Hm."), AnswerPart("text", "Yes.")])]
        )
    )
    assert [(event.id, event.kind) for event in events] == [
        ("2.0.3", DELTA),
        ("2.1.4", DELTA),
        ("3", ROW),
    ]
    assert events[1].data == {"kind": "text", "part": 1, "offset": 0, "text": "Yes."}


@pytest.mark.parametrize("text", ["", "x", "-1", "1.2", "1.2.3.4", "9" * 19, "１"])
def test_an_invalid_event_id_is_refused(text: str) -> None:
    with pytest.raises(Rejected):
        parse_stream_cursor(text)


def _turn(**fields: object) -> SimpleNamespace:
    return SimpleNamespace(
        **{"content": "", "blocks": None, "complete": True, "metadata": "{}"} | fields
    )


def test_the_parts_of_a_whole_answer_are_its_blocks() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "text", "text": ""},
        {"type": "text", "text": "Yes\0"},
        {"type": "tool_use", "name": "look", "input": {}},
    ]
    parts = parts_of_turn(_turn(blocks=dump_json(blocks)))
    assert parts == (
        AnswerPart("thinking", "Hm."),
        AnswerPart("text", "Yes\N{REPLACEMENT CHARACTER}"),
    )


def test_the_parts_of_a_partial_answer_keep_their_order() -> None:
    metadata = {
        "thinking": "a\n\nb",
        "parts": [["text", 1], ["thinking", 1], ["text", 0], ["thinking", 1]],
    }
    parts = parts_of_turn(_turn(content="c\n\n", complete=False, metadata=dump_json(metadata)))
    assert parts == (
        AnswerPart("text", "c"),
        AnswerPart("thinking", "a"),
        AnswerPart("thinking", "b"),
    )
    older = parts_of_turn(_turn(content="c", complete=False, metadata='{"thinking":"a"}'))
    assert older == (AnswerPart("thinking", "a"), AnswerPart("text", "c"))
    assert parts_of_turn(_turn(complete=False, metadata="[")) == ()
