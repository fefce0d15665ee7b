"""Rules of ``.gitignore``, which must mean the same as in git, and glob patterns."""

import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversations.agent.files.walking import FolderWalk, decide, read_pattern, read_rules
from conversations.domain.errors import Rejected

NAMES = ("a", "b", "ab", "a.b", ".a", "a b", "A")


def ignored_by_git(root: Path, lines: list[str], paths: list[str]) -> set[str]:
    (root / ".gitignore").write_text("".join(f"{line}\n" for line in lines))
    asked = "\0".join(paths).encode()
    command = ["git", "-C", str(root), "check-ignore", "--no-index", "--stdin", "-z"]
    found = subprocess.run(command, input=asked, capture_output=True, check=False)
    assert found.returncode in (0, 1), found.stderr
    return {path for path in found.stdout.decode().split("\0") if path}


def ignored_here(lines: list[str], path: str) -> bool:
    """Return whether the rules ignore the path itself or a folder that contains it."""
    rules = read_rules("\n".join(lines).encode())
    parts = path.split("/")
    return any(
        decide(rules, parts[:end], is_folder=end < len(parts)) for end in range(1, len(parts) + 1)
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


names = st.sampled_from(
    (*NAMES, "*", "a*", "*b", "?", "**", "[ab]", "[!a]*", "[^a]", r"\a", "a**b")
)
rules = st.builds(
    lambda negated, anchored, parts, folder: (
        f"{'!' * negated}{'/' * anchored}{'/'.join(parts)}{'/' * folder}"
    ),
    st.booleans(),
    st.booleans(),
    st.lists(names, min_size=1, max_size=3),
    st.booleans(),
)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


@settings(max_examples=60)
@given(lines=st.lists(rules, min_size=1, max_size=5), asked=st.lists(paths, min_size=8, max_size=8))
def test_generated_rules_mean_the_same_as_in_git(
    repository: Path, lines: list[str], asked: list[str]
) -> None:
    expected = ignored_by_git(repository, lines, asked)
    assert {path for path in asked if ignored_here(lines, path)} == expected


@pytest.mark.parametrize(
    "line",
    ["# a", r"\#a", r"\!a", "a ", r"a\ ", "", "/", "!", "a//b", "[a", "a[", r"a\\", "a/**/b", "**"],
)
def test_odd_rules_mean_the_same_as_in_git(repository: Path, line: str) -> None:
    asked = ["a", "b", "#a", "# a", "!a", "a ", "a/b", "a/x/b", "[a", "a[", "x/a", "a\\"]
    expected = ignored_by_git(repository, [line], asked)
    assert {path for path in asked if ignored_here([line], path)} == expected


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".py"], ["a.pyc", "py/a"]),
        ("**/*.py", ["a.py", "x/y/a.py"], ["a.pyc"]),
        ("src/*.py", ["src/a.py"], ["src/x/a.py", "x/src/a.py"]),
        ("src/**", ["src/a", "src/x/y"], ["src", "x/src/a"]),
        ("./a/**/b", ["a/b", "a/x/y/b"], ["b", "x/a/b"]),
        ("*.{js,ts{,x}}", ["a.js", "a.ts", "a.tsx"], ["a.t"]),
        ("[a-c]?.txt", ["b1.txt"], ["d1.txt", "b.txt"]),
        (r"\*.txt", ["*.txt"], ["a.txt"]),
        ("{a,b}", ["a", "x/b"], ["{a,b}", "c"]),
    ],
)
def test_patterns_match_whole_paths(pattern: str, matching: list[str], other: list[str]) -> None:
    read = read_pattern(pattern, folder=Path("/w"))
    assert [path for path in (*matching, *other) if read.matches(path.split("/"))] == matching


@pytest.mark.parametrize("pattern", ["", " ", "x" * 1001, "a/../b", "..", "{" + "a," * 100 + "}"])
def test_invalid_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(Rejected):
        read_pattern(pattern, folder=Path("/w"))


def test_a_walk_ends_at_its_deadline(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    walk = FolderWalk(root=tmp_path, deadline=time.monotonic() - 1)
    assert list(walk.entries()) == []
    assert walk.is_late
