"""The search for a text that is to be replaced, exact or nearly so, and diffs of the change.

Models copy text imperfectly: with other newlines, plain instead of typographic quotes, without
spaces at the end of lines, with other indentation, or with the line numbers that were shown. Each
of these differences is tried in this order, and a match is used only if there is exactly one.
"""

import difflib
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat, takewhile

from conversations.agent.files.paths import shown
from conversations.agent.files.text_files import CRLF, LF, TextFile
from conversations.domain.messages import say
from conversations.domain.text import storable

from .file_texts import cut

# The change as a unified diff, regardless of the size or content of the files.

CONTEXT_LINES = 3
MAX_DIFF_CHARS = 100_000
MAX_LINE_CHARS = 5000
BEFORE_CHARS = 200  # Characters of a longer line that are shown before the difference

NO_NEWLINE = "\\ No newline at end of file"

# Limits the product of the line counts of both sides, and the number of comparisons for lines that
# occur many times on both sides. Above the limit, comparing would delay everyone, and the part that
# differs is shown as replaced whole.
MAX_COMPARISONS = 1_000_000


class TooManyComparisons(Exception):
    """The sides have too many lines in common, too often."""


class BoundedMatcher(difflib.SequenceMatcher[str]):
    """A sequence matcher that limits its number of comparisons.

    It looks for the longest run that both sides share, then again to the left and right of that
    run. Each search goes through all equal pairs.
    """

    def __init__(self, old: list[str], new: list[str]) -> None:
        super().__init__(None, old, new)
        self.left = MAX_COMPARISONS
        self._sizes = len(old), len(new)
        known = Counter(old)
        self._pairs = sum(known[line] * count for line, count in Counter(new).items())

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        old = (self._sizes[0] if ahi is None else ahi) - alo
        new = (self._sizes[1] if bhi is None else bhi) - blo
        self.left -= old + min(self._pairs, old * new)
        if self.left < 0:
            raise TooManyComparisons
        return super().find_longest_match(alo, ahi, blo, bhi)


def unified_diff(path: str, before: str | None, after: str | None) -> str:
    """Return the diff, which is empty if nothing differs. None stands for a missing file."""
    old, new = _lines(before), _lines(after)
    body = list(_hunks(old, new))
    if not body:
        return ""
    name = shown(path)
    lines = [
        f"--- {'/dev/null' if before is None else f'a/{name}'}",
        f"+++ {'/dev/null' if after is None else f'b/{name}'}",
        *body,
    ]
    size = 0
    for count, line in enumerate(lines):
        size += len(line) + 1
        if size > MAX_DIFF_CHARS:
            rest = len(lines) - count
            return "\n".join([*lines[:count], f"\\ {rest:,} more lines of this diff"]) + "\n"
    return "\n".join(lines) + "\n"


def is_cut_short(diff: str) -> bool:
    """Return whether the diff lacks a part of the change."""
    return any(line.startswith("\\") and line != NO_NEWLINE for line in diff.split("\n"))


def _lines(text: str | None) -> list[str]:
    """Split at newlines only. Each line keeps its newline."""
    parts = storable(text or "").split("\n")
    lines = [f"{part}\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    if old == new:
        return
    # Only the part that differs is compared, because the cost is the product of its line counts.
    start = _count_equal(old, new)
    end = _count_equal(reversed(old[start:]), reversed(new[start:]))
    a, b = len(old) - end, len(new) - end
    codes: Sequence[tuple[str, int, int, int, int]] = [("replace", 0, a - start, 0, b - start)]
    if (a - start) * (b - start) <= MAX_COMPARISONS:
        with suppress(TooManyComparisons):
            codes = BoundedMatcher(old[start:a], new[start:b]).get_opcodes()
    matcher = difflib.SequenceMatcher(None, old[:0], new[:0])
    matcher.opcodes = [  # type: ignore[attr-defined]
        ("equal", 0, start, 0, start),
        *((tag, i + start, j + start, k + start, m + start) for tag, i, j, k, m in codes),
        ("equal", a, len(old), b, len(new)),
    ]
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        (_, first_old, _, first_new, _), (_, _, last_old, _, last_new) = group[0], group[-1]
        yield f"@@ -{_range(first_old, last_old)} +{_range(first_new, last_new)} @@"
        for tag, i, j, k, m in group:
            if tag == "equal":
                yield from _marked(" ", old[i:j])
            else:
                starts = [
                    max(0, _count_equal(*pair) - BEFORE_CHARS)
                    if max(map(len, pair)) > MAX_LINE_CHARS
                    else 0
                    for pair in zip(old[i:j], new[k:m], strict=False)
                ]
                yield from _marked("-", old[i:j], starts)
                yield from _marked("+", new[k:m], starts)


def _count_equal(one: Iterable[str], other: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _range(start: int, end: int) -> str:
    """Return a range as ``diff`` writes it: from 1; an empty range names the line before it."""
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _marked(mark: str, lines: list[str], starts: Sequence[int] = ()) -> Iterator[str]:
    """Yield the lines with a mark. Long lines are cut to the part that begins at ``starts``.

    A note after a changed line says how much of it is left out.
    """
    for line, start in zip(lines, chain(starts, repeat(0)), strict=False):
        text = shown = line.removesuffix("\n")
        if len(text) > MAX_LINE_CHARS:
            shown = text[start : start + MAX_LINE_CHARS]
        left = len(text) - len(shown)
        head = "…" if left and start else ""
        yield f"{mark}{head}{shown}{'…' if left > start else ''}"
        if left and mark != " ":
            yield f"\\ {left:,} more characters of this line"
        if not line.endswith("\n"):
            yield NO_NEWLINE


MAX_SIMILAR_PLACES, MAX_COMPARED_LINES = 2, 12  # If a search has found nothing
MAX_SCANNED_PLACES = 3000  # Lines that are compared character by character

_TYPOGRAPHIC = str.maketrans(
    "‘’‚‛“”„‟′″‐‑‒–—−\u00a0\u2002\u2003\u2009\u202f", "''''\"\"\"\"'\"------     "
)
_SPACE = re.compile(r"\s+")
_NUMBER = re.compile(r" *\d+\t")


@dataclass(frozen=True, slots=True)
class TextEdit:
    """A range of characters in the file's text, and the text that replaces it."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EditMatch:
    """The places that match a text.

    ``drift`` says how the file differs from the text that was searched for. It is empty if there is
    no difference except of newlines.
    """

    spans: list[TextEdit]
    drift: str = ""


def find_match(file: TextFile, old: str, new: str) -> EditMatch:
    """Return all places of ``old``, each with the text that replaces it."""
    new = new.replace(CRLF, LF).replace(LF, file.newline)
    text = file.text
    starts = list(_find_all(text, old))
    # A match must not begin within a CRLF. If one does, newlines are normalised for all matches.
    in_newline = old.startswith(LF) and any(text[at - 1 : at] == "\r" for at in starts)
    if starts and not in_newline:
        return EditMatch(spans=[TextEdit(at, at + len(old), new) for at in starts])
    plain, wanted = text.replace(CRLF, LF), old.replace(CRLF, LF)
    ends = [found.start() - count for count, found in enumerate(re.finditer(CRLF, text))]

    def place(at: int) -> int:
        """Return the position of a character in the text with its original newlines."""
        return at + bisect_left(ends, at)

    for drift, table in (("", {}), (say("typographic quotes, dashes or spaces"), _TYPOGRAPHIC)):
        starts = list(_find_all(plain.translate(table), wanted.translate(table)))
        if starts:
            spans = [TextEdit(place(at), place(at + len(wanted)), new) for at in starts]
            return EditMatch(spans=spans, drift=drift)
    for drift, plain_line in _DRIFTS:
        if spans := list(_find_lines(file, wanted, new, plain_line)):
            return EditMatch(spans=spans, drift=drift)
    # Whether each line begins with a number as ``read_file`` shows it
    if all(_NUMBER.match(line) for line in old.strip(LF).split(LF)):
        bare = find_match(file, _without_numbers(old), _without_numbers(new))
        return EditMatch(spans=bare.spans, drift=bare.drift or say("the line numbers"))
    return EditMatch(spans=[])


def replace_spans(text: str, spans: list[TextEdit]) -> str:
    pieces, at = [], 0
    for span in spans:
        pieces += [text[at : span.start], span.text]
        at = span.end
    return "".join([*pieces, text[at:]])


def line_of(text: str, offset: int) -> int:
    """Return the number, from 1, of the line with that character."""
    return text.count(LF, 0, offset) + 1


def describe_nearest(file: TextFile, old: str) -> str:
    """Return the part of the file that is most similar to the text, line by line.

    Return an empty string if no part is similar.
    """
    wanted = old.replace(CRLF, LF).strip(LF).split(LF)[:MAX_COMPARED_LINES]
    lines, keys = file.lines, [_line_words(line) for line in wanted]
    # The starts of the groups of lines that share the most lines with the text. If none does, the
    # start of the group with the line that is most similar to the longest line of the text.
    known = {key: place for place, key in reversed(list(enumerate(keys))) if len(key) > 2}
    scores = Counter(
        max(0, number - known[key])
        for number, key in enumerate(map(_line_words, lines))
        if key in known
    )
    starts = sorted(sorted(scores, key=lambda start: (-scores[start], start))[:MAX_SIMILAR_PLACES])
    if not starts:
        longest = max(range(len(keys)), key=lambda place: len(keys[place]))
        plain = [_line_words(line)[:200] for line in lines[:MAX_SCANNED_PLACES]]
        like = difflib.get_close_matches(keys[longest][:200], plain, n=1, cutoff=0.6)
        starts = [max(0, plain.index(text) - longest) for text in like]
    told: list[str] = []
    for start in starts:
        found = lines[start : start + len(wanted)]
        told.append(
            f"Lines {start + 1}–{start + len(found)} are like it (- your text, + the file):"
        )
        asked, there = ([cut(line.rstrip(), 300) for line in side] for side in (wanted, found))
        # Compare whole lines, because the time for comparing them character by character grows with
        # a power of their length.
        matcher = difflib.SequenceMatcher(None, asked, there, autojunk=False)
        for tag, a, b, c, d in matcher.get_opcodes():
            told += [f"{'-' if tag != 'equal' else ' '} {line}" for line in asked[a:b]]
            told += [f"+ {line}" for line in there[c:d] if tag != "equal"]
    return "\n".join(told)


def _without_numbers(text: str) -> str:
    return LF.join(_NUMBER.sub("", line) for line in text.split(LF))


def _find_all(text: str, wanted: str) -> Iterator[int]:
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + len(wanted))


def _line_words(line: str) -> str:
    return _SPACE.sub(" ", line.translate(_TYPOGRAPHIC)).strip()


_DRIFTS: tuple[tuple[str, Callable[[str], str]], ...] = (
    (say("space at the end of lines"), str.rstrip),
    (say("indentation or spacing"), _line_words),
)


def _find_lines(
    file: TextFile, old: str, new: str, plain: Callable[[str], str]
) -> Iterator[TextEdit]:
    """Yield runs of whole lines that are equal after ``plain`` was applied to each line."""
    new = new.replace(CRLF, LF)
    # Remove the blank lines that both texts have at an end, then all others at the ends of the old
    # one.
    while old.startswith(LF) and new.startswith(LF):
        old, new = old[1:], new[1:]
    while old.endswith(LF) and new.endswith(LF):
        old, new = old[:-1], new[:-1]
    wanted = old.strip(LF).split(LF)
    removes_lines = not new and old != old.strip(LF)
    keys = [plain(line) for line in wanted]
    if not any(keys):
        return
    lines = file.text.split(LF)
    plain_lines = [plain(line) for line in lines]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    at = 0
    while at + len(keys) <= len(lines):
        if plain_lines[at] == keys[0] and plain_lines[at : at + len(keys)] == keys:
            found = lines[at : at + len(keys)]
            end = starts[at + len(keys)]
            if not removes_lines:
                end -= 2 if found[-1].endswith("\r") else 1
            # In the new lines, replace the indentation of the old lines by that of the file.
            known: dict[str, str] = {}
            for asked, there in zip(wanted, found, strict=True):
                if asked.strip():
                    known.setdefault(_indent(asked), _indent(there))
            yield TextEdit(
                starts[at], end, file.newline.join(_indented(line, known) for line in new.split(LF))
            )
            at += len(keys)
        else:
            at += 1


def _indented(line: str, known: dict[str, str]) -> str:
    own = _indent(line)
    if not line.strip() or own in known:
        return known.get(own, own) + line[len(own) :]
    outer = max((indent for indent in known if own.startswith(indent)), key=len, default=None)
    if outer is None:
        return line
    deeper = own[len(outer) :]
    if "\t" in known[outer] and set(deeper) <= {" "}:
        deeper = "\t" * max(1, round(len(deeper) / 4))
    return known[outer] + deeper + line[len(own) :]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
