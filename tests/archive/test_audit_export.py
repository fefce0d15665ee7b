"""The ``export_audit`` command. The pages of the audit log have their own tests."""

import csv
import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from conversations.archive.audit import AuditOrigin, record, session_event
from conversations.domain.audit import (
    AUDIT_EXPORT,
    FIRST,
    NOTE,
    TRANSCRIPT,
    DigestedColumns,
    entry_digest,
)
from conversations.domain.text import dump_json
from conversations.models import AuditEntry, Session

pytestmark = pytest.mark.django_db


@pytest.fixture
def log(session: Session, user: User, other_user: User) -> None:
    record(AuditOrigin(user=other_user, reason="“why”"), session_event(session, TRANSCRIPT))
    record(AuditOrigin(user=user), session_event(session, NOTE, turn=3))


def exported() -> list[dict[str, Any]]:
    out = io.StringIO()
    call_command("export_audit", stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.usefixtures("log")
def test_whole_log_is_exported_and_the_export_is_recorded() -> None:
    lines = exported()
    assert [(line["number"], line["actor_name"], line["action"]) for line in lines] == [
        (1, "bob", TRANSCRIPT),
        (2, "ann", NOTE),
        (3, "export_audit", AUDIT_EXPORT),
    ]


@pytest.mark.usefixtures("log")
def test_digest_chain_can_be_verified_in_the_exported_file() -> None:
    digest = FIRST
    for facts in exported():
        kept = facts.pop("digest")
        facts["session"] = facts["session"] or ""
        facts["metadata"] = dump_json(facts["metadata"])
        at = AuditEntry.objects.get(number=facts["number"]).at
        assert facts["at"] == at.isoformat()
        digest = entry_digest(digest, DigestedColumns(**facts | {"at": at}))
        assert digest == kept


@pytest.mark.usefixtures("log")
def test_filtered_export_is_written_to_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.csv"
    call_command("export_audit", format="csv", person="bob", output=str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [row] = csv.DictReader(path.read_text().splitlines())
    assert (row["number"], row["reason"]) == ("1", "“why”")


@pytest.mark.parametrize("words", [["--person=nobody"], ["--after=x"], ["--action=x"]])
def test_invalid_filter_is_refused_and_not_recorded(words: list[str]) -> None:
    with pytest.raises(CommandError):
        call_command("export_audit", *words)
    assert not AuditEntry.objects.exists()
