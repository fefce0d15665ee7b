"""The command ``create_workspace``."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db.models import Value

from conversations.archive.rights import role_of
from conversations.archive.session_state import read_stored_state
from conversations.archive.sessions import create_session, read_window_facts, read_workspace_dir
from conversations.archive.workspaces import (
    create_workspace,
    get_workspace,
    list_workspace_dirs,
    list_workspaces,
    resolve_root,
)
from conversations.domain.errors import Rejected
from conversations.models import Workspace

pytestmark = pytest.mark.django_db


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings.LOOM, "workspace_roots", [tmp_path])
    return tmp_path


@pytest.fixture
def admin(db: None) -> User:
    return User.objects.create_superuser("root")


@pytest.fixture
def folder(roots: Path) -> Path:
    path = roots / "garden"
    path.mkdir()
    return path


def test_create_workspace_prints_the_slug_and_the_path_of_the_page(
    admin: User, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("create_workspace", str(folder), name="The garden")
    assert capsys.readouterr().out == "the-garden\n/w/the-garden/\n"
    workspace = get_workspace("the-garden")
    assert Path(workspace.root) == folder.resolve()
    assert role_of(workspace, admin.pk) == "owner"


def test_the_owner_can_be_named(admin: User, other_user: User, folder: Path) -> None:
    call_command("create_workspace", str(folder), owner="bob")
    assert role_of(get_workspace("garden"), other_user.pk) == "owner"
    assert role_of(get_workspace("garden"), admin.pk) is None


def test_a_relative_path_starts_at_the_current_folder(
    admin: User, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    call_command("create_workspace", "garden")
    assert Workspace.objects.get().root == str(folder.resolve())


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("{roots}/missing", {}),
        ("/", {}),
        ("{roots}/garden/..", {"owner": "nobody"}),
        ("{roots}/way-out", {}),
    ],
)
def test_a_path_that_is_no_folder_below_the_roots_is_refused(
    admin: User, roots: Path, folder: Path, path: str, options: dict[str, Any]
) -> None:
    (roots / "way-out").symlink_to("/")
    with pytest.raises(CommandError) as refused:
        call_command("create_workspace", path.format(roots=roots), **options)
    assert refused.value.returncode == 2
    assert not Workspace.objects.exists()


def test_a_folder_in_the_data_folder_moves_with_it(
    user: User, other_user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the data folder uses its own workspaces, never those of the original."""
    old, new, elsewhere = (tmp_path / name for name in ("old", "new", "old-but-elsewhere"))
    for folder in (old / "workspaces/a", new / "workspaces/a", elsewhere):
        folder.mkdir(parents=True)
    monkeypatch.setattr(settings.LOOM, "data_dir", old)
    inside = create_workspace(root=old / "workspaces/a", name="Inside", owner=user)
    create_workspace(root=elsewhere, name="Outside", owner=user)
    # Earlier versions stored the absolute path. The migration makes it relative.
    migration = import_module("conversations.migrations.0022_folders_in_the_data_folder")
    Workspace.objects.filter(pk=inside.pk).update(root=Value(str(old / "workspaces/a")))
    migration.store_relative_to_the_data_folder(apps, None)
    session = create_session(inside, owner=user)
    for data_dir in (old, new):
        monkeypatch.setattr(settings.LOOM, "data_dir", data_dir)
        folder = data_dir / "workspaces/a"
        assert [place.root for place in list_workspace_dirs()] == [folder, elsewhere]
        assert [one["root"] for one in list_workspaces(user.pk)] == [str(folder), str(elsewhere)]
        assert Workspace.objects.get(root=folder).pk == inside.pk
        assert read_workspace_dir(session.pk).root == folder
        assert read_window_facts(session.pk).root == folder
        assert read_stored_state(session.pk).root == str(folder)
        for path in (folder, folder.parent, elsewhere):
            with pytest.raises(Rejected, match="already uses this folder"):
                resolve_root(str(path), roots=[tmp_path], user_pk=other_user.pk)
