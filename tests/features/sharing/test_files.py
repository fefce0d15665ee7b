"""Links to one file, for people without an account."""

import os
from datetime import timedelta
from io import StringIO
from pathlib import Path
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core import signing
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from conversations.agent.undo.disk import stored_path
from conversations.archive.audit import AuditOrigin
from conversations.archive.blobs import blob_path, has_blob
from conversations.archive.purge import named_elsewhere
from conversations.features.sharing import service
from conversations.features.sharing.models import FileLink
from conversations.models import AuditEntry, Session, Workspace
from tests.web.conftest import MakePerson, browser_of

pytestmark = pytest.mark.django_db

SHARE = "/w/garden/files/share/"


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "share_links", True)


@pytest.fixture
def plan(workspace: Workspace) -> Path:
    path = Path(workspace.root) / "plan.md"
    path.write_text("# The plan\n")
    return path


@pytest.fixture
def link(workspace: Workspace, user: User, plan: Path) -> FileLink:
    return service.create_file_link(
        workspace, plan.name, plan.read_bytes(), days=1, origin=AuditOrigin(user=user)
    )


def address(link: FileLink, part: str = "") -> str:
    return f"/shared-file/{service.share_token(link)}/{part}"


def test_a_link_shows_the_file_as_it_was_when_the_link_was_made(owner: Client, plan: Path) -> None:
    page = owner.get("/w/garden/files/?path=plan.md")
    assert f'href="{SHARE}?path=plan.md">Share…' in page.text
    answer = owner.post(f"{SHARE}?path=plan.md", {"days": "3"}, follow=True)
    assert "Link created." in answer.text
    plan.write_text("# Changed since\n")
    link = FileLink.objects.get()
    assert f"http://testserver{address(link)}" in answer.text
    stranger = Client()
    shown = stranger.get(address(link))
    assert "plan.md" in shown.text
    assert shown["X-Robots-Tag"].startswith("noindex")
    assert shown["Referrer-Policy"] == "no-referrer"
    preview = stranger.get(address(link, "preview/"))
    assert "<h1>The plan</h1>" in preview.text
    assert preview["Content-Security-Policy"].startswith("sandbox")
    saved = stranger.get(address(link, "download/"))
    assert saved.content == b"# The plan\n"
    assert saved["Content-Disposition"] == 'attachment; filename="plan.md"'
    assert "opened 1 time" in owner.get(f"{SHARE}?path=plan.md").text
    entry = AuditEntry.objects.filter(action="shared").latest("number")
    assert '"path":"plan.md"' in entry.metadata.replace(" ", "")


def test_a_file_whose_name_is_not_utf8_can_be_shared(owner: Client, plan: Path) -> None:
    odd = plan.rename(plan.with_name(os.fsdecode(b"caf\xe9.md")))
    path = urlencode({"path": stored_path(odd.name)})
    answer = owner.post(f"{SHARE}?{path}", {"days": "3"}, follow=True)
    assert "caf\ufffd.md" in answer.text
    shared = FileLink.objects.get()
    assert "caf\ufffd.md" in Client().get(address(shared)).text
    assert Client().get(address(shared, "download/")).content == b"# The plan\n"


def test_the_shared_page_does_not_mention_the_workspace(link: FileLink) -> None:
    page = Client().get(address(link)).text
    for hidden in ("garden", "/w/", "Sessions"):
        assert hidden not in page.lower()


def test_an_expired_revoked_or_disabled_link_returns_404(
    owner: Client, link: FileLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response is the same as for a forged link."""
    stranger = Client()
    parts = ("", "preview/", "download/")

    def answers(url: str = "") -> set[int]:
        return {stranger.get((url or address(link)) + part).status_code for part in parts}

    assert answers() == {200}
    forged = signing.Signer(salt="loom.share").sign(link.uuid.hex)
    assert answers(f"/shared-file/{forged}/") == {404}
    assert stranger.get(f"/shared/{service.share_token(link)}/").status_code == 404
    monkeypatch.setattr(settings.LOOM, "share_links", False)
    assert answers() == {404}
    assert "turned off" in owner.get(f"{SHARE}?path=plan.md").text
    monkeypatch.setattr(settings.LOOM, "share_links", True)
    owner.post(reverse("file_share_revoke", args=["garden", link.uuid]))
    assert answers() == {404}
    FileLink.objects.update(revoked_at=None, expires_at=timezone.now() - timedelta(seconds=1))
    assert answers() == {404}


def test_invalid_requests_for_a_link_are_refused(
    owner: Client, plan: Path, make_person: MakePerson
) -> None:
    assert "days" in owner.post(f"{SHARE}?path=plan.md", {"days": "9999"}).text
    assert owner.post(f"{SHARE}?path=nothing", {"days": "1"}).status_code == 404
    assert owner.post(f"{SHARE}?path=../x", {"days": "1"}).status_code == 400
    assert FileLink.objects.count() == 0
    viewer = browser_of(make_person("viewer"))
    assert "Share…" not in viewer.get("/w/garden/files/?path=plan.md").text


def test_a_file_that_is_too_large_is_refused(
    owner: Client, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "snapshot_max_file_bytes", 5)
    answer = owner.post(f"{SHARE}?path=plan.md", {"days": "1"})
    assert answer.status_code == 413
    assert "is too large" in answer.text


@pytest.mark.parametrize("becomes", ["gone", "a folder", "too large"])
def test_links_can_be_revoked_after_their_file_has_changed_or_gone(
    owner: Client, plan: Path, link: FileLink, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    if becomes == "too large":
        monkeypatch.setattr(settings.LOOM, "snapshot_max_file_bytes", 5)
    else:
        plan.unlink()
    if becomes == "a folder":
        plan.mkdir()
    listed = owner.get(reverse("shared_files", args=["garden"]))
    assert f'<a href="{SHARE}?path=plan.md">plan.md</a>' in listed.text
    assert "1 link" in listed.text
    page = owner.get(f"{SHARE}?path=plan.md")
    assert page.status_code == 200
    revoke_url = reverse("file_share_revoke", args=["garden", link.uuid])
    assert revoke_url in page.text
    assert "Create link" not in page.text
    assert Client().get(address(link)).status_code == 200
    answer = owner.post(revoke_url, follow=True)
    assert answer.status_code == 200
    assert "Link revoked." in answer.text
    assert Client().get(address(link)).status_code == 404
    assert "No shared files" in owner.get(reverse("shared_files", args=["garden"])).text


def test_the_content_of_a_file_link_is_kept_while_the_link_is_valid(
    link: FileLink, session: Session
) -> None:
    """Both ``prune_blobs`` and purges ask whether a link needs the content."""
    old = (timezone.now() - timedelta(days=30)).timestamp()
    os.utime(blob_path(link.digest), (old, old))
    call_command("prune_blobs", "--days", "3", stdout=StringIO())
    assert has_blob(link.digest)
    assert named_elsewhere([link.digest, "0" * 64]) == {link.digest}
    FileLink.objects.update(revoked_at=timezone.now())
    assert named_elsewhere([link.digest]) == set()
    call_command("prune_blobs", "--days", "3", stdout=StringIO())
    assert not has_blob(link.digest)
