"""The command that makes a workspace."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from conversations.archive.rights import role_of
from conversations.archive.workspaces import get_workspace
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


def test_it_prints_the_slug_and_the_page(
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


def test_a_relative_path_counts_from_here(
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
def test_it_refuses_what_is_no_folder_below_the_roots(
    admin: User, roots: Path, folder: Path, path: str, options: dict[str, Any]
) -> None:
    (roots / "way-out").symlink_to("/")
    with pytest.raises(CommandError) as refused:
        call_command("create_workspace", path.format(roots=roots), **options)
    assert refused.value.returncode == 2
    assert not Workspace.objects.exists()
