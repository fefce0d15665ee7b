"""The examples of the API's documents, run one after the other against a server."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loomweb.env import BASE_DIR

from .live import LiveServer, live_server

DOCUMENTS = ("docs/api.md", "docs/streaming.md", "docs/work-items.md", "docs/formats.md")

FENCE = re.compile(r"^```(sh|json|text)\n(.*?)^```$", re.M | re.S)

MARK = "=== the next example ==="


def read_examples() -> list[tuple[str, str]]:
    """Each example, and what stands below it as its answer, if anything does."""
    found: list[tuple[str, str]] = []
    documents = "".join((BASE_DIR / name).read_text() for name in DOCUMENTS)
    for kind, text in FENCE.findall(documents):
        if kind == "sh":
            found.append((text, ""))
        else:
            found[-1] = (found[-1][0], text)
    return found


def fits(expected: Any, given: Any) -> bool:
    """Whether the answer has what the document shows of it. An ellipsis is any text, and a
    list shows how its first items are."""
    if isinstance(expected, dict):
        return isinstance(given, dict) and all(
            name in given and fits(value, given[name]) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(given, list) and all(
            len(given) > place and fits(one, given[place]) for place, one in enumerate(expected)
        )
    if expected == "…":
        return isinstance(given, str) and given != ""
    if isinstance(expected, float):
        return isinstance(given, float)
    return bool(expected == given)


def is_like(expected: list[str], given: list[str]) -> bool:
    """Whether the lines are these; an ellipsis is any text."""
    patterns = [re.escape(line).replace("…", ".+") for line in expected]
    return len(given) == len(expected) and all(
        re.fullmatch(pattern, line) for pattern, line in zip(patterns, given, strict=True)
    )


@pytest.fixture
def server(tmp_path: Path, migrated: Path) -> LiveServer:
    folder = tmp_path / "data"
    folder.mkdir()
    with live_server(folder, migrated) as server:
        yield server  # type: ignore[misc]


def run_examples(server: LiveServer, folder: Path) -> list[str]:
    """What each one prints."""
    script = "set -euo pipefail\n" + "".join(
        f"{code}\necho; echo '{MARK}'\n" for code, _ in read_examples()
    )
    script = script.replace("http://127.0.0.1:8000", server.url).replace("loom_…", server.token)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(MARK)[:-1]


def test_every_example_gives_the_answer_below_it(server: LiveServer, tmp_path: Path) -> None:
    examples = read_examples()
    printed = run_examples(server, tmp_path)
    assert len(printed) == len(examples) > 10
    for (code, answer), text in zip(examples, printed, strict=True):
        if not answer:
            continue
        shown = text.strip().splitlines()[-1]
        if not answer.startswith(("{", "2")):
            lines = answer.strip().splitlines()
            assert is_like(lines, text.strip().splitlines()[-len(lines) :]), f"{code}\n{text}"
        else:
            assert fits(json.loads(answer), json.loads(shown)), f"{code}\n{shown}"
