"""The exit codes of the commands."""

import sys
from contextlib import suppress
from pkgutil import iter_modules
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.test import override_settings

from conversations import migrations
from conversations.management.commands import serve
from conversations.models import ApiToken, Session

pytestmark = pytest.mark.django_db

UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("check_mcp", "--workspace", "nope"), "workspace does not exist"),
        (("create_token", "nobody", "--name", "x"), "account “nobody” does not exist"),
        (("prune_blobs", "--days", "1"), "--days must be at least 2"),
        (("recall", UNKNOWN, "beans"), "session"),
        (("send", "--session", UNKNOWN, "hello"), "session does not exist"),
        (("send", "--workspace", "nope", "hello"), "workspace does not exist"),
        (("export_sessions", "--all", "--output", "/nonexistent/x"), "No such file"),
        (("export_audit", "--output", "/dev/null/x"), "Not a directory"),
        (("export_audit", "--workspace", "nope"), "workspace does not exist"),
        (("reset_two_factor", "nobody"), "account “nobody” does not exist"),
        # An unset variable in a script gives an empty argument, which must never mean "all".
        (("send", "--workspace", "garden", "--key", "", "hello"), "A key must have the form"),
        (("send", "--session", UNKNOWN, "--key", "", "hello"), "--key needs --workspace"),
        (("sign_in_link", ""), "account “” does not exist"),
        (("create_workspace", "/", "--owner", ""), "account “” does not exist"),
        (("export_audit", "--person", ""), "account “” does not exist"),
        (("export_audit", "--workspace", ""), "--workspace is empty"),
        (("sign_in_link", "--address", ""), "--address is empty"),
        (("rebuild_index", "--session", ""), "session does not exist"),
        (("import_sessions", "--owner", "", "-"), "account “” does not exist"),
        (("import_sessions", "--workspace", "", "-"), "workspace does not exist"),
        (("sign_in_link", "nobody"), "account “nobody” does not exist"),
        (("sign_in_link", "--address", "chat.example.org"), "--address must begin with https"),
        (("sign_in_link", "--address", "https://"), "--address must begin with https"),
        (("sign_in_link", "--address", "https:///chat"), "--address must begin with https"),
    ],
)
@pytest.mark.usefixtures("workspace")
def test_invalid_arguments_exit_with_code_2(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(CommandError, match=said) as refused:
        call_command(*arguments)
    assert refused.value.returncode == 2


@pytest.mark.parametrize("command", [("export_sessions", "--all"), ("export_audit",)])
def test_a_full_disk_exits_with_code_1(command: tuple[str, ...], session: Session) -> None:
    with pytest.raises(CommandError, match="No space left on device") as refused:
        call_command(*command, "--output", "/dev/full")
    assert refused.value.returncode == 1


@pytest.mark.parametrize(
    "command", ["verify_archive", "sign_in_link ann", "create_token ann --name x"]
)
def test_output_that_cannot_be_written_exits_with_code_1(
    command: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with suppress(OSError), open("/dev/full", "w") as full:  # closing it fails, too
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(CommandError) as refused:
            call_command(*command.split())
    assert str(refused.value) == "standard output: No space left on device"
    assert refused.value.returncode == 1
    assert not ApiToken.objects.exists()  # nobody knows a token that was not printed


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--port", "0"),
        ("serve", "--port", "0", "--no-prepare"),
        ("migrate",),
        ("migrate", "--check"),
        ("verify_archive",),
    ],
    ids=" ".join,
)
def test_the_database_of_a_newer_version_is_refused(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_migrations(monkeypatch, "0001_initial", "9999_future")
    monkeypatch.setattr(serve.Command, "_listen", lambda *_: None)
    monkeypatch.setattr(serve, "collect_static_files", lambda: pytest.fail("accepted"))
    with pytest.raises(CommandError, match="made by a newer version of Loom Web") as refused:
        call_command(*command)
    assert refused.value.returncode == 1


def test_the_database_of_an_older_version_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of its first migrations are gone."""
    apply_migrations(monkeypatch, "0001_initial", "0002_more")
    call_command("verify_archive")


@override_settings(MIGRATION_MODULES={})  # those of the product, which the tests do without
def test_a_server_that_does_not_migrate_needs_all_migrations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = list(MigrationLoader(None).disk_migrations)
    monkeypatch.setattr(serve.Command, "_listen", lambda *_: None)
    monkeypatch.setattr(serve, "collect_static_files", lambda: 1 / 0)
    for missing in (("conversations", names_of_migrations()[-1]), ("sessions", "0001_initial")):
        applied = {key: SimpleNamespace(pk=1) for key in known if key != missing}
        monkeypatch.setattr(MigrationRecorder, "applied_migrations", lambda _, it=applied: it)
        with pytest.raises(CommandError, match=rf"{'.'.join(missing)}\b.* run manage.py migrate"):
            call_command("serve", "--no-prepare")
    applied[missing] = SimpleNamespace(pk=1)
    with pytest.raises(ZeroDivisionError):  # accepted
        call_command("serve", "--no-prepare")


def test_later_numbers_of_an_earlier_chain_of_migrations_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The chain began anew, so the database has had migrations with higher numbers."""
    apply_migrations(monkeypatch, "0001_initial", "0033_last", *names_of_migrations())
    call_command("verify_archive")
    apply_migrations(monkeypatch, "0033_last", *names_of_migrations(), "0034_future")
    with pytest.raises(CommandError, match="0034_future"):
        call_command("verify_archive")


def names_of_migrations() -> list[str]:
    return sorted(module.name for module in iter_modules(migrations.__path__))


def apply_migrations(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the database name these applied migrations. The tests' database is made without any."""
    applied = {
        ("conversations", name): SimpleNamespace(pk=number) for number, name in enumerate(names, 1)
    }
    monkeypatch.setattr(MigrationRecorder, "applied_migrations", lambda _: applied)
