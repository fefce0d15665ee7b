"""Searches for files and lines in a folder of thousands of files, with and without ripgrep."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from conversations.agent.files.searching import FileQuery, FileSearch
from conversations.agent.tools.file_changes import EditFile, prepare_edit
from conversations.agent.tools.find_files import GlobFiles, glob_files

FILES, QUICK_FILES = 20_000, 4_000
FILES_PER_FOLDER = 50
LINES_PER_FILE = 100
MAX_SECONDS = 5.0
"""Goal for a search through every file with ripgrep. The product ends a search after 20."""


def measure(bench: Bench) -> list[Figure]:
    count = QUICK_FILES if bench.is_quick else FILES
    root = bench.data_dir / "many files"
    size = _write_files(root, count)
    figures = [
        Figure(name="files", value=count),
        Figure(name="their size", value=size / 1e6, unit="MB"),
        Figure(name="paths by pattern", value=_glob(root), unit="s", at_most=MAX_SECONDS),
        Figure(name="an edit, prepared", value=_edit(root), unit="s"),
    ]
    if shutil.which("rg"):
        figures += [
            Figure(name="first line, ripgrep", value=_search(root, "return", 1), unit="s"),
            Figure(
                name="no line, ripgrep",
                value=_search(root, "nowhere"),
                unit="s",
                at_most=MAX_SECONDS,
            ),
        ]
    with _without_programs():
        figures.append(Figure(name="no line, Python", value=_search(root, "nowhere"), unit="s"))
    shutil.rmtree(root)
    return figures


def _write_files(root: Path, count: int) -> int:
    text = "".join(
        f"def f{n}(bed):\n    return bed + {n}  # roses\n" for n in range(LINES_PER_FILE // 2)
    )
    for number in range(count):
        folder = root / f"part{number % 20}" / f"bed{number // FILES_PER_FOLDER}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file{number}.py").write_text(text)
    (root / ".gitignore").write_text("build/\n*.log\n!keep.log\n")
    return count * len(text)


def _glob(root: Path) -> float:
    began = time.perf_counter()
    glob_files(root, GlobFiles(pattern="**/*7.py"))
    return time.perf_counter() - began


def _edit(root: Path) -> float:
    path = str(next(root.rglob("*.py")))
    began = time.perf_counter()
    asked = EditFile.read({"path": path, "old_text": "+ 7 ", "new_text": "+ 8 "})
    prepare_edit(root, asked)
    return time.perf_counter() - began


def _search(root: Path, text: str, count: int = 0) -> float:
    """Return the seconds until ``count`` files were found, or with 0 until the search has ended."""
    query = FileQuery(expression=text, limit=10_000_000, seconds=600)
    began = time.perf_counter()
    found = FileSearch(root, query).run()
    for number, _ in enumerate(found, 1):
        if number == count:
            break
    found.close()
    return time.perf_counter() - began


@contextmanager
def _without_programs() -> Iterator[None]:
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = os.sep + "nowhere"
    try:
        yield
    finally:
        os.environ["PATH"] = path
