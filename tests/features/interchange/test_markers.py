"""Loaded skills and summaries in the interchange file."""

import io
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User

from conversations.archive.append import append
from conversations.archive.asides import make_marker, read_aside
from conversations.archive.context import append_loaded_skill, read_loaded_skills, undo_compaction
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import get_session
from conversations.archive.verify import verify_session
from conversations.features.interchange.export import session_lines
from conversations.features.interchange.import_sessions import ImportCounts, import_file
from conversations.features.interchange.import_targets import ImportTarget
from conversations.models import Compaction, Run, Session, SessionSkill
from tests.archive.test_compactions import compact, in_force

from .test_export import forget_sessions

pytestmark = pytest.mark.django_db


def lines_of(session: Session) -> list[str]:
    return list(session_lines(get_session(session.uuid)))


def restore(lines: list[str], user: User) -> tuple[ImportCounts, list[str]]:
    counts, reports = ImportCounts(), list[str]()
    import_file(
        io.BytesIO("\n".join(lines).encode()),
        target=ImportTarget(default_owner=user, root=Path("/nonexistent")),
        counts=counts,
        report=lambda line, text: reports.append(text),
    )
    return counts, reports


def test_skills_and_compactions_are_restored_from_an_export(talked: Session, user: User) -> None:
    append_loaded_skill(talked.pk, name="a", path="skills/a/SKILL.md", content="ä\n", turn=2)
    compact(talked, to_turn=4)
    second = compact(talked, to_turn=8, floor=5)
    undo_compaction(talked, uuid=second.uuid, user_pk=user.pk)
    before = lines_of(talked)
    forget_runs_and_sessions()
    counts, reports = restore(before, user)
    assert (reports, counts.skills_added, counts.compactions_added) == ([], 1, 2)
    restored = get_session(talked.uuid)
    assert lines_of(restored) == before
    assert (in_force(restored), verify_session(restored).problem) == (4, "")
    [skill] = read_loaded_skills(restored.pk)
    assert (skill.content, skill.turn_number) == ("ä\n", 2)
    counts, reports = restore(before, user)
    assert (reports, counts.skills_added, counts.compactions_added) == ([], 0, 0)


def test_turns_that_are_aside_stay_aside_after_an_import(talked: Session, user: User) -> None:
    marker, notice = make_marker(3, 4, is_aside=True)
    append(talked.pk, session_uuid=talked.uuid, turns=[marker], events=[notice])
    before = lines_of(talked)
    forget_runs_and_sessions()
    restore(before, user)
    restored = get_session(talked.uuid)
    assert (read_aside(restored.pk), verify_session(restored).problem) == ([(3, 4)], "")
    assert lines_of(restored) == before
    append_rewind(restored, from_turn=3, from_seq=None, reason="reset", actor_pk=None)
    assert read_aside(restored.pk) == []


def test_an_aside_marker_does_not_cover_later_turns(talked: Session) -> None:
    marker, _ = make_marker(1, 10**15, is_aside=True)
    last = append(talked.pk, session_uuid=talked.uuid, turns=[marker]).turns[0]
    assert read_aside(talked.pk) == [(1, last - 1)]


def forget_runs_and_sessions() -> None:
    for run in Run.objects.all():
        run.model_calls.all().delete()
    Run.objects.all().delete()
    forget_sessions()


def test_a_newer_export_undoes_a_compaction(talked: Session, user: User) -> None:
    done = compact(talked, to_turn=4)
    old = lines_of(talked)
    undo_compaction(talked, uuid=done.uuid, user_pk=user.pk)
    new = lines_of(talked)
    forget_runs_and_sessions()
    restore(old, user)
    assert in_force(get_session(talked.uuid)) == 4
    counts, _ = restore(new, user)
    assert (counts.compactions_added, in_force(get_session(talked.uuid))) == (1, None)
    restore(old, user)
    assert in_force(get_session(talked.uuid)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"turn": 99}, "it was loaded at a turn that does not exist"),
        ({"turn": 0}, "it was loaded at a turn that does not exist"),
        ({"content": "other"}, "its content does not match its digest"),
        ({"content": None}, "a skill needs a name and a content"),
        ({"turn": "x"}, "no number for turn"),
    ],
)
def test_an_invalid_skill_line_is_reported(
    talked: Session, user: User, changes: dict[str, Any], reason: str
) -> None:
    append_loaded_skill(talked.pk, name="a", path="p", content="c", turn=2)
    head, *_ = lines = lines_of(talked)
    line = json.loads(lines[-1]) | changes
    counts, reports = restore([head, dumped(line)], user)
    assert (counts.skipped, counts.skills_added) == (1, 0)
    assert reports[0].startswith(f"skipped: {reason}")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"to_turn": 99}, "it covers turns that do not exist"),
        ({"from_turn": 5}, "it covers turns that do not exist"),
        ({"reason": "whim"}, "its reason is unknown"),
        ({"summary": " "}, "a compaction needs a summary"),
        ({"to_turn": None}, "no number for to_turn"),
    ],
)
def test_an_invalid_compaction_line_is_reported(
    talked: Session, user: User, changes: dict[str, Any], reason: str
) -> None:
    compact(talked, to_turn=4)
    head, *_ = lines = lines_of(talked)
    line = json.loads(lines[-1]) | {"uuid": str(uuid4())} | changes
    counts, reports = restore([head, dumped(line)], user)
    assert (counts.skipped, counts.compactions_added) == (1, 0)
    assert reports[0].startswith(f"skipped: {reason}")


def dumped(line: dict[str, Any]) -> str:
    return json.dumps(line)


def test_unknown_keys_of_a_line_are_kept(talked: Session, user: User) -> None:
    append_loaded_skill(talked.pk, name="a", path="p", content="c", turn=2)
    compact(talked, to_turn=4)
    head, *_ = lines = lines_of(talked)
    new = {"uuid": str(uuid4()), "colour": "red"}
    changed = [json.loads(line) | {"colour": "red"} for line in lines[-2:]]
    changed = [changed[0] | {"loaded_at": "2026-01-01"}, changed[1] | new]
    restore([head, *map(dumped, changed)], user)
    kept = [SessionSkill.objects.latest("pk").metadata, Compaction.objects.latest("pk").metadata]
    assert kept == ['{"colour":"red"}'] * 2
