"""``import_sessions`` with what other programs keep."""

import json
import zipfile
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from conversations.models import Session, Workspace

pytestmark = pytest.mark.django_db

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Exports of two programs in one file."""
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("chatgpt.json", "claude.json"):
            file.write(FIXTURES / name, f"of/{name}")
    return path


def test_the_report_is_json_on_demand(
    workspace: Workspace, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("import_sessions", str(archive), workspace="garden", json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["sessions_added"], told["skipped"]) == (6, 0)
    assert told["reports"][0]["place"] == "of/chatgpt.json: conversation 1"
    assert "not a member" in told["reports"][0]["text"]
    call_command("import_sessions", str(archive), workspace="garden", json=True)
    assert json.loads(capsys.readouterr().out)["sessions_unchanged"] == 6


def test_of_an_archive_only_what_is_of_the_format_is_imported(
    workspace: Workspace, archive: Path
) -> None:
    call_command("import_sessions", str(archive), workspace="garden", format="claude")
    assert set(Session.objects.values_list("channel", flat=True)) == {"claude"}


def test_what_nobody_knows_is_said(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Only words.")
    with pytest.raises(CommandError, match="The format is unknown"):
        call_command("import_sessions", str(path))
