"""Attachments over HTTP: uploads, thumbnails, and downloads that browsers never run."""

from io import BytesIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from PIL import Image

from conversations.archive.attachments import save_attachment
from conversations.archive.blobs import blob_path
from conversations.models import Attachment, Run, Session
from tests.archive import files

from .conftest import browser_of, flat

pytestmark = pytest.mark.django_db


def upload(client: Client, session: Session, *sent: tuple[str, bytes]) -> list[dict[str, Any]]:
    url = reverse("session_attachments", args=[session.uuid])
    posted = [SimpleUploadedFile(name, data, "text/html") for name, data in sent]
    response = client.post(url, {"files": posted})
    assert response.status_code == 200, response.text
    answer: list[dict[str, Any]] = response.json()["files"]
    return answer


def address(session: Session, attachment: Attachment, name: str = "attachment") -> str:
    return reverse(name, args=[session.uuid, attachment.uuid])


def keep(session: Session, data: bytes, name: str, *, turn: int | None = 1) -> Attachment:
    return save_attachment(
        session.pk, data=data, name=name, user_pk=session.owner_id if not turn else None, turn=turn
    )


def test_upload_reports_the_result_of_each_file(session: Session, user: User) -> None:
    good, bad = upload(
        browser_of(user), session, ("a.png", files.image_bytes()), ("b.bin", b"\x00\x01")
    )
    shown = good["attachment"]
    assert (shown["name"], shown["kind"], shown["width"]) == ("a.png", "image", 40)
    assert (bad["name"], bad["code"]) == ("b.bin", "attachment_type")
    assert "PNG, JPEG, GIF, WebP" in bad["reason"]
    [kept] = Attachment.objects.all()
    assert (str(kept.uuid), kept.turn_number, kept.added_by) == (shown["uuid"], None, user)


def test_file_above_the_size_limit_is_refused(
    session: Session, user: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_attachment_bytes", 1000)
    [answer] = upload(browser_of(user), session, ("a.txt", b"x" * 1001))
    assert (
        answer["reason"] == "a.txt is too large (1\u202f001 bytes). The limit is 1\u202f000 bytes."
    )
    assert not Attachment.objects.exists()


@pytest.mark.parametrize("count", [0, 11])
def test_upload_of_no_files_or_too_many_files_is_refused(
    session: Session, user: User, count: int
) -> None:
    url = reverse("session_attachments", args=[session.uuid])
    posted = [SimpleUploadedFile(f"{number}.txt", b"x") for number in range(count)]
    assert browser_of(user).post(url, {"files": posted}).status_code == 400
    assert not Attachment.objects.exists()


def test_unsent_file_is_visible_only_to_its_uploader(
    session: Session, user: User, viewer: User
) -> None:
    mine = keep(session, b"words", "a.txt", turn=None)
    sent = keep(session, b"words", "b.txt")
    url = reverse("session_attachments", args=[session.uuid])
    query = {"uuid": [str(mine.uuid), str(sent.uuid)]}
    found = browser_of(user).get(url, query).json()["files"]
    assert [file["name"] for file in found] == ["a.txt"]
    assert browser_of(viewer).get(url, query).json()["files"] == []
    assert browser_of(user).get(url, {"uuid": "x"}).status_code == 400
    assert browser_of(viewer).get(address(session, mine)).status_code == 404
    assert browser_of(viewer).get(address(session, sent)).status_code == 200


HOSTILE = [
    (b"<!doctype html><script>alert(1)</script>", "page.png", "text/plain; charset=utf-8"),
    (b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>', "a.svg", "text/plain;"),
    ("<script>".encode("utf-16"), "a.html", "application/octet-stream"),
    (files.image_bytes("GIF") + b"/*<script>alert(1)</script>*/", "a.html", "image/gif"),
    (files.image_bytes() + b"<script>alert(1)</script>", "a.html", "image/png"),
    (files.pdf_with_script(), "a.html", "application/pdf"),
]


@pytest.mark.parametrize(("data", "name", "media_type"), HOSTILE)
def test_download_is_saved_as_a_file_and_never_run(
    session: Session, user: User, data: bytes, name: str, media_type: str
) -> None:
    response = browser_of(user).get(address(session, keep(session, data, name)))
    assert response.content == data
    assert response["Content-Type"].startswith(media_type)
    assert response["Content-Disposition"] == f'attachment; filename="{name}"'
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert response["Cross-Origin-Resource-Policy"] == "same-origin"
    assert response["Cache-Control"].startswith("private")


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ('a"b;c.txt', r'attachment; filename="a\"b;c.txt"'),
        ("größe 世.txt", "attachment; filename*=utf-8''gr%C3%B6%C3%9Fe%20%E4%B8%96.txt"),
        ("x\r\nSet-Cookie: a=b.txt", 'attachment; filename="xSet-Cookie: a=b.txt"'),
        ("../../etc/passwd", 'attachment; filename="passwd"'),
        ("evil\u202etxt.exe", 'attachment; filename="eviltxt.exe"'),
    ],
)
def test_file_names_are_escaped_in_the_download_header(
    session: Session, user: User, name: str, header: str
) -> None:
    response = browser_of(user).get(address(session, keep(session, b"words", name)))
    assert response["Content-Disposition"] == header
    assert "Set-Cookie" not in response.headers


def test_thumbnail_contains_no_gps_location(session: Session, user: User) -> None:
    kept = keep(session, files.photo_with_place(), "a.jpg")
    response = browser_of(user).get(address(session, kept, "attachment_thumb"))
    assert response["Content-Type"] == "image/webp"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert b"GPS-SECRET-PLACE" not in response.content
    assert Image.open(BytesIO(response.content)).size == (20, 60)
    text = keep(session, b"words", "a.txt")
    assert browser_of(user).get(address(session, text, "attachment_thumb")).status_code == 404


def test_unchanged_file_answers_304(session: Session, user: User) -> None:
    kept = keep(session, b"words " * 200, "a.txt")
    client = browser_of(user)
    first = client.get(address(session, kept), headers={"Accept-Encoding": "gzip"})
    assert first["ETag"] == f'"{kept.digest}"'
    assert "Content-Encoding" not in first
    again = client.get(address(session, kept), headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again["Content-Security-Policy"] == "sandbox; default-src 'none'"


def test_missing_content_answers_404_with_a_message(session: Session, user: User) -> None:
    kept = keep(session, b"words that were", "a.txt")
    blob_path(kept.digest).unlink()
    response = browser_of(user).get(address(session, kept))
    assert response.status_code == 404
    assert "no longer stored" in response.text


def test_file_of_another_session_is_not_found(
    session: Session, user: User, other_session: Session
) -> None:
    kept = keep(other_session, b"words", "a.txt")
    url = reverse("attachment", args=[session.uuid, kept.uuid])
    assert browser_of(user).get(url).status_code == 404


def test_unsent_file_can_be_removed(session: Session, user: User) -> None:
    kept = keep(session, b"words", "a.txt", turn=None)
    url = address(session, kept, "attachment_remove")
    assert browser_of(user).post(url).status_code == 204
    assert not Attachment.objects.exists()
    assert browser_of(user).post(url).json()["code"] == "not_found"


@pytest.fixture
def other_session(other_user: User, tmp_path_factory: pytest.TempPathFactory) -> Session:
    from conversations.archive.sessions import create_session
    from conversations.archive.workspaces import create_workspace

    root = tmp_path_factory.mktemp("other")
    workspace = create_workspace(root=root, name="Other", slug="other", owner=other_user)
    return create_session(workspace, owner=other_user)


class TestByAPlainForm:
    """A message with files, sent without JavaScript."""

    pytestmark = pytest.mark.django_db(transaction=True)

    def send(self, user: User, session: Session, **data: Any) -> Any:
        url = reverse("session_send", args=[session.uuid])
        return browser_of(user).post(url, {"text": "", **data})

    def test_message_is_sent_with_its_files(self, session: Session, user: User) -> None:
        file = SimpleUploadedFile("a.txt", b"words")
        assert self.send(user, session, files=[file]).status_code == 302
        assert Attachment.objects.get().turn_number == 1

    def test_refused_file_leaves_the_other_files_in_the_form(
        self, session: Session, user: User
    ) -> None:
        posted = [SimpleUploadedFile("a.txt", b"words"), SimpleUploadedFile("b.bin", b"\x00")]
        response = self.send(user, session, text="Look", files=posted)
        assert response.status_code == 400
        assert "b.bin can’t be attached." in response.text
        kept = Attachment.objects.get()
        assert f'name="attachments" value="{kept.uuid}" checked' in flat(response.text)
        assert not Run.objects.exists()
        assert self.send(user, session, attachments=[str(kept.uuid)]).status_code == 302
        assert Run.objects.count() == 1

    def test_unknown_attachment_is_refused(self, session: Session, user: User) -> None:
        for uuid in ("x", str(session.uuid)):
            response = self.send(user, session, text="Look", attachments=[uuid])
            assert response.status_code == 400
        assert not Run.objects.exists()
