"""The digest of a file alone does not give access to its content."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from conversations.agent.window.messages import MISSING, withhold
from conversations.archive.append import append
from conversations.archive.attachments import attachment_block, save_attachment
from conversations.archive.blobs import put_blob
from conversations.archive.message_formats import read_messages
from conversations.archive.sessions import get_session
from conversations.domain.text import dump_json
from conversations.domain.turns import NewTurn
from conversations.models import Session

pytestmark = pytest.mark.django_db

SECRET = b"The key lies below the third pot."
DIGEST = sha256(SECRET).hexdigest()


@pytest.fixture(autouse=True)
def _data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path)


def claim(**more: Any) -> dict[str, Any]:
    """Return a block that names the file by its digest."""
    source = {"type": "attachment", "digest": DIGEST, "media_type": "text/plain", "tokens": 9}
    return {"type": "document", "title": "pots.txt", "source": source} | more


def exported(session: Session) -> str:
    page = read_messages(get_session(session.uuid), format="anthropic", limit=100)
    return dump_json(page.messages)


def test_turn_with_only_a_digest_does_not_get_the_file(session: Session) -> None:
    put_blob(SECRET)
    turn = NewTurn(role="user", content="Hi", blocks=dump_json([claim()]))
    append(session.pk, session_uuid=session.uuid, turns=[turn])
    assert "third pot" not in exported(session)
    assert "no longer stored" in exported(session)
    assert withhold(session.pk, [claim()]) == {DIGEST: MISSING}


def test_attached_file_is_not_withheld(session: Session, user: User) -> None:
    kept = save_attachment(session.pk, data=SECRET, name="a.txt", user_pk=user.pk, turn=1)
    assert withhold(session.pk, [attachment_block(kept)]) == {}
