from typing import Any

import pytest
from django.conf import settings

from conversations.accounts.tokens import WRITE
from conversations.archive.audit import AuditOrigin
from conversations.archive.sessions import get_session
from conversations.features.sharing.models import FileLink, ShareLink
from conversations.features.sharing.service import create_file_link, create_share_link, share_token
from conversations.models import Run, Session
from tests.api.rows import Row as Operation
from tests.api.rows import writers as api_writers
from tests.web.rows import REFUSED, Row, everybody, managers, signed_in, writers

SHARE = {"from_turn": "1", "to_turn": "2", "days": "1"}

PAGES = {
    "session_share": Row(get=writers(200), post=writers(302), data=SHARE),
    "session_share_revoke": Row(get=REFUSED, post=writers(302)),
    "file_share": Row(
        get=writers(200), post=writers(302), data={"days": "1"}, query="?path=bean.txt"
    ),
    "shared_files": Row(get=managers(200), post=signed_in(405)),
    "file_share_revoke": Row(get=REFUSED, post=writers(302)),
    "shared_one": Row(get=everybody(200), post=REFUSED),
    "shared_one_preview": Row(get=everybody(200), post=REFUSED),
    "shared_one_download": Row(get=everybody(200), post=REFUSED),
    "shared": Row(get=everybody(200), post=REFUSED),
    "shared_file": Row(get=everybody(200), post=REFUSED),
    "shared_thumb": Row(get=everybody(200), post=REFUSED),
}

LINKS = "/sessions/{uuid}/share-links"

OPERATIONS = {
    ("GET", LINKS): Operation(gets=api_writers(404)),  # sharing is switched off
    ("POST", LINKS): Operation(gets=api_writers(404), scope=WRITE, body={}),
    ("DELETE", LINKS + "/{link}"): Operation(gets=api_writers(204), scope=WRITE),
}


def make_page_values(session: Session, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(settings.LOOM, "share_links", True)
    link = _make_link(session, to_turn=2)
    of_file = _make_file_link(session)
    return {
        "link": link.uuid,
        "share": share_token(link),
        "file_link": of_file.uuid,
        "token": share_token(of_file),
    }


def make_operation_values(session: Session) -> dict[str, Any]:
    return {"link": _make_link(session, to_turn=2).uuid}


def stock(session: Session, run: Run) -> None:
    _make_link(session, to_turn=1)
    _make_file_link(session)


def _make_link(session: Session, *, to_turn: int) -> ShareLink:
    return create_share_link(
        get_session(session.uuid),
        from_turn=1,
        to_turn=to_turn,
        days=1,
        origin=AuditOrigin(user=session.owner),
    )


def _make_file_link(session: Session) -> FileLink:
    return create_file_link(
        session.workspace, "bean.txt", b"A bean", days=1, origin=AuditOrigin(user=session.owner)
    )
