"""A unified diff as HTML: one element a line, the changed words of a changed line marked.

Where a line of a hunk is told from a header by the counts of the hunk, not by how it
looks: a removed line may well begin with ``-- a/``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from conversations.domain.text import storable

from .source_text import show_hidden

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_WORD = re.compile(r"\w+|\s+|.", re.DOTALL)
_LONGEST_MARKED = 500
_NOTHING = "/dev/null"

FILE, HUNK, NOTE, KEPT, REMOVED, ADDED = "df", "dk", "dn", "", "dd", "da"


@dataclass(slots=True)
class DiffLine:
    """One line of a diff; ``number`` counts in the file that it belongs to."""

    kind: str
    text: str
    number: int | None = None
    html: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedDiff:
    """``html`` goes into ``<pre class="diff"><code>``; ``left_out`` lines are not in it."""

    html: str
    added: int = 0
    removed: int = 0
    left_out: int = 0


@dataclass(slots=True)
class _Hunk:
    old: int = 0
    new: int = 0
    old_left: int = 0
    new_left: int = 0


def render_diff(text: str, *, most_lines: int, most_chars: int) -> RenderedDiff:
    """The beginning of the diff, and what all of it adds and removes."""
    lines = list(_read_lines(text))
    shown: list[DiffLine] = []
    chars = 0
    for line in lines[:most_lines]:
        chars += len(line.text)
        if chars > most_chars and shown:
            break
        shown.append(line)
    _mark_words(shown)
    if len(shown) == 1:
        shown[0].text = shown[0].text[:most_chars]
    return RenderedDiff(
        html="".join(map(_line_html, shown)),
        added=sum(line.kind == ADDED for line in lines),
        removed=sum(line.kind == REMOVED for line in lines),
        left_out=len(lines) - len(shown),
    )


def _read_lines(text: str) -> Iterator[DiffLine]:
    hunk, source = _Hunk(), ""
    for raw in storable(text).removesuffix("\n").split("\n"):
        line = raw.removesuffix("\r")
        if hunk.old_left > 0 or hunk.new_left > 0:
            yield _hunk_line(hunk, line)
        elif found := _HUNK.match(line):
            old, old_count, new, new_count = found.groups()
            hunk = _Hunk(int(old), int(new), int(old_count or 1), int(new_count or 1))
            yield DiffLine(HUNK, line)
        elif line.startswith("--- "):
            source = _file_name(line)
        elif line.startswith("+++ "):
            target = _file_name(line)
            if source == _NOTHING:
                name = f"{target} (new)"
            elif target == _NOTHING:
                name = f"{source} (removed)"
            else:
                name = target if source in (target, "") else f"{source} → {target}"
            yield DiffLine(FILE, name)
        elif line and not line.startswith(("diff --git ", "index ")):
            yield DiffLine(NOTE, line)


def _hunk_line(hunk: _Hunk, line: str) -> DiffLine:
    mark = line[:1]
    if mark == "\\":
        return DiffLine(NOTE, line)
    if mark == "-":
        hunk.old, hunk.old_left = hunk.old + 1, hunk.old_left - 1
        return DiffLine(REMOVED, line, hunk.old - 1)
    hunk.new, hunk.new_left = hunk.new + 1, hunk.new_left - 1
    if mark == "+":
        return DiffLine(ADDED, line, hunk.new - 1)
    hunk.old, hunk.old_left = hunk.old + 1, hunk.old_left - 1
    return DiffLine(KEPT, line, hunk.new - 1)


def _file_name(line: str) -> str:
    name = line[4:].split("\t")[0].strip()
    return name[2:] if name[:2] in ("a/", "b/") else name


def _mark_words(lines: list[DiffLine]) -> None:
    """Compare removed lines with the added ones that follow them, in pairs."""
    removed: list[DiffLine] = []
    added: list[DiffLine] = []
    for line in [*lines, DiffLine(NOTE, "")]:
        if line.kind == REMOVED and not added:
            removed.append(line)
        elif line.kind == ADDED:
            added.append(line)
        else:
            # Where there are more than before the lines of a pair need not belong
            # together, so they have to be more alike.
            share = 0.3 if len(removed) == len(added) else 0.6
            for old, new in zip(removed, added, strict=False):
                if max(len(old.text), len(new.text)) <= _LONGEST_MARKED:
                    _mark_pair(old, new, share=share)
            removed, added = [line] if line.kind == REMOVED else [], []


def _mark_pair(old: DiffLine, new: DiffLine, *, share: float) -> None:
    """Between what the two lines begin and end with alike; that has to be a good part."""
    before, after = _WORD.findall(old.text[1:]), _WORD.findall(new.text[1:])
    most = min(len(before), len(after))
    head = next((n for n in range(most) if before[n] != after[n]), most)
    most -= head
    tail = next((n for n in range(most) if before[-n - 1] != after[-n - 1]), most)
    kept = "".join(before[:head] + before[len(before) - tail :]).strip()
    if len(kept) >= share * min(len(old.text), len(new.text)) > 0:
        old.html, new.html = (_marked(words, head, tail) for words in (before, after))


def _marked(words: list[str], head: int, tail: int) -> str:
    end = len(words) - tail
    parts = [show_hidden("".join(part)) for part in (words[:head], words[head:end], words[end:])]
    return f"{parts[0]}<em>{parts[1]}</em>{parts[2]}" if parts[1] else parts[0] + parts[2]


def _line_html(line: DiffLine) -> str:
    body = f"{line.text[:1]}{line.html}" if line.html else show_hidden(line.text)
    number = f' data-n="{line.number}"' if line.number else ""
    kind = f' class="{line.kind}"' if line.kind else ""
    return f"<span{kind}{number}>{body}\n</span>"
