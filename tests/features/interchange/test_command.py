"""``import_sessions`` with exports of other programs, and the move to another database."""

import json
import zipfile
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from conversations.archive.rights import role_of
from conversations.archive.workspaces import add_member
from conversations.models import Session, Workspace
from loomweb.env import BASE_DIR

pytestmark = pytest.mark.django_db

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive with the exports of two programs."""
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("chatgpt.json", "claude.json"):
            file.write(FIXTURES / name, f"of/{name}")
    return path


def test_the_json_option_writes_the_report_as_json(
    workspace: Workspace, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("import_sessions", str(archive), workspace="garden", json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["sessions_added"], told["skipped"]) == (6, 0)
    assert told["reports"][0]["place"] == "of/chatgpt.json: conversation 1"
    assert "not a member" in told["reports"][0]["text"]
    call_command("import_sessions", str(archive), workspace="garden", json=True)
    assert json.loads(capsys.readouterr().out)["sessions_unchanged"] == 6


def test_only_archived_files_of_the_chosen_format_are_imported(
    workspace: Workspace, archive: Path
) -> None:
    call_command("import_sessions", str(archive), workspace="garden", format="claude")
    assert set(Session.objects.values_list("channel", flat=True)) == {"claude"}


def test_a_file_of_an_unknown_format_is_an_error(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Only words.")
    with pytest.raises(CommandError, match=r"export_sessions writes.* an earlier Loom version"):
        call_command("import_sessions", str(path))


def test_people_and_workspaces_move_as_documented(
    workspace: Workspace, other_user: User, tmp_path: Path
) -> None:
    told = (BASE_DIR / "docs/operating.md").read_text()
    [dumped] = [line for line in told.replace("\\\n", "").splitlines() if " dumpdata " in line]
    words = dumped.split()[2:-2]
    assert words[0] == "--natural-foreign"
    add_member(workspace, user_pk=other_user.pk, role="viewer")
    password, file = other_user.password, str(tmp_path / "people.json")
    call_command("dumpdata", *words, output=file)
    workspace.delete()
    other_user.delete()
    call_command("loaddata", file, verbosity=0)
    moved = Workspace.objects.get(slug="garden")
    bob = User.objects.get(username="bob")
    assert (bob.password, role_of(moved, bob.pk)) == (password, "viewer")
