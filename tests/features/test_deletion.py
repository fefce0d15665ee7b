"""The features can be deleted with their lines in the settings.

Without all of them, what is left is migrated, checked, asked for pages, and passes the few of its
tests that tell most. That none needs another is read here from what imports and links to it;
``make test-features`` takes them out one by one and runs all tests.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from loomweb.env import BASE_DIR
from scripts.without import START, copy_product, environment_of, list_features, taken_out

FEATURES = list_features()
SOURCES = [
    path
    for folder in ("conversations", "loomweb", "templates", "tests", "scripts", "benchmarks")
    for path in (BASE_DIR / folder).rglob("*")
    if path.suffix in (".py", ".html")
]
LEFT = [
    "tests/test_docs.py",
    "tests/web/test_matrix.py::test_every_url_has_a_row",
    "tests/api/test_matrix.py::test_every_operation_has_a_row_and_asks_for_its_scope",
]
"""Tests that import most of the product, and know addresses, tables, commands."""

NAMED = re.compile(r"""(?:{% url|reverse\(|redirect\() *["'](\w+)["']""")


def imports_of(path: Path) -> set[str]:
    """What a module imports, whenever it does."""

    def walk() -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    return set(walk())


def feature_of(path: Path) -> str:
    """The feature that the file is of, or whose tests are in it; empty: of none."""
    found = re.search(r"features/(\w+)/", path.as_posix())
    return found[1] if found else ""


def test_nothing_else_imports_a_feature() -> None:
    name = re.compile(r"(?:conversations|tests)\.features\.(\w+)\.")
    importers = [
        f"{path.relative_to(BASE_DIR)}: {imported}"
        for path in SOURCES
        if path.suffix == ".py" and "features" in path.read_text()
        for imported in imports_of(path)
        if (found := name.match(f"{imported}.")) and found[1] in FEATURES
        if found[1] != feature_of(path)
    ]
    assert importers == []


def test_nothing_else_links_to_pages_of_a_feature() -> None:
    pages = {
        name: feature
        for feature in FEATURES
        if (urls := BASE_DIR / f"conversations/features/{feature}/urls.py").exists()
        for name in re.findall(r'name="(\w+)"', urls.read_text())
    }
    assert len(pages) > 20
    linking = {
        f"{path.relative_to(BASE_DIR)}: {name}"
        for path in SOURCES
        if "tests" not in path.relative_to(BASE_DIR).parts
        for name in NAMED.findall(path.read_text())
        if name in pages and pages[name] != feature_of(path)
    }
    assert linking == set()


def test_what_is_left_starts_and_passes(migrated: Path, tmp_path: Path) -> None:
    """The migration makes the tables of all features, whichever are there: it is loaded and found
    to be done here, and done by ``make test-features``."""
    copy_product(tmp_path)
    (tmp_path / "data").mkdir()
    shutil.copy(migrated, tmp_path / "data")
    tests = ["-q", "--assert", "plain", "-p", "no:cacheprovider", "-p", "no:playwright"]
    code = f"{START}\nimport pytest, sys\nsys.exit(pytest.main({tests + LEFT!r}))"
    with ExitStack() as stack:
        for feature in FEATURES:
            stack.enter_context(taken_out(feature, tmp_path))
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment_of(tmp_path),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
