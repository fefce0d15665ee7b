"""Whoever knows the digest of a file, and has not the file, does not get it by its digest."""

import base64
import io
import json
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from conversations.agent.window.messages import MISSING, withhold
from conversations.archive.append import append
from conversations.archive.attachments import attachment_block, save_attachment
from conversations.archive.blobs import put_blob
from conversations.archive.sessions import get_session
from conversations.domain.text import dump_json
from conversations.domain.turns import NewTurn
from conversations.features.interchange.export_messages import session_messages
from conversations.features.interchange.import_sessions import ImportCounts, import_file
from conversations.features.interchange.import_targets import ImportTarget
from conversations.models import Attachment, Session, Workspace
from tests.archive.files import image_bytes

pytestmark = pytest.mark.django_db

SECRET = b"The key lies below the third pot."
DIGEST = sha256(SECRET).hexdigest()


@pytest.fixture(autouse=True)
def _data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path)


def claim(**more: Any) -> dict[str, Any]:
    """A block that names the file by its digest."""
    source = {"type": "attachment", "digest": DIGEST, "media_type": "text/plain", "tokens": 9}
    return {"type": "document", "title": "pots.txt", "source": source} | more


def exported(session: Session) -> str:
    return "".join(session_messages(get_session(session.uuid), format="anthropic"))


def test_a_turn_that_names_a_content_does_not_get_it(session: Session) -> None:
    put_blob(SECRET)
    turn = NewTurn(role="user", content="Hi", blocks=dump_json([claim()]))
    append(session.pk, session_uuid=session.uuid, turns=[turn])
    assert "third pot" not in exported(session)
    assert "not kept any more" in exported(session)
    assert withhold(session.pk, [[claim()]]) == {DIGEST: MISSING}


def test_what_was_attached_is_given(session: Session, user: User) -> None:
    kept = save_attachment(session.pk, data=SECRET, name="a.txt", user_pk=user.pk, turn=1)
    assert withhold(session.pk, [[attachment_block(kept)]]) == {}


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("as_copy", [True, False])
def test_an_uploaded_import_cannot_claim_a_content(
    workspace: Workspace, user: User, other_user: User, is_early: bool, as_copy: bool
) -> None:
    """Neither as the file nor as the smaller copy of one, whoever was first."""
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
    import_file(io.BytesIO(data), target=target, counts=counts, report=lambda *_: None)
    put_blob(SECRET)
    assert counts.attachments_added == 1
    found = Attachment.objects.select_related("session").get()
    assert DIGEST not in (found.digest, found.sent)
    assert found.added_by is None
    assert "third pot" not in exported(found.session)
    assert withhold(found.session_id, [[claim(attachment=uuid)]]) == {DIGEST: MISSING}
