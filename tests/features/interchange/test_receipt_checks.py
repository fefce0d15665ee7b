"""Checking a copy of a purged session against its receipt."""

import gzip
import io
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import timezone

from conversations.archive.attachments import save_attachment
from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.sessions import get_session
from conversations.archive.verify import verify_session
from conversations.features.interchange.export import session_lines
from conversations.features.interchange.receipt_checks import check_copy
from conversations.models import Receipt, Session
from tests.archive.files import image_bytes
from tests.web.conftest import say

pytestmark = pytest.mark.django_db


@pytest.fixture
def lines(session: Session, user: User) -> list[str]:
    """The export of a session that is purged afterwards."""
    turn = say(session, "Plant the beans", "In May")[0]
    save_attachment(session.pk, data=image_bytes(), name="bed.png", user_pk=user.pk, turn=turn)
    kept = list(session_lines(get_session(session.uuid)))
    order = PurgeRequest(reason="x", by=user)
    purge(session, order=order, origin=AuditOrigin(user=user), now=timezone.now())
    return kept


def checked(lines: list[str]) -> str:
    [found] = check_copy(io.BytesIO("\n".join(lines).encode()))
    return found.problem


def run_command(name: str, *args: str) -> str:
    out = io.StringIO()
    call_command(name, *args, stdout=out)
    return out.getvalue()


def test_a_receipt_matches_only_an_unchanged_copy(lines: list[str]) -> None:
    assert checked(lines) == ""
    assert "not what was purged" in checked([line.replace("beans", "peas") for line in lines])
    turns = [line for line in lines if '"type":"turn"' in line]
    assert "not what was purged" in checked([line for line in lines if line != turns[-1]])
    swapped = [*lines[:1], turns[1], turns[0], *(line for line in lines[1:] if line not in turns)]
    assert "not what was purged" in checked(swapped)


def test_a_copy_of_a_session_without_a_receipt_is_reported(lines: list[str]) -> None:
    other = "00000000-0000-4000-8000-000000000000"
    uuid = str(Receipt.objects.get().session)
    assert checked([line.replace(uuid, other) for line in lines]) == "no receipt exists for it"


def test_a_verified_export_restores_a_purged_session(
    lines: list[str], user: User, tmp_path: Path
) -> None:
    """An export with a receipt replaces cold storage; see ADR 22."""
    receipt, copy = Receipt.objects.get(), tmp_path / "copy.jsonl.gz"
    copy.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert f"matches receipt {receipt.uuid}" in run_command("verify_receipt", str(copy))
    plain = tmp_path / "copy.jsonl"
    plain.write_text("\n".join(lines))
    run_command("import_sessions", str(plain))
    session = get_session(receipt.session)
    assert (session.turn_digest, session.event_digest) == (
        receipt.turn_digest,
        receipt.event_digest,
    )
    assert (session.owner, session.workspace.slug) == (user, "garden")
    assert verify_session(session).problem == ""


def test_verify_receipt_refuses_changed_and_unreadable_copies(
    tmp_path: Path, lines: list[str]
) -> None:
    file = tmp_path / "copy.jsonl"
    file.write_text("\n".join(lines).replace("beans", "peas"))
    with pytest.raises(SystemExit):
        run_command("verify_receipt", str(file))
    file.write_text("")
    with pytest.raises(CommandError, match="contains no session"):
        run_command("verify_receipt", str(file))
    packed = bytearray(gzip.compress("\n".join(lines).encode()))
    packed[20:40] = bytes(20)
    file.write_bytes(packed)
    with pytest.raises(CommandError, match="while decompressing"):
        run_command("verify_receipt", str(file))
    with pytest.raises(CommandError, match="No such file"):
        run_command("verify_receipt", str(tmp_path / "none"))
