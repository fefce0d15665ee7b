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
        self.comparisons_left = MAX_COMPARISONS
        self._sizes = len(old), len(new)
        old_counts = Counter(old)
        self._pairs = sum(old_counts[line] * count for line, count in Counter(new).items())

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        old = (self._sizes[0] if ahi is None else ahi) - alo
        new = (self._sizes[1] if bhi is None else bhi) - blo
        self.comparisons_left -= old + min(self._pairs, old * new)
        if self.comparisons_left < 0:
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
            unshown = len(lines) - count
            return "\n".join([*lines[:count], f"\\ {unshown:,} more lines of this diff"]) + "\n"
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


def _count_equal(first: Iterable[str], second: Iterable[str]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


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
        hidden_chars = len(text) - len(shown)
        head = "…" if hidden_chars and start else ""
        yield f"{mark}{head}{shown}{'…' if hidden_chars > start else ''}"
        if hidden_chars and mark != " ":
            yield f"\\ {hidden_chars:,} more characters of this line"
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
    in_newline = old.startswith(LF) and any(text[start - 1 : start] == "\r" for start in starts)
    if starts and not in_newline:
        return EditMatch(spans=[TextEdit(start, start + len(old), new) for start in starts])
    plain, plain_old = text.replace(CRLF, LF), old.replace(CRLF, LF)
    ends = [match.start() - count for count, match in enumerate(re.finditer(CRLF, text))]

    def place(start: int) -> int:
        """Return the position of a character in the text with its original newlines."""
        return start + bisect_left(ends, start)

    for drift, table in (("", {}), (say("typographic quotes, dashes or spaces"), _TYPOGRAPHIC)):
        starts = list(_find_all(plain.translate(table), plain_old.translate(table)))
        if starts:
            spans = [TextEdit(place(start), place(start + len(plain_old)), new) for start in starts]
            return EditMatch(spans=spans, drift=drift)
    for drift, plain_line in _DRIFTS:
        if spans := list(_find_lines(file, plain_old, new, plain_line)):
            return EditMatch(spans=spans, drift=drift)
    # Whether each line begins with a number as ``read_file`` shows it
    if all(_NUMBER.match(line) for line in old.strip(LF).split(LF)):
        bare = find_match(file, _without_numbers(old), _without_numbers(new))
        return EditMatch(spans=bare.spans, drift=bare.drift or say("the line numbers"))
    return EditMatch(spans=[])


def replace_spans(text: str, spans: list[TextEdit]) -> str:
    pieces = []
    position = 0
    for span in spans:
        pieces += [text[position : span.start], span.text]
        position = span.end
    return "".join([*pieces, text[position:]])


def line_of(text: str, offset: int) -> int:
    """Return the number, from 1, of the line with that character."""
    return text.count(LF, 0, offset) + 1


def describe_nearest(file: TextFile, old: str) -> str:
    """Return the part of the file that is most similar to the text, line by line.

    Return an empty string if no part is similar.
    """
    old_text_lines = old.replace(CRLF, LF).strip(LF).split(LF)[:MAX_COMPARED_LINES]
    lines, keys = file.lines, [_line_words(line) for line in old_text_lines]
    # The starts of the groups of lines that share the most lines with the text. If none does, the
    # start of the group with the line that is most similar to the longest line of the text.
    first_place = {key: place for place, key in reversed(list(enumerate(keys))) if len(key) > 2}
    scores = Counter(
        max(0, number - first_place[key])
        for number, key in enumerate(map(_line_words, lines))
        if key in first_place
    )
    starts = sorted(sorted(scores, key=lambda start: (-scores[start], start))[:MAX_SIMILAR_PLACES])
    if not starts:
        longest = max(range(len(keys)), key=lambda place: len(keys[place]))
        plain = [_line_words(line)[:200] for line in lines[:MAX_SCANNED_PLACES]]
        like = difflib.get_close_matches(keys[longest][:200], plain, n=1, cutoff=0.6)
        starts = [max(0, plain.index(text) - longest) for text in like]
    description: list[str] = []
    for start in starts:
        nearby = lines[start : start + len(old_text_lines)]
        description.append(
            f"Lines {start + 1}–{start + len(nearby)} are like it (- your text, + the file):"
        )
        old_lines, file_lines = (
            [cut(line.rstrip(), 300) for line in side] for side in (old_text_lines, nearby)
        )
        # Compare whole lines, because the time for comparing them character by character grows with
        # a power of their length.
        matcher = difflib.SequenceMatcher(None, old_lines, file_lines, autojunk=False)
        for tag, a, b, c, d in matcher.get_opcodes():
            description += [f"{'-' if tag != 'equal' else ' '} {line}" for line in old_lines[a:b]]
            description += [f"+ {line}" for line in file_lines[c:d] if tag != "equal"]
    return "\n".join(description)


def _without_numbers(text: str) -> str:
    return LF.join(_NUMBER.sub("", line) for line in text.split(LF))


def _find_all(text: str, part: str) -> Iterator[int]:
    start = text.find(part)
    while start >= 0:
        yield start
        start = text.find(part, start + len(part))


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
    old_lines = old.strip(LF).split(LF)
    removes_lines = not new and old != old.strip(LF)
    keys = [plain(line) for line in old_lines]
    if not any(keys):
        return
    lines = file.text.split(LF)
    plain_lines = [plain(line) for line in lines]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    position = 0
    while position + len(keys) <= len(lines):
        # The first comparison saves most of the slices.
        starts_alike = plain_lines[position] == keys[0]
        if starts_alike and plain_lines[position : position + len(keys)] == keys:
            matched = lines[position : position + len(keys)]
            end = starts[position + len(keys)]
            if not removes_lines:
                end -= 2 if matched[-1].endswith("\r") else 1
            # In the new lines, replace the indentation of the old lines by that of the file.
            indents: dict[str, str] = {}
            for old_line, file_line in zip(old_lines, matched, strict=True):
                if old_line.strip():
                    indents.setdefault(_indent(old_line), _indent(file_line))
            yield TextEdit(
                starts[position],
                end,
                file.newline.join(_indented(line, indents) for line in new.split(LF)),
            )
            position += len(keys)
        else:
            position += 1


def _indented(line: str, indents: dict[str, str]) -> str:
    own = _indent(line)
    if not line.strip() or own in indents:
        return indents.get(own, own) + line[len(own) :]
    outer = max((indent for indent in indents if own.startswith(indent)), key=len, default=None)
    if outer is None:
        return line
    deeper = own[len(outer) :]
    if "\t" in indents[outer] and set(deeper) <= {" "}:
        deeper = "\t" * max(1, round(len(deeper) / 4))
    return indents[outer] + deeper + line[len(own) :]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
