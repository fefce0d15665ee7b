"""Fixtures that every test may use: people, a workspace, a session and forked processes."""

import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections, transaction
from django.db.models import Model
from django.template.base import Variable, VariableDoesNotExist
from django.test import TransactionTestCase
from django.urls import URLResolver
from django.utils import timezone
from hypothesis import HealthCheck, settings

from benchmarks.processes import ROOT, clean_environment
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member, create_workspace
from conversations.models import (
    AuditEntry,
    ChatEvent,
    Compaction,
    PurgePermit,
    Receipt,
    ReviewFlag,
    ReviewMark,
    ReviewNote,
    Rewind,
    Session,
    SessionSkill,
    Turn,
    Workspace,
)
from conversations.models.guards import guard_names, install_guards
from conversations.runtime import current, model_routing
from tests.starting import Starts, forked_starts

pytest_plugins = ["tests.wire.fixtures"]

# No deadline, because a test cannot know how fast and how busy the machine is.
settings.register_profile(
    "ordinary", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ordinary")
settings.register_profile("thorough", settings.get_profile("ordinary"), max_examples=1000)


# Imported modules and collected tests live until the end. Without this, the garbage collector would
# look through them again and again. That takes a tenth of the time of importing and collecting
# tests, and a twentieth of the time of most tests.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Return one more than the number of cores, because every worker waits now and then."""
    return (os.process_cpu_count() or 1) + 1


populate = URLResolver._populate


def populate_apart(resolver: URLResolver) -> None:
    """Populate a resolver in a copy of the context.

    Each of 80 resolvers leaves a variable in the context in which it is first used. In a server
    this is the context of a request. Here it would be the context of all tests, and each switch
    between an event loop and a thread copies all variables.
    """
    copy_context().run(populate, resolver)


URLResolver._populate = populate_apart  # type: ignore[method-assign]


resolve = Variable._resolve_lookup  # type: ignore[attr-defined]


def resolve_known_names(variable: Variable, context: Any) -> Any:
    """Fail the test if a template uses an unknown attribute of a model or of a list.

    Django renders an unknown name as an empty string. A name that is missing in a context or in a
    dict may be left out on purpose, but the attributes of models and lists are always the same.
    """
    try:
        return resolve(variable, context)
    except VariableDoesNotExist as error:
        name, found = error.params
        if isinstance(found, Model | list) and not name.isdigit():
            pytest.fail(f"{{{{ {variable.var} }}}}: {type(found).__name__} has no “{name}”")
        raise


Variable._resolve_lookup = resolve_known_names  # type: ignore[attr-defined]


# No delay, because tests have no pages to show first and wait for the work in the background.
model_routing.WARM_UP_SECONDS = 0.0


def empty_tables(_: TransactionTestCase) -> None:
    """Delete the rows of all tables but those of content types and permissions.

    This replaces Django's ``flush``, which also empties these two tables and fills them again. That
    takes longer than most tests. ``TRUNCATE`` is slower than deleting a few rows, and most tables
    have no rows.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(find_filled_tables())
        for (table,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


@cache
def find_filled_tables() -> str:
    """Return the SQL statement that selects the names of the tables with rows."""
    tables = set(connection.introspection.django_table_names(only_existing=True))
    tables -= {ContentType._meta.db_table, Permission._meta.db_table}
    return " UNION ALL ".join(
        f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {connection.ops.quote_name(table)})"
        for table in sorted(tables)
    )


TransactionTestCase._fixture_teardown = empty_tables  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _leave_no_runtime() -> Iterator[None]:
    """Close a runtime that the test has started.

    If a synchronous test requests a page, the runtime starts on an event loop that ends with the
    request. It must not answer the requests of the next test.
    """
    yield
    left, current._runtime = current._runtime, None
    if left is not None:
        left.writer.close()
        left.readers.close()
        left.owner.close()


@pytest.fixture(autouse=True)
def _purge_archive(request: pytest.FixtureRequest) -> Iterator[None]:
    """Empty the append-only tables, by permit, before the flush of a transactional test."""
    is_transactional = "transactional_db" in request.fixturenames or any(
        marker.kwargs.get("transaction") for marker in request.node.iter_markers("django_db")
    )
    if is_transactional:
        request.getfixturevalue("transactional_db")
    yield
    if is_transactional:
        # Async code runs its queries on this thread, and no other code closes its connection.
        closing = SyncToAsync.single_thread_executor.submit(connections.close_all)
        try:
            closing.result(timeout=60)
        except TimeoutError:
            # On that thread, a request of a failed test waits for ever for a loop that has ended.
            SyncToAsync.single_thread_executor = ThreadPoolExecutor(max_workers=1)
            raise
        finally:
            purge_everything()


ARCHIVED: tuple[type[Model], ...] = (
    ChatEvent,
    Turn,
    Rewind,
    SessionSkill,
    Compaction,
    ReviewNote,
    ReviewFlag,
    ReviewMark,
)


def purge_everything() -> None:
    """Delete all archived rows with a purge permit."""
    with transaction.atomic():
        for pk in Session.objects.values_list("pk", flat=True):
            PurgePermit.objects.create(session_pk=pk, reason="test", created_at=timezone.now())
        for model in ARCHIVED:
            model._default_manager.all()._raw_delete(connection.alias)
        PurgePermit.objects.all().delete()
        for kept in (AuditEntry, Receipt):
            empty_kept_table(kept)


def empty_kept_table(model: type[Model]) -> None:
    """Empty a table whose rows no permit allows to delete, by dropping its guard meanwhile."""
    if not model._default_manager.exists():
        return
    table = model._meta.db_table
    _, no_delete, _ = guard_names(table, connection.vendor)
    with connection.cursor() as cursor:
        on_table = f" ON {table}" if connection.vendor == "postgresql" else ""
        cursor.execute(f"DROP TRIGGER {no_delete}{on_table}")
        cursor.execute(f"DELETE FROM {table}")
    install_guards()


@pytest.fixture(scope="session")
def starts() -> Iterator[Starts]:
    """Start processes as forks, each of which loads the product with its own settings."""
    with forked_starts() as starts:
        yield starts


PREPARE = """
from django.core.management import call_command
from conversations.management.commands._first_run import collect_static_files
call_command("migrate", verbosity=0)
collect_static_files()
"""


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A migrated SQLite database with the static files beside it, made once for all workers.

    Making them takes most of the time of a server's first start.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "migrated"
    folder.mkdir(exist_ok=True)
    database = folder / "loom.sqlite3"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not database.exists():
            subprocess.run(
                [sys.executable, "manage.py", "shell", "--verbosity", "0", "-c", PREPARE],
                cwd=ROOT,
                env=clean_environment({"LOOM_DATA_DIR": str(folder)}),
                check=True,
            )
    return database


@pytest.fixture
def user(db: None) -> User:
    return User.objects.create_user("ann", password="correct horse")


@pytest.fixture
def other_user(db: None) -> User:
    return User.objects.create_user("bob", password="battery staple")


@pytest.fixture
def workspace(user: User, tmp_path: Path) -> Workspace:
    root = tmp_path / "workspace"
    root.mkdir()
    return create_workspace(root=root, name="Garden", slug="garden", owner=user)


@pytest.fixture
def session(workspace: Workspace, user: User) -> Session:
    return create_session(workspace, owner=user)


@pytest.fixture
def viewer(workspace: Workspace) -> User:
    person = User.objects.create_user("vic", password="x")
    add_member(workspace, user_pk=person.pk, role="viewer")
    return person
