"""The files of a workspace: folders, files, versions, marks, uploads."""

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from conversations.agent.files import searching
from conversations.agent.undo.apply import RemoveAction, WriteAction
from conversations.agent.undo.disk import stored_path
from conversations.agent.undo.versions import changes_of_path, list_versions, session_marks
from conversations.archive.blobs import blob_path, put_blob
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import create_workspace
from conversations.models import AuditEntry, FileChange, Session, Workspace
from conversations.web.files import PIECE_BYTES, FileChunks
from tests.changes.conftest import Calls

from .conftest import MakePerson, browser_of, flat
from .test_changes import change

pytestmark = pytest.mark.django_db

FILES = "/w/garden/files/"


@pytest.fixture
def calls(session: Session) -> Calls:
    return Calls(session)


@pytest.fixture
def root(workspace: Workspace) -> Path:
    return Path(workspace.root)


def names_in(page: Any) -> list[str]:
    return re.findall(r'<li data-kind="\w+"[^>]*>.*?<a [^>]*>([^<]*)', page.text, re.DOTALL)


def test_a_folder_lists_folders_first_and_hides_nothing(owner: Client, root: Path) -> None:
    (root / "src").mkdir()
    (root / "node_modules").mkdir()
    (root / ".gitignore").write_text("*.log\n")
    for name in ("B.txt", "a.log", "<b>.md"):
        (root / name).write_text("text")
    (root / "link").symlink_to("a.log")
    page = owner.get(FILES)
    assert names_in(page) == [
        *("node_modules", "src", ".gitignore", "&lt;b&gt;.md", "a.log", "B.txt", "link"),
    ]
    inside = owner.get(FILES, {"path": "src"})
    assert "This folder is empty." in inside.text
    assert owner.get(FILES, {"path": "src/"}).status_code == 200


@pytest.mark.parametrize("name", ["~$report.docx", "~", "~root"])
def test_a_name_may_begin_with_a_tilde(owner: Client, root: Path, name: str) -> None:
    (root / "report.docx").write_text("x")
    assert upload(owner, SimpleUploadedFile(name, b"words")).status_code == 302
    assert (root / name).read_bytes() == b"words"
    assert "report.docx" in names_in(owner.get(FILES, {"q": "report"}))
    assert name in names_in(owner.get(FILES, {"q": "~"}))
    assert owner.get(FILES, {"path": name}).status_code == 200
    assert owner.get("/w/garden/files/download/", {"path": name}).status_code == 200


def test_large_folder_is_truncated_with_a_notice(
    owner: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.web.files.MAX_ENTRIES", 3)
    for number in range(5):
        (root / f"{number}.txt").touch()
    page = owner.get(FILES)
    assert names_in(page) == ["0.txt", "1.txt", "2.txt"]
    assert "Only 3 of 5 entries of this folder are shown." in page.text


def test_files_are_found_by_a_part_of_their_path(owner: Client, root: Path) -> None:
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "plan.md").write_text("# Plan")
    page = owner.get(FILES, {"q": "plan"})
    assert names_in(page) == ["deep/er/plan.md"]
    assert "contains “nothing like it”" in owner.get(FILES, {"q": "nothing like it"}).text


def test_search_finds_ignored_files_below_the_folder_shown(
    owner: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".gitignore").write_text("data/\n*.csv\n")
    for path in ("data/row1.txt", "data/row2.txt", "node_modules/row3.txt", "result.csv"):
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text("1\n")
    assert names_in(owner.get(FILES, {"q": "row2"})) == ["data/row2.txt"]
    assert names_in(owner.get(FILES, {"q": "result.csv"})) == ["result.csv"]
    assert 'name="path"' not in owner.get(FILES).text
    assert '<input type="hidden" name="path" value="data">' in flat(
        owner.get(FILES, {"path": "data"}).text
    )
    for query in ("row", "data/row"):
        page = owner.get(FILES, {"path": "data", "q": query})
        assert names_in(page) == ["data/row1.txt", "data/row2.txt"]
    page = owner.get(FILES, {"path": "data", "q": "result"})
    assert "No file path in this folder or its subfolders contains “result”." in flat(page.text)
    # Files that git does not ignore come first, so a limit on the number of paths keeps them.
    (root / "src").mkdir()
    (root / "src" / "row4.txt").write_text("1\n")
    monkeypatch.setattr(searching, "MAX_PATHS", 3)
    searching._listings._values.clear()
    page = owner.get(FILES, {"q": "row4"})
    assert names_in(page) == ["src/row4.txt"]
    assert "There are too many files to search. Choose a folder." in page.text
    assert names_in(owner.get(FILES, {"q": "node_modules/row"})) == ["node_modules/row3.txt"]


def test_marks_show_the_files_that_a_session_changed(
    owner: Client, root: Path, calls: Calls
) -> None:
    (root / "src").mkdir()
    (root / "old.txt").write_text("old\n")
    (root / "gone.txt").write_text("gone\n")
    (root / "same.txt").write_text("same\n")
    change(root, calls, WriteAction(path="old.txt", data=b"new\n"), RemoveAction(path="gone.txt"))
    change(
        root,
        calls,
        WriteAction(path="src/made.py", data=b"1\n"),
        WriteAction(path="passing", data=b"1"),
    )
    change(root, calls, RemoveAction(path="passing"))
    assert session_marks(calls.session.pk) == {
        "old.txt": "changed",
        "gone.txt": "removed",
        "src/made.py": "new",
    }
    page = owner.get(FILES, {"session": str(calls.session.uuid)})
    marks = dict(re.findall(r'data-mark="([^"]*)".*?<a [^>]*>([^<]*)', page.text, re.DOTALL))
    assert marks == {"1 changed": "src", "changed": "old.txt", "removed": "gone.txt"}
    assert "Files changed by “" in page.text
    # The link to a folder keeps the session. A page without a session has no marks.
    assert f"?path=src&amp;session={calls.session.uuid}" in page.text
    assert "data-mark" not in owner.get(FILES).text


def test_removed_folder_is_listed_with_its_mark(owner: Client, root: Path, calls: Calls) -> None:
    (root / "src").mkdir()
    (root / "src" / "a.py").write_text("1\n")
    change(root, calls, RemoveAction(path="src/a.py"))
    (root / "src").rmdir()
    asked = {"session": str(calls.session.uuid)}
    assert 'data-kind="folder" data-mark="removed"' in owner.get(FILES, asked).text
    assert names_in(owner.get(FILES, asked | {"path": "src"})) == ["..", "a.py"]
    assert owner.get(FILES, {"path": "src"}).status_code == 404


def test_marks_require_a_session_of_this_workspace(
    owner: Client, root: Path, user: User, tmp_path: Path
) -> None:
    elsewhere = create_workspace(root=tmp_path / "elsewhere", name="Elsewhere", owner=user)
    other = create_session(elsewhere, owner=user)
    assert owner.get(FILES, {"session": str(other.uuid)}).status_code == 404
    assert owner.get(FILES, {"session": str(uuid4())}).status_code == 404
    assert owner.get(FILES, {"session": "x"}).status_code == 400


def test_each_version_of_a_file_is_listed_and_can_be_opened(
    owner: Client, root: Path, calls: Calls
) -> None:
    (root / "a.md").write_text("# One\n")
    first = change(root, calls, WriteAction(path="a.md", data=b"# Two\n"))
    change(root, calls, WriteAction(path="a.md", data=b"# Three\n"))
    page = owner.get(FILES, {"path": "a.md"})
    text = flat(page.text)
    assert text.count("Run by") == 2
    assert text.count("Before <a") == 1, text.partition("Versions")[2]
    versions = re.findall(r"version=([0-9a-f]{64})", page.text.partition("Versions")[2])
    assert len(dict.fromkeys(versions)) == 3
    shown = [
        owner.get(f"{FILES}preview/", {"path": "a.md", "version": version}).text
        for version in dict.fromkeys(versions)
    ]
    for html, word in zip(shown, ("Three", "Two", "One"), strict=True):
        assert f"<h1>{word}</h1>" in html
    # The row of a call links to the file as the call left it.
    answer = owner.get(reverse("tool_call_file", args=[calls.session.uuid, first.uuid]))
    assert answer.url == f"{FILES}?path=a.md&version={versions[1]}"
    earlier = flat(owner.get(answer.url).text)
    assert "an earlier version" in earlier
    assert "Current version" in earlier


def test_link_of_a_call_with_several_files_leads_to_its_changes(
    owner: Client, root: Path, calls: Calls
) -> None:
    call = change(root, calls, WriteAction(path="a", data=b"1"), WriteAction(path="b", data=b"2"))
    answer = owner.get(reverse("tool_call_file", args=[calls.session.uuid, call.uuid]))
    assert answer.url.endswith(f"/changes/?call={call.uuid}")


def test_removed_file_still_has_its_versions(owner: Client, root: Path, calls: Calls) -> None:
    (root / "a.txt").write_text("text\n")
    change(root, calls, RemoveAction(path="a.txt"))
    page = owner.get(FILES, {"path": "a.txt"})
    assert page.status_code == 404
    assert "This file has been removed" in page.text
    assert "Removed by" in flat(page.text)
    version = re.findall(r"version=([0-9a-f]{64})", page.text)[0]
    assert owner.get(FILES, {"path": "a.txt", "version": version}).status_code == 200


def test_version_opens_only_for_its_own_file(owner: Client, root: Path, calls: Calls) -> None:
    """A digest that is not recorded for this path in this workspace is not found."""
    (root / "a.txt").write_text("text\n")
    secret = put_blob(b"of somebody else")
    for version in (secret, "0" * 64, "../../etc/passwd", "x"):
        for view in ("preview/", "download/"):
            answer = owner.get(FILES + view, {"path": "a.txt", "version": version})
            assert answer.status_code == 404, version
    change(root, calls, WriteAction(path="b.txt", data=b"of b\n"))
    kept = FileChange.objects.get(path="b.txt").after
    assert owner.get(f"{FILES}download/", {"path": "b.txt", "version": kept}).status_code == 200
    assert owner.get(f"{FILES}download/", {"path": "a.txt", "version": kept}).status_code == 404


def test_version_without_a_stored_copy_shows_a_notice(
    owner: Client, root: Path, calls: Calls
) -> None:
    change(root, calls, WriteAction(path="a.txt", data=b"one\n"))
    change(root, calls, WriteAction(path="a.txt", data=b"two\n"))
    first, last = FileChange.objects.values_list("after", flat=True).order_by("pk")
    for digest in (first, last):
        blob_path(digest).unlink()
    page = owner.get(FILES, {"path": "a.txt", "version": first})
    assert "This version of the file is no longer stored." in page.text
    # The file in the folder is the last version, so it can still be shown.
    assert owner.get(FILES, {"path": "a.txt", "version": last}).status_code == 200


def test_symlink_shows_the_versions_of_its_target(
    owner: Client, root: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "link").symlink_to("a.txt")
    for text in (b"one\n", b"two\n", b"three\n"):
        change(root, calls, WriteAction(path="a.txt", data=text))
    page = owner.get(FILES, {"path": "link"})
    versions = re.findall(r"path=a.txt&amp;version=([0-9a-f]{64})", page.text)
    assert len(set(versions)) == 3
    assert "The newest versions." not in page.text
    monkeypatch.setattr("conversations.agent.undo.versions.MAX_VERSIONS", 2)
    page = owner.get(FILES, {"path": "a.txt"})
    assert len(set(re.findall(r"version=([0-9a-f]{64})", page.text))) == 2
    assert "The newest versions." in page.text


def test_long_and_undecodable_paths_have_versions(
    workspace: Workspace, root: Path, calls: Calls
) -> None:
    deep = "/".join(["d" * 200] * 15)
    odd = os.fsdecode(b"caf\xe9.txt")
    change(
        root,
        calls,
        WriteAction(path=f"{deep}/a", data=b"1"),
        WriteAction(path=f"{deep}/b", data=b"2"),
    )
    change(root, calls, WriteAction(path=odd, data=b"3"))
    assert len(list_versions(workspace.pk, f"{deep}/a")[0]) == 1
    assert len(list_versions(workspace.pk, odd)[0]) == 1


def test_file_with_an_undecodable_name_can_be_opened(owner: Client, root: Path) -> None:
    odd = os.fsdecode(b"caf\xe9.txt")
    (root / odd).write_text("odd text")
    page = owner.get(FILES)
    assert f"path={quote(stored_path(odd))}".replace("/", "%2F") in page.text
    answer = owner.get(f"{FILES}preview/", {"path": stored_path(odd)})
    assert "odd text" in answer.text
    assert "<h1>caf\ufffd.txt</h1>" in owner.get(FILES, {"path": stored_path(odd)}).text
    folder = os.fsdecode(b"\xe9t\xe9")
    (root / folder).mkdir()
    assert "<h1>\ufffdt\ufffd</h1>" in owner.get(FILES, {"path": stored_path(folder)}).text


def test_versions_are_found_by_an_index(workspace: Workspace) -> None:
    rows = changes_of_path(workspace.pk, "a/b.py")
    if connection.vendor != "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("SET enable_seqscan = off")
    assert "file_change_of_path" in rows.explain()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("../other", 400),
        ("/etc/passwd", 404),  # no such path exists below the workspace
        ("out", 400),
        ("nothing", 404),
        ("a\0b", 404),
        ("x" * 300, 400),
        ("pipe", 400),
    ],
)
def test_path_that_is_not_a_file_of_the_workspace_is_refused(
    owner: Client, root: Path, path: str, status: int
) -> None:
    (root / "out").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    for view in ("preview/", "download/"):
        assert owner.get(FILES + view, {"path": path}).status_code in (status, 400), view
    assert owner.get(FILES, {"path": path}).status_code < 500


def test_server_data_cannot_be_opened(
    owner: Client, root: Path, settings: Any, tmp_path: Path
) -> None:
    (root / "data").symlink_to(settings.LOOM.data_dir)
    for view in ("", "preview/", "download/"):
        answer = owner.get(FILES + view, {"path": "data/secret_key"})
        assert answer.status_code == 400
        assert "belongs to this server" in answer.text or "outside" in answer.text


def test_query_count_is_independent_of_files_and_versions(
    owner: Client, root: Path, calls: Calls
) -> None:
    def count(**asked: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert owner.get(FILES, asked).status_code == 200
        return len(queries)

    (root / "a.txt").write_text("0")
    change(root, calls, WriteAction(path="a.txt", data=b"1"))
    marked = {"session": str(calls.session.uuid)}
    few = count(), count(**marked), count(path="a.txt")
    for number in range(5):
        (root / f"{number}.txt").touch()
        change(root, calls, WriteAction(path="a.txt", data=f"{number} more".encode()))
    assert (count(), count(**marked), count(path="a.txt")) == few


# Downloads.


def test_download_is_an_unchanged_attachment(workspace: Workspace, root: Path, user: User) -> None:
    data = b"<script>alert(1)</script>" * 40_000
    (root / 'naïve "x".html').write_bytes(data)
    client = AsyncClient()

    async def fetch() -> tuple[Any, bytes]:
        await client.aforce_login(user)
        answer: Any = await client.get(f"{FILES}download/", {"path": 'naïve "x".html'})
        return answer, b"".join([piece async for piece in answer.streaming_content])

    answer, got = async_to_sync(fetch)()
    assert got == data
    assert answer["Content-Length"] == str(len(data))
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["Content-Disposition"].startswith("attachment; filename*=utf-8''na%C3%AFve")
    assert answer["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert answer["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a.txt\n", 'filename="a.txt"'),
        ("a\nb\n\n", "filename*=utf-8''a%0Ab"),
        ("\n", "attachment"),
    ],
)
def test_a_name_may_end_with_a_line_break(
    owner: Client, root: Path, name: str, header: str
) -> None:
    (root / name).write_text("x")
    answer = owner.get(f"{FILES}download/", {"path": name})
    assert answer.status_code == 200
    assert answer["Content-Disposition"].endswith(header)


# Uploads.


def upload(client: Client, *files: SimpleUploadedFile, path: str = "", **more: str) -> HttpResponse:
    address = f"{FILES}upload/" + (f"?path={path}" if path else "")
    return client.post(address, {"files": list(files), **more})  # type: ignore[return-value]


def a_file(name: str = "new.txt", data: bytes = b"new\n") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, data)


def test_uploaded_files_are_written_to_the_folder(owner: Client, root: Path) -> None:
    (root / "sub").mkdir()
    answer = upload(owner, a_file(), a_file(".env", b"A=1"), path="sub")
    assert answer.status_code == 302
    assert (root / "sub" / "new.txt").read_bytes() == b"new\n"
    assert (root / "sub" / ".env").read_bytes() == b"A=1"
    assert "Uploaded: new.txt, .env." in owner.get(FILES, {"path": "sub"}).text
    entry = AuditEntry.objects.latest("number")
    assert entry.action == "uploaded"
    assert '"sub"' in entry.metadata


def test_upload_replaces_an_existing_file_only_if_asked(owner: Client, root: Path) -> None:
    (root / "new.txt").write_text("old\n")
    answer = upload(owner, a_file(), a_file("other.txt"))
    assert answer.status_code == 400
    assert "new.txt already exists" in answer.text
    assert "Uploaded: other.txt." in answer.text
    assert (root / "new.txt").read_text() == "old\n"
    assert upload(owner, a_file(), replace="on").status_code == 302
    assert (root / "new.txt").read_text() == "new\n"


@pytest.mark.parametrize(
    ("name", "path", "told"),
    [
        ("config", ".git", "git’s own data"),
        ("a.txt", "../other", "outside the workspace"),
        ("a.txt", "file", "part of the path is not a folder"),
    ],
)
def test_upload_to_an_invalid_place_is_refused(
    owner: Client, root: Path, name: str, path: str, told: str
) -> None:
    (root / ".git").mkdir()
    (root / "file").write_text("text")
    before = sorted(root.rglob("*"))
    answer = upload(owner, a_file(name), path=path)
    assert answer.status_code == 400
    assert told in answer.text
    assert sorted(root.rglob("*")) == before


def test_upload_size_is_limited_and_zero_turns_uploads_off(
    owner: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Choose the files to upload." in upload(owner).text
    monkeypatch.setattr(settings.LOOM, "max_upload_bytes", 5)
    answer = upload(owner, a_file(), a_file("b.txt"))
    assert answer.status_code == 413
    assert "The limit is 5 B" in answer.text
    assert list(root.iterdir()) == []
    monkeypatch.setattr(settings.LOOM, "max_upload_bytes", 0)
    assert "turned off" in upload(owner, a_file()).text
    assert "upload-files" not in owner.get(FILES).text


def test_upload_of_more_than_1000_files_is_refused(owner: Client, root: Path) -> None:
    assert upload(owner, *(a_file(f"{n}.txt") for n in range(101))).status_code == 302
    assert len(list(root.iterdir())) == 101
    files = [a_file(f"{n}.md") for n in range(1001)]
    answer = owner.post(f"{FILES}upload/", {"files": files}, headers={"HX-Request": "true"})
    assert answer.status_code == 400
    assert answer.text == "At most 1\u202f000 files can be uploaded at once."
    assert answer["Content-Type"].startswith("text/plain")
    assert len(list(root.iterdir())) == 101


def test_upload_is_refused_if_the_disk_is_nearly_full(
    owner: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "min_free_mib", 1 << 40)
    answer = upload(owner, a_file())
    assert answer.status_code == 507
    assert "nearly full" in answer.text


def test_viewer_sees_no_upload_form(make_person: MakePerson, owner: Client) -> None:
    assert "upload-files" in owner.get(FILES).text
    viewer = browser_of(make_person("viewer"))
    assert "upload-files" not in viewer.get(FILES).text
    assert "Open file" not in viewer.get(FILES).text


def test_files_link_of_the_menu_names_the_session(owner: Client, session: Session) -> None:
    page = owner.get(reverse("session", args=[session.uuid]))
    assert f'href="{FILES}?session={session.uuid}"' in page.text
    assert f'href="{FILES}" aria-current="page"' in owner.get(FILES).text


async def test_a_download_of_a_file_that_is_cut_meanwhile_fails(tmp_path: Path) -> None:
    """The server then closes the connection. The client would wait for the rest of the file."""
    path = tmp_path / "log.txt"
    path.write_bytes(b"x" * (PIECE_BYTES + 1))
    pieces = aiter(FileChunks(os.open(path, os.O_RDONLY), path.stat().st_size))
    assert await anext(pieces) == b"x" * PIECE_BYTES
    os.truncate(path, PIECE_BYTES)
    with pytest.raises(EOFError):
        await anext(pieces)
