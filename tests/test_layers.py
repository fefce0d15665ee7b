"""The layers: who imports whom, who writes, and what is loaded when."""

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
"""Modules of a room that answer requests, and do not write."""

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
    """Whether the module is one of those that read and write tables."""
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
"""Calls of these names that have nothing to do with the database."""


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def calls_in(path: Path) -> list[tuple[str, ast.Attribute]]:
    """The calls of attributes: the attribute's name and the whole expression."""
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


def test_only_the_archive_writes() -> None:
    found = [
        f"{name_of(path)}:{called.lineno} {ast.unparse(called)}"
        for path in OUTSIDE_ARCHIVE
        for name, called in calls_in(path)
        if name in WRITES and (name_of(path), ast.unparse(called)) not in NO_TABLE
    ]
    assert not found


def test_only_the_archive_and_the_guards_speak_sql() -> None:
    speaking = {
        name_of(path)
        for path in OUTSIDE_ARCHIVE
        for name, _ in calls_in(path)
        if name.startswith("execute")
    }
    known = {
        "conversations/management/base.py",  # BaseCommand.execute, which is no SQL
        "conversations/features/retention/api.py",  # an order is executed
        "conversations/runtime/queue.py",  # and so is a run
        "conversations/runtime/run.py",
        "conversations/models/guards.py",
        "conversations/models/search.py",
        "loomweb/sqlite3/base.py",  # begins transactions
    }
    assert speaking == {name for name in known if (BASE_DIR / name).exists()}


def test_the_sdk_is_imported_by_providers_only_and_when_needed() -> None:
    importers = importers_of({"anthropic"})
    assert {path.parent.name for path in importers} <= {"providers"}
    assert not [path for path in importers if "anthropic" in imported_by(path, walk_what_runs)]


def test_the_sdk_of_tool_servers_is_imported_by_two_modules_and_when_needed() -> None:
    importers = importers_of({"mcp", "mcp_types"})
    assert {path.name for path in importers} == {"session.py", "oauth.py"}
    users = {path for path in PRODUCT if "mcp.session" in path.read_text()}
    assert {path.name for path in users} == {"connection.py"}


@cache
def imported_by(path: Path, walk: Callable[[ast.AST], Iterable[ast.AST]]) -> set[str]:
    """The top-level packages that a module imports somewhere in what ``walk`` gives."""
    return {name for node in walk(parse(path)) for name in packages_of(node)}


def importers_of(packages: set[str]) -> set[Path]:
    """The modules that import one of them somewhere. Most do not even name one."""
    naming = (path for path in PRODUCT if any(package in path.read_text() for package in packages))
    return {path for path in naming if packages & imported_by(path, ast.walk)}


def walk_what_runs(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is imported: all but the bodies of functions and
    what is for the type checker."""
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
    """The modules that a fresh process has after each of these."""
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
"""Each in the process of those before it."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What each of the starts has loaded, together with those before it."""
    folder = tmp_path_factory.mktemp("data")
    return dict(zip(STARTS, loaded_after(STARTS.values(), folder), strict=True))


def test_the_server_starts_without_the_sdk(loaded: dict[str, set[str]]) -> None:
    """It costs seconds and 75 MB, and most starts do not need it."""
    modules = loaded["the server"]
    assert {"loomweb.asgi", "loomweb.daphne_server", "conversations.runtime.service"} <= modules
    assert not {"anthropic", "mcp", "aiohttp", "psycopg", "numpy"} & modules


def test_pages_do_without_the_operations_of_the_api(loaded: dict[str, set[str]]) -> None:
    """They cost half a second and 12 MB."""
    modules = loaded["a page"]
    assert {"conversations.web.urls", "conversations.api.urls"} <= modules
    assert not {"conversations.api.main", "conversations.api.sessions"} & modules


OF_THE_EXTRA = {"allauth", "fido2", "jwt", "oauthlib", "qrcode", "requests"}


def test_the_extra_way_to_sign_in_is_loaded_where_it_is_asked_for_only(
    loaded: dict[str, set[str]],
) -> None:
    """The server runs without the packages of the extra, though they are here."""
    modules = loaded["the application"]
    assert {"loomweb.asgi", "loomweb.urls"} <= modules
    assert not (OF_THE_EXTRA | {"cryptography"}) & {name.partition(".")[0] for name in modules}
    assert not {name for name in modules if name.startswith("conversations.accounts.sso")}
    # Those that it has in common with push messages are always here.
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
    """Whether it changes an account, a group or what somebody may."""
    if isinstance(node, ast.Assign):
        return any(isinstance(one, ast.Attribute) and one.attr in RIGHTS for one in node.targets)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    called = node.func.attr
    if called not in {*ON_A_RELATION, *GIVERS, *WRITES}:  # most calls, whose text takes long
        return False
    on = ast.unparse(node.func.value)
    if called in ON_A_RELATION:
        return on.rpartition(".")[2] in OF_A_PERSON
    is_account = on.startswith(("User.objects", "Group.objects", "group", "user"))
    return called in GIVERS or (called in WRITES and is_account)


def test_rights_change_in_functions_that_enter_it_in_the_audit_log() -> None:
    """Whatever writes an account, a group or a permission stands in a module that writes,
    beside the call that makes the entry. Those of Django's own commands are not ours."""
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
    # After each migration, and nobody's.
    assert unnoted == {"conversations/archive/rights.py:role_group"}
    assert len(found) > 10
    assert {name.split("/")[1] for name in found} <= {"accounts", "archive", "features"}
