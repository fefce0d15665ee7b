"""Fixtures that import files as the command and the page do."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from conversations.archive.transcript import read_page
from conversations.domain.events import Payload, parse_payload
from conversations.features.interchange.import_sessions import ImportCounts
from conversations.features.interchange.import_targets import ImportTarget
from conversations.features.interchange.pipeline import ImportRun
from conversations.models import ChatEvent, Session, Turn, Workspace
from tests.archive.test_compactions import talked
from tests.web.conftest import async_browser, make_person, owner, runtime_ends

__all__ = ["async_browser", "make_person", "owner", "runtime_ends", "talked"]


class Importing:
    """A callable that imports files into the workspace and stores the reports."""

    def __init__(self, target: ImportTarget, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self.reports: list[str] = []
        self.format = ""

    def __call__(self, path: Path, **options: Any) -> ImportCounts:
        self.reports = []
        counts = ImportCounts()
        running = ImportRun(
            self.target, counts, lambda line, text: self.reports.append(f"{line}: {text}")
        )
        running.run(path, name=path.name, **options)
        self.format = running.format
        return counts

    def text(self, text: str, name: str = "file") -> ImportCounts:
        path = self.folder / name
        path.write_text(text)
        return self(path)

    def json(self, value: Any) -> ImportCounts:
        return self.text(json.dumps(value))

    def lines(self, *values: Any) -> ImportCounts:
        return self.text("".join(json.dumps(value) + "\n" for value in values))


@pytest.fixture
def importing(user: User, workspace: Workspace, tmp_path: Path) -> Importing:
    target = ImportTarget(default_owner=user, root=tmp_path, owner=user, workspace=workspace)
    return Importing(target, tmp_path)


def words_of(session: Session) -> list[tuple[str, str]]:
    """Return the role and the content of each turn in order."""
    turns = Turn.objects.filter(session=session).order_by("number")
    return list(turns.values_list("role", "content"))


def metadata_of(session: Session, number: int) -> dict[str, Any]:
    return json.loads(Turn.objects.get(session=session, number=number).metadata)


def rows_of(session: Session) -> list[str]:
    """Return the cursors of the transcript's rows in order."""
    return [row.cursor for row in read_page(session, limit=500).rows]


def payloads_of(session: Session) -> list[Payload]:
    events = ChatEvent.objects.filter(session=session).order_by("seq")
    return [parse_payload(event.event_type, event.payload) for event in events]


def assert_nothing_new(counts: ImportCounts) -> None:
    assert (counts.sessions_added, counts.sessions_extended) == (0, 0)
    assert (counts.turns_added, counts.events_added, counts.attachments_added) == (0, 0, 0)
    assert (counts.skipped, counts.conflicts) == (0, 0)
