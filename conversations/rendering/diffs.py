"""A unified diff as HTML: one element a line, with the changed words of a changed line marked.

The line counts in a hunk's header decide whether a line belongs to the hunk or is a header. Its
text cannot decide that, because a removed line may begin with ``-- a/``.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from conversations.domain.messages import head_of, say
from conversations.domain.text import storable

from .messages import mark_text
from .source_text import show_hidden, without_marks

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_WORD = re.compile(r"\w+|\s+|.", re.DOTALL)
_MAX_MARKED_CHARS = 500
_NOTHING = "/dev/null"
FILE, HUNK, NOTE, KEPT, REMOVED, ADDED = "df", "dk", "dn", "", "dd", "da"


class DiffLine(NamedTuple):
    """A line of a diff; ``number`` is its line number in the old or the new file."""

    kind: str
    text: str
    number: int = 0


class RenderedDiff(NamedTuple):
    """The HTML for ``<pre class="diff"><code>`` and the number of lines that it leaves out.

    The HTML has marks (see ``messages``)."""

    html: str
    added: int
    removed: int
    left_out: int


def render_diff(text: str, *, most_lines: int, most_chars: int) -> RenderedDiff:
    """Render the beginning of a diff, and count the lines that all of it adds and removes."""
    lines = list(_read_lines(text))
    shown: list[DiffLine] = []
    chars = 0
    for line in lines[:most_lines]:
        chars += len(line.text)
        if chars > most_chars and shown:
            break
        shown.append(line._replace(text=head_of(line.text, most_chars)) if not shown else line)
    bodies: list[str] = [mark_text(line.text) for line in shown]
    signs = "".join({REMOVED: "-", ADDED: "+"}.get(line.kind, " ") for line in shown)
    for run in re.finditer(r"(-+)(\++)", signs):
        # If the two counts differ, the paired lines may be unrelated, so they have to be more
        # alike.
        share = 0.3 if len(run[1]) == len(run[2]) else 0.6
        for pair in zip(range(*run.span(1)), range(*run.span(2)), strict=False):
            old, new = (shown[index].text for index in pair)
            if max(len(old), len(new)) <= _MAX_MARKED_CHARS:
                for index, html in zip(pair, _mark_words(old, new, share=share), strict=False):
                    bodies[index] = html
    html = ""
    for line, body in zip(shown, bodies, strict=True):
        kind = f' class="{line.kind}"' if line.kind else ""
        number = f' data-n="{line.number}"' if line.number else ""
        html += f"<span{kind}{number}>{body}\n</span>"
    kinds = [line.kind for line in lines]
    return RenderedDiff(html, kinds.count(ADDED), kinds.count(REMOVED), len(lines) - len(shown))


def _read_lines(text: str) -> Iterator[DiffLine]:
    old = new = old_left = new_left = 0
    source = ""
    for raw in without_marks(storable(text)).removesuffix("\n").split("\n"):
        line = raw.removesuffix("\r")
        sign = line[:1]
        if old_left > 0 or new_left > 0:
            if sign == "\\":
                yield DiffLine(NOTE, line)
                continue
            kind = {"-": REMOVED, "+": ADDED}.get(sign, KEPT)
            yield DiffLine(kind, line, old if sign == "-" else new)
            if sign != "+":
                old, old_left = old + 1, old_left - 1
            if sign != "-":
                new, new_left = new + 1, new_left - 1
        elif hunk := _HUNK.match(line):
            old, new = int(hunk[1]), int(hunk[3])
            old_left, new_left = int(hunk[2] or 1), int(hunk[4] or 1)
            yield DiffLine(HUNK, line)
        elif line.startswith(("--- ", "+++ ")):
            name = line[4:].split("\t")[0].strip()
            if name[:2] in ("a/", "b/"):
                name = name[2:]
            if sign == "-":
                source = name
            elif source == _NOTHING:
                yield DiffLine(FILE, say("%(name)s (new)", name=name))
            elif name == _NOTHING:
                yield DiffLine(FILE, say("%(name)s (removed)", name=source))
            else:
                yield DiffLine(FILE, name if source in (name, "") else f"{source} → {name}")
        elif line and not line.startswith(("diff --git ", "index ")):
            yield DiffLine(NOTE, line)


def _mark_words(old: str, new: str, *, share: float) -> Sequence[str]:
    """Return two lines as HTML with the text between their common start and end marked.

    Return an empty tuple if the common text is less than ``share`` of the shorter line."""
    before, after = _WORD.findall(old[1:]), _WORD.findall(new[1:])
    limit = min(len(before), len(after))
    head = next((n for n in range(limit) if before[n] != after[n]), limit)
    limit -= head
    tail = next((n for n in range(limit) if before[-n - 1] != after[-n - 1]), limit)
    common = "".join(before[:head] + before[len(before) - tail :]).strip()
    if not len(common) >= share * min(len(old), len(new)) > 0:
        return ()
    marked = []
    for sign, words in ((old[:1], before), (new[:1], after)):
        end = len(words) - tail
        parts = (words[:head], words[head:end], words[end:])
        start, changed, rest = (show_hidden("".join(part)) for part in parts)
        marked.append(f"{sign}{start}<em>{changed}</em>{rest}" if changed else sign + start + rest)
    return marked
