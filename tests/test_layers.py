"""The layers: imports between modules, modules that write to tables, and lazy imports."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from loomweb.env import BASE_DIR

PRODUCT = [
    path
    for folder in ("conversations", "loomweb")
    for path in sorted((BASE_DIR / folder).rglob("*.py"))
    if "migrations" not in path.parts
]
PAGES = {"views", "api", "forms", "urls", "pages", "queue_pages", "audit_pages", "search_pages"}
"""Modules that answer requests and do not write to tables."""

WRITERS = (
    "archive/",
    "search/",
    "accounts/",
    "review/",
    "features/",
    "agent/undo/records",
    "api/idempotency",
)


def may_write(path: Path) -> bool:
    """Return whether the module may read and write tables."""
    name = (
        path.relative_to(BASE_DIR / "conversations").as_posix()
        if "conversations" in path.parts
        else ""
    )
    return name.startswith(WRITERS) and path.stem not in PAGES


OUTSIDE_ARCHIVE = [path for path in PRODUCT if not may_write(path)]

WRITES = {
    name
    for verb in ("create", "get_or_create", "update_or_create", "bulk_create", "bulk_update")
    for name in (verb, f"a{verb}")
} | {"save", "asave", "update", "aupdate", "delete", "adelete", "_raw_delete", "_update"}

NO_TABLE = {
    ("conversations/access.py", "context.recorded.update"),
    ("conversations/agent/mcp/oauth.py", "self._grants.save"),
    ("conversations/api/files.py", "router.delete"),
    ("conversations/api/workspaces.py", "of_one.delete"),
    ("conversations/features/retention/api.py", "conversations.delete"),
    ("conversations/features/retention/api.py", "router.delete"),
    ("conversations/features/usage/api.py", "router.delete"),
    ("conversations/features/webhooks/api.py", "router.delete"),
    ("conversations/features/sharing/api.py", "router.delete"),
    ("conversations/api/idempotency.py", "content.update"),
    ("conversations/api/idempotency.py", "digest.update"),
    ("conversations/providers/anthropic_messages.py", "client.messages.with_raw_response.create"),
    ("conversations/features/discord/posting.py", "channel.get_partial_message(message).delete"),
    ("conversations/providers/message_assembly.py", "self._message.update"),
    ("conversations/providers/message_assembly.py", "self._usage.update"),
    ("conversations/agent/sandbox/repositories.py", "digest.update"),
    ("conversations/agent/sandbox/command_run.py", "prepared.environment.update"),
    ("conversations/admin.py", "TABLES.update"),
    ("loomweb/settings.py", "globals().update"),
    (
        "conversations/rendering/draw_pdf.py",
        "page.render(scale=scale).to_pil().convert('RGB').save",
    ),
}
"""Calls with a name in WRITES that have nothing to do with the database."""


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def calls_in(path: Path) -> list[tuple[str, ast.Attribute]]:
    """Return all calls of attributes as pairs of the attribute's name and the expression."""
    return [
        (node.func.attr, node.func)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]


def name_of(path: Path) -> str:
    return path.relative_to(BASE_DIR).as_posix()


def test_no_layer_imports_a_higher_one() -> None:
    """The contracts are in pyproject.toml."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=BASE_DIR,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_only_modules_that_may_write_change_tables() -> None:
    found = [
        f"{name_of(path)}:{called.lineno} {ast.unparse(called)}"
        for path in OUTSIDE_ARCHIVE
        for name, called in calls_in(path)
        if name in WRITES and (name_of(path), ast.unparse(called)) not in NO_TABLE
    ]
    assert not found


def test_only_known_modules_execute_sql() -> None:
    speaking = {
        name_of(path)
        for path in OUTSIDE_ARCHIVE
        for name, _ in calls_in(path)
        if name.startswith("execute")
    }
    known = {
        "conversations/management/base.py",  # BaseCommand.execute, no SQL
        "conversations/features/retention/api.py",  # executes a purge order
        "conversations/runtime/queue.py",  # executes a run
        "conversations/runtime/run.py",  # executes a run
        "conversations/models/guards.py",
        "conversations/models/search.py",
        "loomweb/sqlite3/base.py",  # begins transactions
    }
    assert speaking == {name for name in known if (BASE_DIR / name).exists()}


def test_only_providers_import_the_anthropic_sdk_and_only_when_needed() -> None:
    importers = importers_of({"anthropic"})
    assert {path.parent.name for path in importers} <= {"providers"}
    assert not [path for path in importers if "anthropic" in imported_by(path, walk_what_runs)]


def test_only_session_and_oauth_import_the_sdk_of_tool_servers() -> None:
    importers = importers_of({"mcp", "mcp_types"})
    assert {path.name for path in importers} == {"session.py", "oauth.py"}
    users = {path for path in PRODUCT if "mcp.session" in path.read_text()}
    assert {path.name for path in users} == {"connection.py"}


@cache
def imported_by(path: Path, walk: Callable[[ast.AST], Iterable[ast.AST]]) -> set[str]:
    """Return the top-level packages that a module imports in the nodes that ``walk`` yields."""
    return {name for node in walk(parse(path)) for name in packages_of(node)}


def importers_of(packages: set[str]) -> set[Path]:
    """Return the modules that import one of the packages anywhere."""
    # Most modules do not even contain the name of a package and need not be parsed.
    naming = (path for path in PRODUCT if any(package in path.read_text() for package in packages))
    return {path for path in naming if packages & imported_by(path, ast.walk)}


def walk_what_runs(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when the module is imported.

    The bodies of functions and ``if TYPE_CHECKING`` blocks are left out.
    """
    yield node
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from walk_what_runs(child)


def packages_of(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and not node.level:
        return {(node.module or "").partition(".")[0]}
    return set()


def loaded_after(statements: Iterable[str], folder: Path) -> list[set[str]]:
    """Return the modules that a new process has loaded after each of the statements."""
    script = "import sys; " + "; ".join(f"{one}; print(*sys.modules)" for one in statements)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"LOOM_DATA_DIR": str(folder), "PATH": ""},
        cwd=BASE_DIR,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


STARTS = {
    "the application": "import loomweb.asgi, loomweb.urls",
    "the server": "import loomweb.daphne_server",
    "a page": "from django.urls import reverse; reverse('api_docs')",
}
"""Statements that run one after another in the same process."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The modules that are loaded after each of the ``STARTS``."""
    folder = tmp_path_factory.mktemp("data")
    return dict(zip(STARTS, loaded_after(STARTS.values(), folder), strict=True))


def test_the_server_starts_without_the_sdk(loaded: dict[str, set[str]]) -> None:
    """The SDK costs seconds and 50 MB, which are spent while the server waits."""
    modules = loaded["the server"]
    assert {"loomweb.asgi", "loomweb.daphne_server", "conversations.runtime.service"} <= modules
    assert not {"anthropic", "openai", "mcp", "aiohttp", "psycopg", "numpy"} & modules


RARELY_NEEDED = {"PIL", "limits", "ninja", "pypdf", "redis", "unittest", "OpenSSL"}
"""Packages of 1 to 7 MB each: images, the API, PDFs, Redis, tests, and TLS in Twisted."""


def test_a_server_that_shows_pages_loads_no_package_that_pages_do_not_need(
    loaded: dict[str, set[str]],
) -> None:
    assert not RARELY_NEEDED & loaded["a page"]


def test_pages_do_not_load_the_operations_of_the_api(loaded: dict[str, set[str]]) -> None:
    """The operations cost half a second and 12 MB, and their framework another 5 MB."""
    modules = loaded["a page"]
    assert {"conversations.web.urls", "conversations.api.urls"} <= modules
    assert not {"conversations.api.main", "conversations.api.sessions", "ninja"} & modules


OF_THE_EXTRA = {"allauth", "fido2", "jwt", "oauthlib", "qrcode", "requests"}


def test_the_sso_extra_is_not_loaded_unless_it_is_configured(
    loaded: dict[str, set[str]],
) -> None:
    """The server does not load the packages of the extra, although they are installed."""
    modules = loaded["the application"]
    assert {"loomweb.asgi", "loomweb.urls"} <= modules
    assert not (OF_THE_EXTRA | {"cryptography"}) & {name.partition(".")[0] for name in modules}
    assert not {name for name in modules if name.startswith("conversations.accounts.sso")}
    # Push messages also need cryptography and jwt, so these two are always installed.
    own = OF_THE_EXTRA - {"cryptography", "jwt"}
    assert {path.parent.name for path in importers_of(own)} == {"sso"}


def test_the_domain_is_plain_python(tmp_path: Path) -> None:
    names = [path.stem for path in (BASE_DIR / "conversations/domain").glob("[a-z]*.py")]
    statement = "import " + ", ".join(f"conversations.domain.{name}" for name in names)
    [loaded] = loaded_after([statement], tmp_path)
    assert {f"conversations.domain.{name}" for name in names} <= loaded
    assert not {name for name in loaded if name.partition(".")[0] in ("django", "channels")}


RIGHTS = {"is_staff", "is_superuser", "is_active", "password"}
GIVERS = {"create_user", "create_superuser", "set_password", "set_unusable_password"}
ON_A_RELATION = {"add", "remove", "set", "clear"}
OF_A_PERSON = {"groups", "user_permissions", "permissions", "user_set"}


def changes_rights(node: ast.AST) -> bool:
    """Return whether the node changes an account, a group or a permission."""
    if isinstance(node, ast.Assign):
        return any(isinstance(one, ast.Attribute) and one.attr in RIGHTS for one in node.targets)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    called = node.func.attr
    if called not in {*ON_A_RELATION, *GIVERS, *WRITES}:  # most calls; unparsing them is slow
        return False
    on = ast.unparse(node.func.value)
    if called in ON_A_RELATION:
        return on.rpartition(".")[2] in OF_A_PERSON
    is_account = on.startswith(("User.objects", "Group.objects", "group", "user"))
    return called in GIVERS or (called in WRITES and is_account)


def test_functions_that_change_rights_record_audit_entries() -> None:
    """A function that changes an account, a group or a permission also records an audit entry.

    It is in a module that writes to tables. Django's own commands are not checked.
    """
    found = {}
    for path in PRODUCT:
        for function in ast.walk(parse(path)):
            if isinstance(function, ast.FunctionDef) and any(
                map(changes_rights, ast.walk(function))
            ):
                text = ast.unparse(function)
                enters = any(call in text for call in ("record(", "_note(", "accept_invitation("))
                found[f"{name_of(path)}:{function.name}"] = enters
    unnoted = {name for name, enters in found.items() if not enters}
    # role_group runs after each migration and is not the action of a person.
    assert unnoted == {"conversations/archive/rights.py:role_group"}
    assert len(found) > 10
    assert {name.split("/")[1] for name in found} <= {"accounts", "archive", "features"}
