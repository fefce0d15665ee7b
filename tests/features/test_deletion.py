"""Each feature can be deleted, together with its line in the settings.

The rest of the product is migrated and checked, its first pages are requested, and it has to pass
the few tests that reveal most. Several features are removed at a time here; ``make test-features``
removes them one by one and runs all tests.
"""

import ast
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import combinations, permutations
from pathlib import Path

import pytest

from loomweb.env import BASE_DIR
from scripts.without import START, copy_product, environment_of, list_features, taken_out
from tests.starting import SETTINGS, Starts, forked_starts

FEATURES = list_features()
SOURCES = [
    path
    for folder in ("conversations", "loomweb", "templates", "tests", "scripts", "benchmarks")
    for path in (BASE_DIR / folder).rglob("*")
    if path.suffix in (".py", ".html")
]
LEFT = [
    "tests/test_docs.py::test_every_command_is_described",
    "tests/test_docs.py::test_every_scope_of_a_token_is_named",
    "tests/test_docs.py::test_every_metric_is_described",
    "tests/test_docs.py::test_paths_in_the_architecture_document_exist",
    "tests/test_docs.py::test_the_backup_section_names_everything_in_the_data_folder",
    "tests/web/test_matrix.py::test_every_url_has_a_row",
    "tests/api/test_matrix.py::test_every_operation_has_a_row_and_asks_for_its_scope",
]
"""Tests that import most of the product and read its addresses, tables and commands.

The other tests of ``test_docs`` read nothing to which features contribute.
"""

NAMED = re.compile(r"""(?:{% url|reverse\(|redirect\() *["'](\w+)["']""")


def imports_of(path: Path) -> set[str]:
    """Return the names that a module imports, at its top level or inside functions."""

    def walk() -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    return set(walk())


def feature_of(path: Path) -> str:
    """Return the feature to which a source or test file belongs, or an empty string."""
    found = re.search(r"features/(\w+)/", path.as_posix())
    return found[1] if found else ""


def test_only_a_feature_imports_its_own_modules() -> None:
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


def test_only_a_feature_links_to_its_own_pages() -> None:
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


LOADED = (
    *SETTINGS,
    "anyio._backends._asyncio",
    "channels.generic.websocket",
    "django.db.backends.sqlite3.base",
    "django.test.client",
    "httpcore2",
    "hypothesis",
    "limits.aio",
    "markdown_it",
    "PIL.Image",
    "pydantic.json_schema",
    "pygments.formatters",
    "pytest_asyncio",
    "pytest_django",
    "valkey.asyncio",
    "xdist",
    "xml.sax.xmlreader",
)
"""Modules that the tests load. They do not need the server's Twisted and the provider's SDK."""


@pytest.fixture(scope="module")
def starts() -> Iterator[Starts]:
    with forked_starts(LOADED) as starts:
        yield starts


@pytest.fixture(scope="module")
def product(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the product, from which the features are removed in turn.

    All rounds share the copy, so that a module is compiled only once. The migration creates the
    tables of all features, even of missing ones. In this copy it is loaded but already applied;
    ``make test-features`` applies it.
    """
    folder = tmp_path_factory.mktemp("product")
    copy_product(folder)
    (folder / "data").mkdir()
    shutil.copy(migrated, folder / "data")
    return folder


ROUNDS = 5
"""The number of rounds. Each feature is missing in two rounds, and no two features in the same two.

Therefore each feature is once missing while any other one is present, which fails if it needs the
missing one.
"""

OUT = dict(zip(FEATURES, combinations(range(ROUNDS), 2), strict=False))


def test_each_feature_is_once_missing_while_any_other_is_present() -> None:
    assert set(OUT) == set(FEATURES), "it takes another round"
    for one, other in permutations(FEATURES, 2):
        assert set(OUT[one]) - set(OUT[other])


@pytest.mark.parametrize("number", range(ROUNDS))
def test_the_product_starts_and_passes_tests_without_some_features(
    number: int, starts: Starts, product: Path
) -> None:
    tests = ["-q", "--assert", "plain"]
    for plugin in ("cacheprovider", "playwright", "unraisableexception"):
        tests += ["-p", f"no:{plugin}"]
    code = f"{START}\nimport pytest, sys\nsys.exit(pytest.main({tests + LEFT!r}))"
    out = [feature for feature in FEATURES if number in OUT[feature]]
    with ExitStack() as stack:
        for feature in out:
            stack.enter_context(taken_out(feature, product))
        done = starts.run("-c", code, env=environment_of(product), cwd=product)
    assert done.returncode == 0, f"without {out}\n{done.stdout}{done.stderr}"
