"""``search_files``: find lines in the workspace's files that match an expression."""

import asyncio
from collections.abc import Iterator
from typing import Annotated

from django.conf import settings
from pydantic import Field

from conversations.agent.files.confined import stat_file
from conversations.agent.files.paths import shown
from conversations.agent.files.searching import FileQuery, FileSearch
from conversations.agent.files.walking import read_pattern
from conversations.domain.errors import Rejected

from . import tool
from .file_texts import count_text, cut, describe_passed_over, make_cursor, read_cursor, size_text
from .tool import BadArgument, ToolContext, ToolResult

MAX_MATCHES, DEFAULT_MATCHES = 500, 100
MAX_CONTEXT_LINES = 10
MAX_CHARS = 60_000
MAX_LINE_CHARS = 400
TIMEOUT_SECONDS = 20.0
MAX_PATTERN_CHARS = 2000
PATTERN = f"be a text of 1 to {MAX_PATTERN_CHARS} characters."


class SearchFiles(tool.ToolArguments):
    pattern: Annotated[
        tool.ExactText,
        tool.Requirement(PATTERN),
        tool.named("pattern", "query", description="Regular expression, or the text."),
    ]
    path: Annotated[
        tool.PathText, Field(description="A folder or a file. Default: the workspace's folder.")
    ] = "."
    glob: Annotated[
        tool.ExactText,
        Field(description="Only files whose path below 'path' matches: '*.py', 'src/**'."),
    ] = ""
    literal: Annotated[tool.Flag, Field(description="The pattern is plain text.")] = False
    ignore_case: Annotated[tool.Flag, Field(description="Default false.")] = False
    context: Annotated[
        tool.WholeOrZero,
        Field(description=f"Lines before and after each, at most {MAX_CONTEXT_LINES}. Default 0."),
    ] = 0
    limit: Annotated[
        tool.Whole, Field(description=f"Lines, at most {MAX_MATCHES}. Default {DEFAULT_MATCHES}.")
    ] = DEFAULT_MATCHES
    include_ignored: Annotated[
        tool.Flag, Field(description="Also what git ignores, and heavy folders. Default false.")
    ] = False
    cursor: Annotated[
        tool.ExactText, Field(description="Goes on where an earlier result ended, as it said.")
    ] = ""


async def run(context: ToolContext, arguments: SearchFiles) -> ToolResult:
    """Execute a call. End the search if the call is cancelled."""
    pattern = arguments.pattern
    if not pattern or len(pattern) > MAX_PATTERN_CHARS:
        raise BadArgument(f"'pattern' must {PATTERN}")
    if "\n" in pattern or "\0" in pattern:
        raise BadArgument("'pattern' is matched line by line; it cannot contain a line break.")
    after, _, number = arguments.cursor.rpartition(":")
    if arguments.cursor and not (after and number.isascii() and number.isdigit()):
        raise BadArgument("'cursor' is not one that an earlier result returned.")
    search = FileSearch(
        context.root,
        FileQuery(
            expression=pattern,
            is_literal=arguments.literal,
            ignores_case=arguments.ignore_case,
            path=arguments.path,
            glob=read_pattern(arguments.glob, folder=context.root / arguments.path)
            if arguments.glob
            else None,
            with_ignored=arguments.include_ignored,
            after=(read_cursor(after), int(number[:12])) if arguments.cursor else None,
            limit=settings.LOOM.max_read_bytes,
            seconds=TIMEOUT_SECONDS,
        ),
    )
    page = _Page(
        limit=min(arguments.limit, MAX_MATCHES), around=min(arguments.context, MAX_CONTEXT_LINES)
    )
    work = asyncio.ensure_future(asyncio.to_thread(_find, search, page))
    try:
        return ToolResult(ok=True, output=await asyncio.shield(work))
    except asyncio.CancelledError:
        search.stop()
        await asyncio.gather(work, return_exceptions=True)
        raise


def _find(search: FileSearch, page: "_Page") -> str:
    if stat_file(search.root, search.query.path) is None:
        raise Rejected(f"{shown(search.query.path)} does not exist.")
    results = search.run()
    try:
        page.has_more = not all(page.add(*file) for file in results)
    finally:
        results.close()
    blocks = page.blocks
    if not page.count:
        noun = "more line" if search.query.after else "line"
        blocks.append(f"No {noun} matches in {count_text(search.looked_into, 'file')}.")
    if page.has_more:
        blocks.append(f'More: call again with the same arguments and cursor="{page.cursor}".')
    elif search.was_late:
        blocks.append(
            f"[Stopped after {TIMEOUT_SECONDS:.0f} s; the result is incomplete."
            " Choose a folder or a glob.]"
        )
    if search.too_large:
        limit = size_text(search.query.limit)
        blocks.append(
            f"[{count_text(search.too_large, 'file')} of more than {limit} not searched.]"
        )
    if search.too_much:
        count = count_text(search.too_much, "file")
        blocks.append(f"[{count} not searched: the expression takes too much memory.]")
    return "\n".join(filter(None, [*blocks, describe_passed_over(search.passed_over)]))


class _Page:
    """The shown matches, added file by file until there is no more room."""

    def __init__(self, *, limit: int, around: int) -> None:
        self.blocks: list[str] = []
        self.cursor = ""
        self.count = 0
        self.has_more = False
        self._matches_left = limit
        self._room = MAX_CHARS
        self._around = around

    def add(self, path: str, lines: list[str], numbers: list[int]) -> bool:
        """Add a file's matches. Return False if something had to be left out."""
        chosen = numbers[: self._matches_left]
        block = "\n".join([shown(path), *_show(lines, chosen, self._around)])
        while len(block) > self._room and len(chosen) > 1:
            chosen = chosen[: len(chosen) // 2]
            block = "\n".join([shown(path), *_show(lines, chosen, self._around)])
        if not chosen or (len(block) > self._room and self.blocks):
            return False
        self.blocks.append(block)
        self.count += len(chosen)
        self.cursor = f"{make_cursor(path)}:{chosen[-1]}"
        self._matches_left -= len(chosen)
        self._room -= len(block)
        return len(chosen) == len(numbers)


def _show(lines: list[str], numbers: list[int], around: int) -> Iterator[str]:
    """Yield the lines with their context. Gaps are marked if there is context."""
    chosen, last = set(numbers), 0
    for number in numbers:
        start = max(last + 1, number - around)
        if around and last and start > last + 1:
            yield "  --"
        end = min(len(lines), number + around)
        for line_number in range(start, end + 1):
            mark = ":" if line_number in chosen else "-"
            yield f"{line_number:>6}{mark} {cut(lines[line_number - 1], MAX_LINE_CHARS)}"
        last = max(last, end)


TOOL = tool.declare_tool(
    name="search_files",
    description=(
        "Find lines in the workspace's files that match a regular expression (or, with"
        " 'literal', hold a text), with their numbers, grouped by file in order of path. Each"
        " line is matched by itself. Binary files, what git ignores and folders such as"
        " node_modules are left out, and links are not followed."
    ),
    arguments=SearchFiles,
    run=run,
)
