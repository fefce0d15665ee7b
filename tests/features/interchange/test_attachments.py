"""Attachments in the interchange file, and the digests that an upload may not claim."""

import base64
import json
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from conversations.agent.window.messages import MISSING, withhold
from conversations.archive.append import NewEvent, append
from conversations.archive.attachments import upload_attachment
from conversations.archive.blobs import blob_path, has_blob, put_blob, read_blob
from conversations.archive.messages import accept_message
from conversations.archive.sessions import get_session
from conversations.archive.transcript import read_page
from conversations.archive.workspaces import create_workspace
from conversations.domain.events import COMPACTED, Info
from conversations.domain.text import dump_json, load_json
from conversations.domain.turns import NewTurn
from conversations.features.interchange.export import session_lines, session_markdown
from conversations.features.interchange.import_sessions import ImportCounts, import_file
from conversations.features.interchange.import_targets import ImportTarget
from conversations.models import (
    Attachment,
    Compaction,
    JournalGap,
    Run,
    SearchProgress,
    Session,
    StateCheckpoint,
    Turn,
    Workspace,
)
from tests.archive import files
from tests.archive.files import image_bytes
from tests.archive.test_claimed_files import DIGEST, SECRET, claim, exported
from tests.conftest import purge_everything

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path)


@pytest.fixture
def attached(session: Session, user: User) -> Session:
    """A session with a message that has a photo and a text file attached."""
    kept = [
        upload_attachment(session.pk, data=data, name=name, user_pk=user.pk)
        for data, name in ((files.photo_with_place(), "one.jpg"), (b"words", "two.txt"))
    ]
    accept_message(
        session,
        client_id="client-0001",
        text="Look",
        user_pk=user.pk,
        max_queued=1,
        owner="me",
        attachments=[str(one.uuid) for one in kept],
    )
    Run.objects.all().delete()
    return get_session(session.uuid)


def export(session: Session) -> list[str]:
    return list(session_lines(get_session(session.uuid)))


def restore(
    lines: list[str], user: User, target: ImportTarget | None = None
) -> tuple[ImportCounts, list[str]]:
    counts, reports = ImportCounts(), list[str]()
    import_file(
        BytesIO("\n".join(lines).encode()),
        target=target or ImportTarget(default_owner=user, root=Path("/nonexistent")),
        counts=counts,
        report=lambda line, text: reports.append(text),
    )
    return counts, reports


def forget(*, blobs: bool = True) -> None:
    digests = {
        digest
        for attachment in Attachment.objects.all()
        for digest in (attachment.digest, attachment.sent, attachment.thumbnail)
        if digest
    }
    Attachment.objects.all().delete()
    purge_everything()
    for model in (JournalGap, StateCheckpoint, SearchProgress, Session):
        model.objects.all().delete()
    for digest in digests if blobs else ():
        blob_path(digest).unlink(missing_ok=True)


def test_an_export_contains_the_contents_of_attachments(attached: Session, user: User) -> None:
    before = export(attached)
    shown = list(Attachment.objects.order_by("pk").values("uuid", "sent", "kind", "turn_number"))
    forget()
    counts, reports = restore(before, user)
    assert (reports, counts.attachments_added, counts.damaged) == ([], 2, 0)
    restored = get_session(attached.uuid)
    assert (restored.turn_digest, restored.event_digest) == (
        attached.turn_digest,
        attached.event_digest,
    )
    assert list(
        Attachment.objects.order_by("pk").values("uuid", "sent", "kind", "turn_number")
    ) == (shown)
    assert export(restored) == before
    photo = Attachment.objects.get(name="one.jpg")
    assert read_blob(photo.digest) == files.photo_with_place()
    assert has_blob(photo.sent)
    assert has_blob(photo.thumbnail)
    counts, reports = restore(before, user)
    assert (reports, counts.attachments_added) == ([], 0)


def test_missing_contents_are_added_by_a_later_import(attached: Session, user: User) -> None:
    whole = export(attached)
    bare = [
        dump_json({k: v for k, v in load_json(line).items() if not k.endswith("data")})
        for line in whole
    ]
    forget()
    counts, reports = restore(bare, user)
    assert (reports, counts.attachments_added) == ([], 2)
    assert not has_blob(Attachment.objects.get(name="one.jpg").digest)
    counts, reports = restore(whole, user)
    assert (reports, counts.attachments_added) == ([], 2)
    assert has_blob(Attachment.objects.get(name="one.jpg").digest)
    assert Attachment.objects.count() == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data": "d29yZHM="}, "not match its digest"),
        ({"data": "!"}, "not valid base64"),
        ({"digest": "../../etc"}, "a uuid and a digest"),
        ({"uuid": None}, "a uuid and a digest"),
        ({"turn": 99}, "its turn does not exist"),
        ({"data": None, "media_type": "text/html"}, "neither content"),
    ],
)
def test_an_invalid_attachment_line_is_skipped(
    attached: Session, user: User, change: dict[str, Any], reason: str
) -> None:
    lines = [load_json(line) for line in export(attached)]
    forget()
    [photo] = [line for line in lines if line.get("name") == "one.jpg"]
    photo |= change
    counts, reports = restore([dump_json(line) for line in lines], user)
    assert counts.skipped == 1
    assert reason in reports[0]
    assert (counts.attachments_added, counts.damaged) == (1, 0)


def test_a_copy_in_another_workspace_has_its_own_files_and_summaries(
    attached: Session, user: User, tmp_path: Path
) -> None:
    data = {"compaction": str(uuid4()), "summary": "They looked."}
    notice = NewEvent(payload=Info(text="Summarised.", code=COMPACTED, data=data))
    append(
        attached.pk,
        session_uuid=attached.uuid,
        turns=[NewTurn(role="assistant", content="Nice.")],
        events=[notice],
    )
    Compaction.objects.create(
        session=attached, uuid=data["compaction"], from_turn=1, to_turn=1, summary="They looked.",
        reason="manual", created_at=timezone.now(),
        before_turns=1, after_turns=1, before_tokens=9, after_tokens=3,
    )  # fmt: skip
    lines = export(attached)
    (tmp_path / "other").mkdir()
    other = create_workspace(root=tmp_path / "other", name="other", slug="other", owner=user)
    target = ImportTarget(
        default_owner=user, root=Path(), owner=user, workspace=other, is_confined=True
    )
    counts, reports = restore(lines, user, target)
    assert (reports, counts.attachments_added, counts.compactions_added) == ([], 2, 1)
    copy = Session.objects.get(workspace=other)
    copied = export(copy)
    summary = Compaction.objects.get(session=copy)
    page = "".join(row.html for row in read_page(copy, limit=50).rows)
    assert f"/s/{copy.uuid}/compactions/{summary.uuid}/undo/" in page
    for file in Attachment.objects.filter(session=copy):
        assert f"/s/{copy.uuid}/attachments/{file.uuid}/" in page
        assert str(file.uuid) in Turn.objects.get(session=copy, number=1).blocks
    old = [str(file.uuid) for file in Attachment.objects.filter(session=attached)]
    assert not [uuid for uuid in [*old, data["compaction"]] if uuid in "".join(copied)]
    for repeated in (lines, copied):
        counts, reports = restore(repeated, user, target)
        assert (reports, counts.sessions_unchanged, counts.turns_unchanged) == ([], 1, 2)
        assert (counts.attachments_added, counts.compactions_added) == (0, 0)
    assert (export(attached), export(copy)) == (lines, copied)


def test_markdown_names_the_attachments(attached: Session) -> None:
    text = "".join(session_markdown(attached))
    assert "Attached: one.jpg\n\nAttached: two.txt\n\nLook" in text


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("as_copy", [True, False])
def test_an_uploaded_import_cannot_claim_stored_contents(
    workspace: Workspace, user: User, other_user: User, is_early: bool, as_copy: bool
) -> None:
    """The file names a digest as attachment or smaller copy, before or after it is stored."""
    if not is_early:
        put_blob(SECRET)
    image = image_bytes()
    own = {"digest": sha256(image).hexdigest(), "data": base64.b64encode(image).decode()}
    uuid = str(uuid4())
    file = {"type": "attachment", "uuid": uuid, "turn": 1, "name": "pots.txt", "size": 3}
    file |= {"kind": "text", "media_type": "text/plain", "added_by": other_user.username}
    file |= own | {"sent_digest": DIGEST} if as_copy else {"digest": DIGEST}
    turn = {"type": "turn", "number": 1, "role": "user", "content": "Hi"}
    turn |= {"blocks": [claim(attachment=uuid)]}
    lines = [{"type": "session", "title": "x"}, turn, file]
    target = ImportTarget(
        default_owner=user, root=Path(), owner=user, workspace=workspace, is_confined=True
    )
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    counts = ImportCounts()
    import_file(BytesIO(data), target=target, counts=counts, report=lambda *_: None)
    put_blob(SECRET)
    assert counts.attachments_added == 1
    found = Attachment.objects.select_related("session").get()
    assert DIGEST not in (found.digest, found.sent)
    assert found.added_by is None
    assert "third pot" not in exported(found.session)
    assert withhold(found.session_id, [claim(attachment=uuid)]) == {DIGEST: MISSING}
