"""Each feature can be deleted with its line in the settings.

What is left is migrated, checked, asked for pages, and passes the few of its tests here that
tell most; ``make test-features`` runs all of them.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from loomweb.env import BASE_DIR
from scripts.without import list_features, run_without

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
    "tests/test_migrations.py::test_no_change_of_a_model_lacks_its_migration",
]
"""Tests that import most of the product, and know addresses, tables, commands."""

NAMED = re.compile(r"""(?:{% url|reverse\(|redirect\() *["'](\w+)["']""")


def is_of(path: Path, feature: str) -> bool:
    return f"features/{feature}/" in path.as_posix()


@cache
def imports_of(path: Path) -> frozenset[str]:
    """What a module imports, whenever it does."""

    def walk() -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    return frozenset(walk())


@pytest.mark.parametrize("feature", FEATURES)
def test_nothing_else_imports_a_feature(feature: str) -> None:
    packages = (f"conversations.features.{feature}.", f"tests.features.{feature}.")
    importers = [
        path.relative_to(BASE_DIR).as_posix()
        for path in SOURCES
        if path.suffix == ".py" and not is_of(path, feature)
        if any(f"{name}.".startswith(packages) for name in imports_of(path))
    ]
    assert importers == []


@pytest.mark.parametrize("feature", FEATURES)
def test_nothing_else_links_to_pages_of_a_feature(feature: str) -> None:
    urls = BASE_DIR / f"conversations/features/{feature}/urls.py"
    pages = set(re.findall(r'name="(\w+)"', urls.read_text())) if urls.exists() else set()
    linking = {
        f"{path.relative_to(BASE_DIR).as_posix()}: {name}"
        for path in SOURCES
        if not is_of(path, feature) and "tests" not in path.relative_to(BASE_DIR).parts
        for name in NAMED.findall(path.read_text())
        if name in pages
    }
    assert linking == set()


@pytest.mark.parametrize("feature", FEATURES)
def test_what_is_left_starts_and_passes(feature: str) -> None:
    assert run_without(feature, ["-n", "0", *LEFT]) == 0
