"""Hostile files and texts, each with another attack on the code that reads it.

The tests count the work: the lines of Python that run and the jumps back in them. The count is
the same on every machine.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from conversations.agent.files.paths import shown
from conversations.agent.files.searching import find_files
from conversations.agent.files.skills import find_skills
from conversations.agent.files.text_files import TextFile
from conversations.agent.files.walking import FolderWalk
from conversations.agent.mcp.config import ConfigError, read_config
from conversations.agent.tools.file_edits import MAX_COMPARISONS, describe_nearest, unified_diff
from conversations.agent.tools.file_texts import describe_walk
from conversations.agent.window.system_prompt import (
    build_system_prompt,
    describe_problems,
    describe_skills,
)
from conversations.rendering.code_blocks import MAX_CODE_CHARS
from conversations.rendering.markdown import (
    TOO_MUCH_WORK,
    render_markdown,
    render_person_text,
    show_as_written,
)
from conversations.rendering.markdown_parser import WorkBudget
from conversations.rendering.streaming import BlockStream

SIZE = 8_000
MAX_STEPS_FOR_BYTE = 200
MAX_STEPS_OF_HEAD = 300_000
MAX_LINES_OF_STEP = 500
MAX_STEPS_OF_FOLDER = 3_000_000


def repeat(piece: str, size: int) -> str:
    return (piece * (size // len(piece) + 1))[:size]


def aliases(size: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 5)]
    return "\n".join([*lines, "disable-model-invocation: *a4"])


def ladder(size: int) -> str:
    return "".join(" " * depth + "a:\n" for depth in range(int((2 * size) ** 0.5)))


def front(piece: str, before: str = "") -> Callable[[int], str]:
    return lambda size: f"{before}{repeat(piece, size)}"


FRONT_MATTER: dict[str, Callable[[int], str]] = {
    "aliases": aliases,
    "anchors": front("&a "),
    "lists in lists": front("["),
    "mappings in mappings": front("{"),
    "pairs in lists": front("[a, "),
    "questions": front("[? "),
    "items in items": front("- "),
    "mappings below mappings": ladder,
    "one long list": front("a, ", "name: ["),
    "one long number": front("9", "name: "),
    "tags": front("!a "),
    "keys": front("? "),
    "merges": front("<<: {a: b}\n"),
    "escapes": front("\\x41", 'name: "'),
}

IGNORED: dict[str, Callable[[int], str]] = {
    "open brackets": front("["),
    "open brackets in names": front("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[/]"),
    "stars": front("*a"),
    "folders of stars": front("**/a*/"),
    "rules": front("*a*b*c\n"),
    "negations": front("!*\n"),
}

MARKDOWN: dict[str, str] = {
    "emphasis": "*_",
    "emphasis in words": "***a",
    "strikes": "~ ~~~",
    "backslashes": "\\",
    "images": "![",
    "brackets": "[",
    "labels": "[a][",
    "links": "[](",
    "references": "[a]: b '\n",
    "angles": "<http://a ",
    "quotes": "> ",
    "items": "- a\n",
    "items in items": "- - - a\n",
    "cells": "|a|b|\n|-|-|\n",
    "headings": "# a\n",
    "fences": "```\n",
    "all signs": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
}

OTHERS: dict[str, bytes] = {
    "AGENTS.md": b"*_" * 50_000,
    "CLAUDE.md": b"![" * 500_000,
    ".gitignore": b"**/" * 80 + b"a\n" + b"[" * 200 + b"\n" + b"*a" * 100 + b"\n",
    ".mcp.json": b"[" * 100_000,
    "servers.json": b'{"servers": ' + b"9" * 100_000 + b"}",
    ".git/config": b'[core "' * 10_000,
    ".git/HEAD": b"ref: " + b"../" * 10_000,
    ".git/index": b"DIRC" + b"\xff" * 10_000,
    "one-line.json": b'{"a":' * 50_000,
    "cells.ipynb": b'{"cells": [' * 10_000,
    "table.csv": b'","' * 50_000,
    "\u202egnp.exe": b"x",
    "a\nb\x1b[31m": b"x",
    "[" * 200: b"x",
    "nul.txt": b"\0" * 10_000,
    "d/" * 90 + "deep": b"x",
}


class Steps:
    """A context manager that counts the steps of the code in its block."""

    def __enter__(self) -> "Steps":
        self.count = 0
        self._events = sys.monitoring.events.LINE | sys.monitoring.events.JUMP
        sys.monitoring.use_tool_id(4, "steps")
        for event in (sys.monitoring.events.LINE, sys.monitoring.events.JUMP):
            sys.monitoring.register_callback(4, event, self._count)
        sys.monitoring.set_events(4, self._events)
        return self

    def _count(self, *_: object) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        sys.monitoring.set_events(4, 0)
        sys.monitoring.free_tool_id(4)


def assert_bounded(steps: Steps, size: int) -> None:
    assert steps.count < MAX_STEPS_FOR_BYTE * size + 50_000, steps.count


def make_forty() -> dict[str, bytes]:
    """Return forty files by path, each with another attack."""
    files = dict(OTHERS)
    for name, make in FRONT_MATTER.items():
        text = f"---\n{make(SIZE)[:SIZE]}\ndescription: d\n---\nThe body.\n"
        files[f"skills/{name}/SKILL.md"] = text.encode()
    for name, make in IGNORED.items():
        files[f"{name}/.gitignore"] = make(SIZE).encode()
    for name in list(MARKDOWN)[: 40 - len(files)]:
        files[f"{name}.md"] = repeat(MARKDOWN[name], 100_000).encode()
    assert len(files) == 40
    return files


@pytest.fixture
def forty(tmp_path: Path) -> Path:
    for path, data in make_forty().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    return tmp_path


def test_reading_forty_hostile_files_takes_limited_work(forty: Path) -> None:
    """Read everything that the server reads of a folder for a message and for the pages."""
    with Steps() as steps:
        prompt = build_system_prompt(
            workspace_name="w", root=forty, instructions="", reads_instruction_files=True
        )
        found = [find_files(forty, query) for query in ("", "[[[[", "a/b", "\u202e")]
        walk = FolderWalk(root=forty, deadline=monotonic() + 60)
        walked = list(walk.entries())
        walk_lines = [shown(entry.path) for entry in walked] + describe_walk(walk)
        for name in (".mcp.json", "servers.json"):
            with pytest.raises(ConfigError):
                read_config(forty / name, environment={})
        problems = describe_problems(forty)
    assert len(prompt) < 200_000
    assert any(files for files, _ in found)
    assert not any("\u202e" in line or "\n" in line for line in walk_lines)
    assert any("its front matter is read line by line because it" in line for line in problems)
    assert steps.count < MAX_STEPS_OF_FOLDER, steps.count


@pytest.mark.parametrize("attack", FRONT_MATTER)
def test_reading_hostile_front_matter_takes_limited_work(tmp_path: Path, attack: str) -> None:
    text = f"---\n{FRONT_MATTER[attack](SIZE)[:SIZE]}\ndescription: d\n---\nThe body.\n"
    (tmp_path / "skills/odd").mkdir(parents=True)
    (tmp_path / "skills/odd/SKILL.md").write_text(text)
    with Steps() as steps:
        [skill] = find_skills(tmp_path)
        index = describe_skills(tmp_path)
    assert steps.count < MAX_STEPS_OF_HEAD, steps.count
    assert "- " in index
    assert skill.name


def test_front_matter_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    for name, matter in {
        "aliases": aliases(0),
        "deep": "name: " + "[" * 100,
        "long": "name: [" + "a," * 1000,
        "list": "name: [x]\ndescription: d",
    }.items():
        (tmp_path / "skills" / name).mkdir(parents=True)
        (tmp_path / "skills" / name / "SKILL.md").write_text(f"---\n{matter}\n---\nBody.")
    told = describe_skills(tmp_path)
    head = "its front matter is read line by line because it"
    assert f"(skills/aliases/SKILL.md: {head} has an anchor (&).)" in told
    assert f"(skills/deep/SKILL.md: {head} is nested deeper than 16.)" in told
    assert f"(skills/long/SKILL.md: {head} has more than 400 parts.)" in told
    assert "(skills/list/SKILL.md: name of its front matter must be text.)" in told


def test_skills_beyond_the_limit_are_left_out_and_counted(tmp_path: Path) -> None:
    for number in range(260):
        (tmp_path / f"skills/s{number:03}").mkdir(parents=True)
        (tmp_path / f"skills/s{number:03}/SKILL.md").write_text("Body.")
    prompt = build_system_prompt(
        workspace_name="w", root=tmp_path, instructions="", reads_instruction_files=True
    )
    assert len(find_skills(tmp_path)) == 250
    assert "(10 more entries of .claude/skills and skills are not looked at" in prompt


@pytest.mark.parametrize("attack", IGNORED)
def test_reading_and_matching_hostile_ignore_rules_takes_limited_work(
    tmp_path: Path, attack: str
) -> None:
    (tmp_path / ".gitignore").write_text(IGNORED[attack](SIZE))
    (tmp_path / ("a" * 200)).mkdir()
    (tmp_path / ("a" * 200) / ("b" * 200)).write_text("")
    with Steps() as steps:
        find_files(tmp_path, "a")
    assert_bounded(steps, SIZE)


@pytest.mark.parametrize("attack", MARKDOWN)
def test_rendering_hostile_markdown_ends_at_the_work_budget(attack: str) -> None:
    text = repeat(MARKDOWN[attack], SIZE)
    with Steps() as steps:
        html = render_markdown(text, work=WorkBudget(200))
    assert html == TOO_MUCH_WORK + show_as_written(text)
    # The text is split into lines before the budget is first used.
    assert steps.count < 200 * MAX_LINES_OF_STEP + 40 * SIZE, steps.count


@pytest.mark.parametrize("attack", MARKDOWN)
def test_a_stream_continues_after_hostile_markdown(attack: str) -> None:
    text = repeat(MARKDOWN[attack], 2_000)
    blocks = BlockStream()
    for piece in (text[:200], text[200:], "\n\nEnd.\n", "\n\nThe end."):
        blocks.feed(piece)
        shown = "".join(blocks.blocks) + blocks.open_html()
    assert "The end." in shown


def test_each_frame_of_a_stream_has_a_work_budget() -> None:
    """A block that exceeds the budget is shown as it was written until the answer ends."""
    text = "*a* " * 3_000
    blocks = BlockStream()
    blocks.feed(text)
    with Steps() as steps:
        assert blocks.open_html() == show_as_written(text)
    assert steps.count < 50_000
    blocks = BlockStream()
    quotation = "> *a* *a*\n" * 600
    blocks.feed(quotation)
    assert blocks.open_html() == TOO_MUCH_WORK + show_as_written(quotation)
    with Steps() as steps:
        blocks.feed(">")
        assert blocks.open_html().startswith(TOO_MUCH_WORK)
    assert steps.count < 1_000


def test_an_ordinary_long_text_is_rendered_within_the_budget() -> None:
    parts = [
        "## Why the **roses** fade\n\nThe quick brown fox, see `prune(rose)` and"
        " [the guide](https://example.com/guide), jumps over the lazy dog every morning.\n\n",
        *["- an item of a list\n", "- another item, with *emphasis*\n\n"],
        "| tool | use |\n|---|---|\n| spade | to dig |\n\n",
        "```python\nfor rose in garden:\n    prune(rose)\n```\n\n",
        "A paragraph of plain words that goes on for a while, as most of them do. " * 4 + "\n\n",
    ]
    text = "".join(parts) * 200
    assert TOO_MUCH_WORK not in render_markdown(text[:100_000])


LINKS = {
    "a host": "http://" + "".join(map(chr, range(0x4E00, 0x9E00))),
    "addresses": " ".join(f"http://a{n}.example/é" for n in range(4_000)),
    "links": " ".join(f"[a](b{n})" for n in range(4_000)),
    "destinations": "[](" * 20_000,
}


@pytest.mark.parametrize("render", [render_markdown, render_person_text])
@pytest.mark.parametrize("text", LINKS.values(), ids=LINKS)
def test_rendering_many_addresses_takes_limited_work(
    render: Callable[[str], str], text: str
) -> None:
    with Steps() as steps:
        render(text)
    assert steps.count < 3_600_000, steps.count


@pytest.mark.parametrize("chars", [100, 1_000, MAX_CODE_CHARS])
def test_code_highlighting_is_limited_by_length_and_not_by_time(chars: int) -> None:
    code = "x = 1\n" * (chars // 6)
    count = (MAX_CODE_CHARS // chars) ** 2
    block = f"```python\n{code}```\n\n"
    work = WorkBudget(10**9)
    html = render_markdown(block * min(count + 2, 102), work=work)
    coloured = html.count('<span class="m">1</span>') // (chars // 6)
    assert coloured == min(int(MAX_CODE_CHARS**2 / len(code) ** 2), 102)


def test_searching_hostile_file_names_takes_limited_work(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"{'*[' * 50}{number}\n\x1b[31m").write_text("")
    with Steps() as steps:
        find_files(tmp_path, "*[*[*[" * 20)
    assert_bounded(steps, 500 * 110)


def test_searching_deeply_nested_folders_takes_limited_work(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("d", dir_fd=folder)
        with open(os.open(".gitignore", os.O_CREAT | os.O_WRONLY, dir_fd=folder), "w") as file:
            file.write("**/a*\n" * 20)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    with Steps() as steps:
        find_files(tmp_path, "d")
    assert_bounded(steps, 200 * 120)


def test_comparing_similar_lines_takes_limited_work() -> None:
    old = "".join(f"{n * n % 7 % 2}\n" for n in range(2_000))
    new = "".join(f"{n * n % 11 % 2}\n" for n in range(190))
    with Steps() as steps:
        assert unified_diff("f", old, new)
    assert steps.count < 8 * MAX_COMPARISONS


def test_finding_the_nearest_lines_takes_limited_work() -> None:
    lines = [f"{'ab' * 140}{n}" for n in range(12)]
    file = TextFile(text="\n".join(["the same", *lines]), encoding="utf-8")
    asked = "\n".join(["the same", *(f"{'ba' * 140}{n}" for n in range(12))])
    with Steps() as steps:
        told = describe_nearest(file, asked)
    assert "  the same" in told
    assert "+ abab" in told
    assert steps.count < 20_000, steps.count
