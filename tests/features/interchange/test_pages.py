"""The import page: uploading, watching and stopping an import, and the worker behind it."""

import io
import json
import zipfile
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils.translation import override

from conversations.archive.sessions import create_session
from conversations.domain.messages import say
from conversations.domain.turns import NewTurn
from conversations.features.interchange import sources
from conversations.features.interchange.import_sessions import ImportCounts, import_file
from conversations.features.interchange.import_targets import ImportTarget
from conversations.features.interchange.models import Import
from conversations.features.interchange.reports import as_note, write_report
from conversations.features.interchange.service import (
    MAX_OPEN_IMPORTS,
    begin_next_import,
    import_path,
)
from conversations.features.interchange.worker import MAX_ATTEMPTS, ImportWorker
from conversations.models import Membership, Session, Turn, Workspace
from conversations.runtime.ownership import try_lock
from tests.archive.turns import append_turn

pytestmark = pytest.mark.django_db

CHATGPT = (Path(__file__).parent / "fixtures" / "chatgpt.json").read_bytes()


@pytest.fixture(autouse=True)
def _data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path)


def upload(client: Client, data: bytes = CHATGPT, **keys: Any) -> Any:
    file = SimpleUploadedFile("what/ever.bin", data)
    return client.post("/import/", {"workspace": "garden", "format": "auto", "file": file} | keys)


def keeper() -> ImportWorker:
    runtime: Any = SimpleNamespace(options=SimpleNamespace(data_dir=settings.LOOM.data_dir))
    return ImportWorker(runtime)


def carry_out() -> None:
    """Run the waiting imports in the test's transaction; the server does so in a thread."""
    found = begin_next_import()
    while found is not None:
        keeper()._run(found)
        found = begin_next_import()


def the_import() -> Import:
    return Import.objects.latest("pk")


def test_the_page_shows_an_upload_waiting_and_its_result(
    owner: Client, workspace: Workspace, user: User
) -> None:
    response = upload(owner)
    made = the_import()
    page = f"/import/{made.uuid}/"
    assert (response.status_code, response["Location"]) == (302, page)
    path = import_path(settings.LOOM.data_dir, made.uuid)
    assert path.stat().st_mode & 0o777 == 0o600
    waiting = owner.get(page).text
    assert 'hx-trigger="every 1s"' in waiting
    assert "Waiting for other imports" in waiting
    carry_out()
    done = owner.get(page, headers={"HX-Request": "true"}).text
    assert "hx-get" not in done
    assert "<html" not in done
    assert "Sessions added: 3" in done
    assert "Format: ChatGPT" in done
    assert not path.exists()
    session = Session.objects.get(title="Roses in a pot")
    assert (session.workspace, session.owner) == (workspace, user)
    assert "ever.bin" in owner.get("/import/").text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\x01 no export", "The format is unknown"),
        (b"PK\x05\x06" + b"\x00" * 18, "The format is unknown"),
        (b'{"some": "settings"}', "Nothing in the file could be read."),
    ],
)
def test_a_file_that_is_no_export_fails_with_a_message(
    owner: Client, workspace: Workspace, data: bytes, words: str
) -> None:
    upload(owner, data)
    carry_out()
    assert the_import().state == "failed"
    page = owner.get(f"/import/{the_import().uuid}/").text
    assert words in page
    assert "/import/?workspace=garden" in page


def test_a_file_of_another_format_than_the_chosen_one_fails(
    owner: Client, workspace: Workspace
) -> None:
    upload(owner, format="openwebui")
    carry_out()
    assert "but the file is chatgpt" in the_import().error
    assert not Session.objects.exists()


def test_no_page_links_to_imports_when_they_are_disabled(
    owner: Client, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 'href="/import/"' in owner.get("/account/").text
    assert "/import/" in owner.get("/palette/?all=1").text
    monkeypatch.setattr(settings.LOOM, "max_import_bytes", 0)
    assert 'href="/import/"' not in owner.get("/account/").text
    assert "/import/" not in owner.get("/palette/?all=1").text
    assert owner.get("/import/").status_code == 404


def test_a_branch_links_to_the_turn_where_it_branched_off(
    owner: Client, workspace: Workspace
) -> None:
    upload(owner)
    carry_out()
    branch = Session.objects.get(fork_turn__isnull=False)
    assert branch.parent is not None
    page = " ".join(owner.get(f"/s/{branch.uuid}/?before=turn:3.0").text.split())
    assert f'Branched off <a href="/s/{branch.parent.uuid}/t/{branch.fork_turn}/">Roses' in page
    assert "Branched off" not in owner.get(f"/s/{branch.parent.uuid}/?before=turn:3.0").text


def test_a_branch_at_the_first_message_says_so(owner: Client, session: Session) -> None:
    branch = create_session(session.workspace, owner=session.owner, title="Beans (branch 2)")
    Session.objects.filter(pk=branch.pk).update(parent=session, fork_turn=0)
    page = " ".join(owner.get(f"/s/{branch.uuid}/").text.split())
    assert f'Branched off <a href="/s/{session.uuid}/">' in page
    assert "from the first message on" in owner.get(f"/s/{session.uuid}/state/").text


def test_an_invalid_upload_is_refused_with_a_message_in_the_form(
    owner: Client, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_import_bytes", 100)
    response = upload(owner)
    assert response.status_code == 400
    assert "The limit is 100" in response.text
    monkeypatch.setattr(settings.LOOM, "max_import_bytes", 10**6)
    assert upload(owner, workspace="kitchen").status_code == 400
    for name, says in {
        "workspace": "Choose a workspace.",
        "format": "Choose a format.",
        "file": "Choose a file.",
    }.items():
        page = upload(owner, **{name: ""})
        assert (page.status_code, says in page.text) == (400, True), name
    for _ in range(MAX_OPEN_IMPORTS):
        assert upload(owner).status_code == 302
    assert "Wait for them" in upload(owner).text
    assert len(list((settings.LOOM.data_dir / "imports").iterdir())) == MAX_OPEN_IMPORTS


def test_viewers_cannot_import_and_their_waiting_imports_fail(
    owner: Client, workspace: Workspace, user: User
) -> None:
    upload(owner)
    Membership.objects.filter(workspace=workspace, user=user).update(role="viewer")
    carry_out()
    assert the_import().error == "You can no longer write in this workspace."
    assert "need to be a member of a workspace" in owner.get("/import/").text
    assert upload(owner).status_code == 400
    assert not Session.objects.exists()


def test_a_stopped_waiting_import_imports_nothing(owner: Client, workspace: Workspace) -> None:
    upload(owner)
    owner.post(f"/import/{the_import().uuid}/stop/")
    assert not import_path(settings.LOOM.data_dir, the_import().uuid).exists()
    carry_out()
    assert the_import().state == "stopped"
    assert not Turn.objects.exists()


def test_an_interrupted_import_is_retried_up_to_a_limit(
    owner: Client, workspace: Workspace
) -> None:
    upload(owner)
    begin_next_import()  # and the process ends
    carry_out()
    assert (the_import().state, the_import().attempts) == ("done", 2)
    upload(owner)
    Import.objects.filter(pk=the_import().pk).update(state="running", attempts=MAX_ATTEMPTS)
    carry_out()
    assert the_import().state == "failed"
    assert "3 times" in the_import().error


def test_a_stopping_server_leaves_its_import_to_the_next_one(
    owner: Client, workspace: Workspace
) -> None:
    upload(owner)
    ending = keeper()
    ending._stopping.set()
    found = begin_next_import()
    assert found is not None
    ending._run(found)
    assert the_import().state == "running"
    carry_out()
    assert the_import().state == "done"


def test_only_one_process_imports_at_a_time(tmp_path: Path) -> None:
    with try_lock(tmp_path / "run" / "imports"):
        assert keeper().run_waiting() is False


def line(**keys: Any) -> bytes:
    return json.dumps(keys).encode() + b"\n"


def test_a_file_cannot_add_to_another_persons_session(
    owner: Client, workspace: Workspace, other_user: User
) -> None:
    """The file names the session's uuid or key, and its owner."""
    theirs = create_session(workspace=workspace, owner=other_user, key="discord:dm:1")
    append_turn(theirs, NewTurn(role="user", content="Mine alone."))
    for named in ({"uuid": str(theirs.uuid)}, {"key": "discord:dm:1"}):
        told = named | {"owner": other_user.username, "workspace": "elsewhere"}
        turns = [line(type="turn", number=n, role="user", content="Slipped in.") for n in (1, 2)]
        for _ in range(2):
            upload(owner, line(type="session", **told) + b"".join(turns))
            carry_out()
    theirs.refresh_from_db()
    assert theirs.turn_count == 1
    own = Session.objects.exclude(pk=theirs.pk)
    assert [(s.owner.username, s.turn_count, s.key) for s in own] == [("ann", 2, None)] * 2
    assert {s.uuid for s in own} & {theirs.uuid} == set()


def test_an_import_adds_no_members_to_the_workspace(
    workspace: Workspace, user: User, tmp_path: Path
) -> None:
    """A person who is removed during the import gets no further sessions."""
    Membership.objects.all().delete()
    target = ImportTarget(
        default_owner=user, root=tmp_path, owner=user, workspace=workspace, is_confined=True
    )
    counts = ImportCounts()
    told = line(type="session", title="x") + line(type="turn", role="user", content="Hi")
    import_file(io.BytesIO(told), target=target, counts=counts, report=lambda *_: None)
    assert (counts.sessions_added, counts.skipped) == (0, 2)
    assert not Membership.objects.exists()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "C:\\windows\\x", "bomb.json", "good.json"]
)
def test_an_archive_with_only_unsafe_files_fails(
    owner: Client, workspace: Workspace, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b" " * 20_000_000 if name == "bomb.json" else CHATGPT)
    upload(owner, path.read_bytes())
    carry_out()
    if name == "good.json":
        assert the_import().state == "done"
        return
    assert the_import().state == "failed"
    assert "times its size" in the_import().report or "leads outside" in the_import().report


def test_an_archive_that_expands_too_much_is_refused(
    owner: Client, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(4):
            archive.writestr(f"{number}.json", b"[" + b" " * 9_000_000 + b"]")
    monkeypatch.setattr(settings.LOOM, "max_import_bytes", 3_000_000)
    upload(owner, path.read_bytes())
    carry_out()
    assert "would expand to" in the_import().error


def test_an_archive_with_too_long_a_file_list_is_refused(
    owner: Client, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(100):
            archive.writestr(str(number), b"")
    monkeypatch.setattr(sources._ArchiveFile, "max_read_bytes", 4_000)
    upload(owner, path.read_bytes())
    carry_out()
    assert the_import().error == "The archive's file list is too long."


def test_a_damaged_file_in_an_archive_does_not_affect_the_others(
    owner: Client, workspace: Workspace, tmp_path: Path
) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("damaged.json", CHATGPT)
        archive.writestr("good.json", CHATGPT)
    data = bytearray(path.read_bytes())
    data[42:60] = b"\xff" * 18  # after the first file's header
    upload(owner, bytes(data))
    carry_out()
    assert the_import().state == "done"
    assert "damaged.json" in the_import().report
    assert Session.objects.filter(title="Roses in a pot").exists()


def test_a_size_limit_of_zero_disables_the_page(
    owner: Client, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_import_bytes", 0)
    assert owner.get("/import/").status_code == 404


def test_orphaned_uploads_are_deleted_after_a_day(tmp_path: Path) -> None:
    import os

    folder = tmp_path / "imports"
    folder.mkdir()
    for name, age in (("old", 2 * 86400), ("new", 0)):
        (folder / name).touch()
        stamp = (folder / name).stat().st_mtime - age
        os.utime(folder / name, (stamp, stamp))
    assert keeper().run_waiting()
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_another_persons_import_is_not_found(
    owner: Client, workspace: Workspace, other_user: User
) -> None:
    upload(owner)
    stranger = Client()
    stranger.force_login(other_user)
    assert stranger.get(f"/import/{the_import().uuid}/").status_code == 404
    assert stranger.get(f"/import/{UUID(int=1)}/").status_code == 404


# Reports of an import in the reader's language


def page_in_german(owner: Client) -> str:
    with override(settings.LANGUAGE_CODE):  # a request does not restore the language
        page = owner.get(f"/import/{the_import().uuid}/", headers={"Accept-Language": "de"})
    return " ".join(unescape(page.text).split())


def test_a_size_is_formatted_as_on_every_other_page(owner: Client, workspace: Workspace) -> None:
    upload(owner)
    Import.objects.update(size=12_345_678)
    assert "<span>12.3 MB</span>" in page_in_german(owner)
    assert "12.3 MB" in owner.get("/import/", headers={"Accept-Language": "de"}).text


def test_reports_are_shown_in_the_readers_language(owner: Client, workspace: Workspace) -> None:
    odd = {"type": "event", "seq": 1, "payload_raw": "{broken", "event_type": "info"}
    told = [line(type="session"), b"[]\n", line(type="banana"), line(**odd, mood=1, place="here")]
    upload(owner, b"".join(told))
    carry_out()
    english = owner.get(f"/import/{the_import().uuid}/").text
    assert "<span>Skipped: not an object but list</span>" in english
    assert '<span class="muted">line 2</span>' in english
    german = page_in_german(owner)
    assert "<span>Übersprungen: kein Objekt, sondern list</span>" in german
    assert '<span class="muted">Zeile 2</span>' in german
    assert '<span>Übersprungen: unbekannter Typ "banana"</span>' in german
    assert "Mit Änderungen importiert: mood (weggelassen), place (weggelassen)" in german


def test_places_in_other_programs_files_are_in_the_readers_language(
    owner: Client, workspace: Workspace
) -> None:
    upload(owner, json.dumps([*json.loads(CHATGPT), 7]).encode())
    carry_out()
    german = page_in_german(owner)
    assert "Übersprungen: kein Objekt" in german
    assert "ever.bin: Unterhaltung 3" in german


def test_the_reason_for_a_failure_is_in_the_readers_language(
    owner: Client, workspace: Workspace
) -> None:
    upload(owner, format="openwebui")
    carry_out()
    assert the_import().error == "The format was given as openwebui, but the file is chatgpt."
    expected = "Als Format wurde openwebui angegeben, die Datei ist aber chatgpt."
    assert expected in page_in_german(owner)
    upload(owner, b'{"some": "settings"}')
    carry_out()
    assert "Nichts in der Datei konnte gelesen werden." in page_in_german(owner)


@pytest.mark.parametrize(
    ("note", "shown"),
    [
        ({"text": "skipped: it is a link"}, "Skipped: it is a link"),
        ({"text": "it is a link"}, "Ist ein Link"),
        ({"text": "100 %(what)s"}, "100 %(what)s"),
        # The stored text differs from the stored sentence.
        (as_note("line 3", say("skipped: %(reason)s", reason="a")) | {"text": "b"}, "B"),
    ],
)
def test_reports_that_are_no_known_sentence_are_shown_unchanged(
    owner: Client, workspace: Workspace, note: dict[str, Any], shown: str
) -> None:
    upload(owner)
    error = "The server stopped 3 times during this import."
    report = write_report([{"place": "line 3"} | note])
    Import.objects.update(report=report, error=error, state="failed")
    german = page_in_german(owner)
    assert f'<span>{shown}</span><span class="muted">line 3</span>' in german
    assert error in german


def test_a_long_report_is_cut_to_its_first_500_characters(
    owner: Client, workspace: Workspace
) -> None:
    long = say("skipped: %(reason)s", reason="x" * 1000)
    note = as_note(long, long)
    assert note == {"place": long[:500], "text": long[:500]}
    upload(owner)
    Import.objects.update(report=write_report([note], long))
    assert f"S{long[1:500]}</span>" in page_in_german(owner)
