"""The parser of server-sent events, which does not depend on how bytes are cut into chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.providers.sse import SseEvent, SseParser


def parse(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def cut(data: bytes, positions: list[int]) -> list[bytes]:
    ends = sorted({position % (len(data) + 1) for position in positions})
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_at_lf_crlf_and_cr(end: str) -> None:
    stream = f"event: ping{end}data: 1{end}{end}data: 2{end}{end}".encode()
    assert parse(stream) == [SseEvent("ping", "1"), SseEvent("message", "2")]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_lines_end_at_no_other_characters(mark: str) -> None:
    assert parse(f"data: a{mark}b\n\n".encode()) == [SseEvent("message", f"a{mark}b")]


def test_several_data_lines_are_joined() -> None:
    assert parse(b"data: a\ndata:\ndata:  b\n\n") == [SseEvent("message", "a\n\n b")]


def test_comments_and_other_fields_are_ignored() -> None:
    stream = b": hello\nretry: 10\nnonsense\ndata: a\n:\n\n"
    assert parse(stream) == [SseEvent("message", "a")]


def test_an_id_applies_until_the_next_one() -> None:
    stream = b"id: 7\ndata: a\n\ndata: b\n\nid: 8\n\nid: 9\0\ndata: c\n\nid\ndata: d\n\n"
    assert [(event.data, event.last_id) for event in parse(stream)] == [
        ("a", "7"),
        ("b", "7"),
        ("c", "8"),
        ("d", ""),
    ]


def test_an_event_without_data_is_ignored() -> None:
    assert parse(b"event: ping\n\n\n\ndata: a\n\n") == [SseEvent("message", "a")]


def test_a_byte_order_mark_is_dropped_at_the_start_only() -> None:
    mark = "\ufeff".encode()
    assert parse(mark + b"data: a\n\n") == [SseEvent("message", "a")]
    assert parse(*[bytes([b]) for b in mark + b"data: a\n\n"]) == [SseEvent("message", "a")]
    assert parse(b"data: a\n\n" + mark + b"data: b\n\n") == [SseEvent("message", "a")]


def test_an_unfinished_event_at_the_end_is_dropped() -> None:
    assert parse(b"data: a\n\ndata: b\n") == [SseEvent("message", "a")]


def test_crlf_may_be_split_between_chunks() -> None:
    assert parse(b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n") == [
        SseEvent("message", "a"),
        SseEvent("message", "b"),
    ]
    assert parse(b"data: a\r", b"", b"\n", b"data: b\n\n") == [SseEvent("message", "a\nb")]


def test_characters_may_be_split_between_chunks() -> None:
    data = "data: é€😀\n\n".encode()
    assert parse(*[bytes([b]) for b in data]) == [SseEvent("message", "é€😀")]


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    assert parse(b"data: a\xffb\n\n") == [SseEvent("message", "a\ufffdb")]


line_ends = st.sampled_from(["\n", "\r\n", "\r"])
words = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8)
lines = st.one_of(
    st.just(""),
    words,
    st.builds("data:{}".format, words),
    st.builds("event: {}".format, words),
    st.builds(":{}".format, words),
)


@given(
    st.lists(st.tuples(lines, line_ends), max_size=20),
    st.booleans(),
    st.lists(st.integers(0, 10_000), max_size=30),
)
def test_any_chunks_give_the_same_events(
    parts: list[tuple[str, str]], has_mark: bool, positions: list[int]
) -> None:
    text = ("\ufeff" if has_mark else "") + "".join(line + end for line, end in parts)
    data = text.encode()
    assert parse(*cut(data, positions)) == parse(data)
    assert parse(*[bytes([b]) for b in data]) == parse(data)


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=10))
def test_any_bytes_can_be_parsed(data: bytes, positions: list[int]) -> None:
    assert parse(*cut(data, positions)) == parse(data)


@given(st.lists(st.tuples(words.filter(bool), words), max_size=10), line_ends)
def test_written_events_are_read_back(events: list[tuple[str, str]], end: str) -> None:
    stream = "".join(f"event: {n}{end}data: {d}{end}{end}" for n, d in events)
    assert parse(stream.encode()) == [SseEvent(*event) for event in events]
