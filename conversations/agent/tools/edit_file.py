"""``edit_file``: one text in a file of the workspace is replaced by another."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from conversations.agent.files.paths import shown
from conversations.agent.files.text_files import (
    EncodingLacksCharacter,
    TextFile,
    split_lines,
    to_bytes,
)
from conversations.agent.undo.apply import Put
from conversations.domain.errors import Rejected
from conversations.domain.tool_calls import CHANGES

from .file_edits import (
    EditMatch,
    describe_nearest,
    find_match,
    line_of,
    replace_spans,
    unified_diff,
)
from .file_texts import (
    PreparedChange,
    changing,
    check_writable,
    count_text,
    numbered,
    planning,
    read_whole,
)
from .tool import Arguments, BadArgument, ExactText, FilePath, Flag, Must, declare_tool, named

AROUND, SNIPPET_LINES = 3, 40
NAMED = 20  # Places whose lines are named
SHOWN = 4  # Places that are shown with the lines around them, when it is not clear which is meant


OLD_TEXT = "be the text to replace. To write a whole file use write_file."


class EditFile(Arguments):
    path: FilePath
    old_text: Annotated[
        ExactText, Must(OLD_TEXT), named("old_text", "old_string", description="What is there now.")
    ]
    new_text: Annotated[
        ExactText,
        Must("be what to put there; it may be empty."),
        named("new_text", "new_string", description="What is to be there; may be empty."),
    ]
    replace_all: Annotated[Flag, Field(description="Replace every occurrence. Default false.")] = (
        False
    )


def prepare(root: Path, asked: EditFile) -> PreparedChange:
    path, old, new = asked.path, asked.old_text, asked.new_text
    if not old:
        raise BadArgument(f"'old_text' must {OLD_TEXT}")
    if old == new:
        raise BadArgument("'old_text' and 'new_text' are the same: there is nothing to change.")
    there = read_whole(root, path)
    if there.text is None:
        raise Rejected(f"{shown(path)} is binary and cannot be edited as text.")
    check_writable(there.found)
    match = _choose(path, there.text, old, new, every=asked.replace_all)
    text = replace_spans(there.text.text, match.spans)
    # What was done, and the lines around the first place as they are now
    starts, grown = [], 0
    for span in match.spans:
        starts.append(span.start + grown)
        grown += len(span.text) - (span.end - span.start)
    numbers = [line_of(text, start) for start in starts]
    at = f"line {numbers[0]}" if len(numbers) == 1 else f"lines {_list(numbers)}"
    drift = f" It was found apart from {match.drift}." if match.drift else ""
    head = f"Edited {shown(path)}: {count_text(len(numbers), 'place')} ({at}).{drift}"
    lines = split_lines(text)
    first = max(1, numbers[0] - AROUND)
    height = match.spans[0].text.count("\n") + 1 + AROUND
    last = min(numbers[0] - 1 + height, first - 1 + SNIPPET_LINES)
    return PreparedChange(
        actions=(Put(path=path, data=_encode(path, text, there.text), expect=there.digest),),
        summary=f"Edit {shown(path)}",
        output="\n".join([head, numbered(lines[first - 1 : last], first)]).rstrip("\n"),
        diff=unified_diff(path, there.text.text, text),
        note=f"Found apart from {match.drift}." if match.drift else "",
        basis=there.digest,
    )


def _choose(path: str, file: TextFile, old: str, new: str, *, every: bool) -> EditMatch:
    """The places to replace. Raises BadArgument with what to send instead."""
    match = find_match(file, old, new)
    if not match.spans:
        raise BadArgument(_say_missing(path, file, old))
    if len(match.spans) == 1 or (every and not match.drift):
        return match
    numbers = [line_of(file.text, span.start) for span in match.spans]
    if match.drift:
        ask = "Send it exactly as the file has it"
        how = f"'old_text' is not in {shown(path)}; apart from {match.drift}, it"
    else:
        ask = "Send more of the lines around the one that is meant, or replace_all"
        how = "'old_text'"
    where = f"{how} is there {len(numbers)} times, in lines {_list(numbers)}. {ask}."
    lines = file.lines
    shown_places = [
        numbered(lines[max(0, number - 2) : number + 1], max(1, number - 1))
        for number in numbers[:SHOWN]
    ]
    raise BadArgument("\n--\n".join([where, *shown_places]))


def _say_missing(path: str, file: TextFile, old: str) -> str:
    if not file.text:
        return f"{shown(path)} is empty. Use write_file."
    nearest = describe_nearest(file, old)
    hint = nearest or "Nothing in it is like that text; read the file again."
    return f"'old_text' is not in {shown(path)}.\n{hint}"


def _encode(path: str, text: str, like: TextFile) -> bytes:
    try:
        return to_bytes(text, like)
    except EncodingLacksCharacter as error:
        raise Rejected(
            f"{shown(path)} cannot hold the new text: {error}. To change its encoding, write"
            " the whole file as UTF-8 with write_file."
        ) from error


def _list(numbers: list[int]) -> str:
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return ", ".join(map(str, numbers[:NAMED])) + more


TOOL = declare_tool(
    name="edit_file",
    description=(
        "Replace a text in a file of the workspace. 'old_text' has to be in the file exactly"
        " once, spaces and line breaks included, without the line numbers of read_file; give"
        " enough of the lines around it to be unique, or 'replace_all'. Where nothing matches"
        " exactly, one place that differs only in spacing, typographic quotes or newlines is"
        " taken, and the result says so. The file keeps its encoding and newlines."
    ),
    arguments=EditFile,
    run=changing(prepare),
    plan=planning(prepare),
    effect=CHANGES,
)
