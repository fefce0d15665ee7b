"""Diffs: applying a diff to the old text gives the new text."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from conversations.agent.tools.file_edits import (
    MAX_DIFF_CHARS,
    MAX_LINE_CHARS,
    is_cut_short,
    unified_diff,
)

texts = st.lists(st.sampled_from(["a", "b", "", "c\r", "\u2028", "-", "+x"]), max_size=30).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "".join(f"{line}\n" for line in lines)])
)


def with_ends(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def apply_diff(before: str, diff: str) -> str:
    """Apply the diff as ``patch`` does, but without any tolerance."""
    old, new, at = with_ends(before), list[str](), 0
    marked = re.sub(r"\n\\ No newline at end of file\n", "\0", diff)
    _, _, *lines = re.findall(r"[^\n\0]*[\n\0]", marked)
    for line in lines:
        text = line[1:-1] + ("\n" if line[-1] == "\n" else "")
        if line.startswith("@@"):
            found = re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n", line)
            assert found is not None
            start = int(found[1]) - (found[2] != "0")
            new += old[at:start]
            assert len(new) == int(found[3]) - (found[4] != "0")
            at = start
        if line[0] in " -":
            assert old[at] == text
            at += 1
        if line[0] in " +":
            new.append(text)
    return "".join([*new, *old[at:]])


@settings(max_examples=60)
@given(before=texts, after=texts)
def test_applying_a_diff_gives_the_new_text(before: str, after: str) -> None:
    diff = unified_diff("a.txt", before, after)
    assert (diff == "") == (before == after)
    if diff:
        assert diff.startswith("--- a/a.txt\n+++ b/a.txt\n@@")
        assert apply_diff(before, diff) == after


def test_lines_without_common_text_are_replaced_as_a_whole() -> None:
    before = "".join(f"old {n}\n" for n in range(3000))
    diff = unified_diff("a.txt", f"head\n{before}tail\n", "head\nnew\ntail\n")
    assert diff.startswith("--- a/a.txt\n+++ b/a.txt\n@@ -1,3002 +1,3 @@\n head\n-old 0\n")
    assert diff.endswith("-old 2999\n+new\n tail\n")


def test_diff_is_limited_in_length() -> None:
    before = "".join(f"old line number {n}\n" for n in range(50_000))
    diff = unified_diff("a.txt", before, None)
    assert len(diff) < MAX_DIFF_CHARS + 100
    assert re.search(r"\n\\ \d\d,\d\d\d more lines of this diff\n$", diff)
    assert len(unified_diff("a.txt", None, "x" * 1_000_000)) < 6000


def test_long_lines_are_shown_from_their_first_difference() -> None:
    rows = ",".join(f'{{"id":{n}}}' for n in range(4000))
    diff = unified_diff("a.json", f"{rows},false,{rows}\n", f"{rows},true,{rows}\n")
    lines = diff.split("\n")[3:]
    assert [line[:1] for line in lines] == ["-", "\\", "+", "\\", ""]
    assert '{"id":3999},false,{"id":0}' in lines[0]
    assert '{"id":3999},true,{"id":0}' in lines[2]
    assert max(map(len, lines)) < MAX_LINE_CHARS + 10
    left = 2 * len(rows) + len(",false,") - MAX_LINE_CHARS
    assert lines[1] == f"\\ {left:,} more characters of this line"
    assert is_cut_short(diff)


def test_cut_diff_is_recognised() -> None:
    long = "x" * (MAX_LINE_CHARS + 1)
    assert not is_cut_short(unified_diff("a", f"{long}\nold", f"{long}\nnew"))
    assert not is_cut_short(unified_diff("a", "\\ 3 more lines of this diff\n", "\u2028\\ \r\\ x"))
    assert is_cut_short(unified_diff("a", None, long))
    assert is_cut_short(unified_diff("a", "x\n" * MAX_DIFF_CHARS, None))
