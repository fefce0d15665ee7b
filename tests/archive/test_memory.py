"""The workspace memory: the sessions that it applies to and its audit entries."""

from pathlib import Path
from threading import Barrier, Thread
from uuid import uuid4

import pytest
import yaml
from django.contrib.auth.models import User
from django.db import connection

from conversations.archive.audit import AuditOrigin
from conversations.archive.memory import (
    MAX_ENTRIES,
    add_entry,
    change_entry,
    decline_item,
    list_declined,
    list_entries,
    remove_entry,
)
from conversations.archive.session_state import (
    find_statement,
    read_state_text,
    read_state_view,
    rebuild_state_text,
)
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member, create_workspace
from conversations.domain.audit import MEMORY
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.session_state import MAX_STATE_TOKENS
from conversations.domain.text import estimate_tokens, load_json
from conversations.models import AuditEntry, MemoryEntry, Session, Workspace

from .state_story import answer, message, write

pytestmark = pytest.mark.django_db


def keep(
    workspace: Workspace, by: User, text: str, *, scope: str = "workspace", kind: str = "rule"
) -> MemoryEntry:
    origin = AuditOrigin(user=by)
    return add_entry(workspace, kind=kind, text=text, scope=scope, by=by, origin=origin)


def rules_in(session: Session) -> list[str]:
    return list((yaml.safe_load(read_state_text(session.pk).yaml) or {}).get("rules", []))


@pytest.fixture
def bob(workspace: Workspace) -> User:
    person = User.objects.create_user("bob")
    add_member(workspace, user_pk=person.pk, role="member")
    return person


def test_workspace_entry_stands_in_every_session(
    workspace: Workspace, session: Session, user: User, bob: User
) -> None:
    keep(workspace, user, "All dates must be UTC")
    others = create_session(workspace, owner=bob)
    channel = create_session(workspace, owner=user, channel="discord", key="discord:thread:1")
    for one in (session, others, channel):
        assert rules_in(one) == ["All dates must be UTC (kept for the workspace)"]


def test_personal_entry_stands_only_in_that_persons_sessions(
    workspace: Workspace, session: Session, user: User, bob: User
) -> None:
    keep(workspace, user, "Call me Sam", scope="person")
    others = create_session(workspace, owner=bob)
    assert rules_in(session) == ["Call me Sam (kept for the person)"]
    assert rules_in(others) == []


@pytest.mark.parametrize(
    ("channel", "key"), [("discord", None), ("api", None), ("web", "bead:ac-1")]
)
def test_personal_entry_does_not_stand_in_channels_and_programs(
    workspace: Workspace, user: User, channel: str, key: str | None
) -> None:
    keep(workspace, user, "Call me Sam", scope="person")
    keep(workspace, user, "All dates must be UTC")
    session = create_session(workspace, owner=user, channel=channel, key=key)
    assert rules_in(session) == ["All dates must be UTC (kept for the workspace)"]


def test_memory_does_not_apply_to_another_workspace(workspace: Workspace, user: User) -> None:
    other_workspace = create_workspace(root=Path(workspace.root), name="Other", owner=user)
    keep(workspace, user, "All dates must be UTC")
    keep(workspace, user, "Call me Sam", scope="person")
    assert rules_in(create_session(other_workspace, owner=user)) == []


def test_rule_of_the_session_replaces_a_kept_rule(
    workspace: Workspace, session: Session, user: User
) -> None:
    keep(workspace, user, "Use tabs, not spaces")
    write(session, message("Please use spaces, not tabs"))
    assert rules_in(session) == ["Please use spaces, not tabs (turn 1)"]
    view = read_state_view(session.pk)
    assert (view.kept, [one.text for one in view.replaced]) == ((), ["Use tabs, not spaces"])


def test_personal_rule_replaces_a_rule_of_the_workspace(
    workspace: Workspace, session: Session, user: User
) -> None:
    keep(workspace, user, "Always answer in English")
    keep(workspace, user, "Always answer in German", scope="person")
    assert rules_in(session) == ["Always answer in German (kept for the person)"]


def test_preference_does_not_replace_a_kept_rule(
    session: Session, workspace: Workspace, user: User
) -> None:
    rule = "Never use tabs for indentation"
    keep(workspace, user, rule)
    write(session, message("I prefer tabs for indentation."), answer())
    assert rules_in(session) == [f"{rule} (kept for the workspace)"]
    keep(workspace, user, "I prefer tabs", kind="preference", scope="person")
    assert rules_in(session) == [f"{rule} (kept for the workspace)"]
    write(session, message("Always use tabs for indentation."), answer())
    assert rules_in(session) == ["Always use tabs for indentation (turn 3)"]


def test_full_memory_stays_within_the_limit_of_the_state(
    workspace: Workspace, session: Session, user: User
) -> None:
    for number in range(MAX_ENTRIES):
        word = "abcdefghijklmnopqrstuvwxyz"[number] * 9
        keep(workspace, user, f"Never plant {word} beside {word[::-1]}x in the garden " * 2)
    write(session, message("Always quote the paths first"))
    text = read_state_text(session.pk).yaml
    assert estimate_tokens(text) <= MAX_STATE_TOKENS
    assert "Always quote the paths first (turn 1)" in text


def test_past_state_is_rebuilt_with_the_memory_of_that_moment(
    workspace: Workspace, session: Session, user: User
) -> None:
    entry = keep(workspace, user, "All dates must be UTC")
    write(session, message("Plant the beans"))
    given = read_state_text(session.pk)
    remove_entry(entry, origin=AuditOrigin(user=user))
    again = rebuild_state_text(
        session.pk, turn=given.turn, seq=given.seq, rewinds=0, kept=given.kept
    )
    assert again.yaml == given.yaml
    assert "UTC" not in read_state_text(session.pk).yaml


def test_kept_item_stores_its_source(workspace: Workspace, session: Session, user: User) -> None:
    write(session, message("All dates must be UTC"))
    item = find_statement(session.pk, "r1.0")
    origin = AuditOrigin(user=user)
    add_entry(
        workspace,
        kind=item.kind,
        text=item.text,
        scope="workspace",
        by=user,
        origin=origin,
        source=(session, item),
    )
    [entry] = list_entries(workspace, user.pk)
    assert (entry.session, entry.turn, entry.item) == (session, 1, "r1.0")


def test_same_text_is_kept_once(workspace: Workspace, user: User, bob: User) -> None:
    first = keep(workspace, user, "Use tabs")
    assert keep(workspace, user, "use tabs").pk == first.pk
    assert keep(workspace, bob, "Use tabs", scope="person").pk != first.pk
    preference = keep(workspace, user, "Use tabs", kind="preference")
    assert (preference.kind, preference.pk != first.pk) == ("preference", True)


def test_changes_are_recorded_in_the_audit_log(workspace: Workspace, user: User) -> None:
    origin = AuditOrigin(user=user)
    entry = keep(workspace, user, "Use tabs")
    change_entry(entry, text="Use spaces", origin=origin)
    change_entry(entry, text="Use spaces", origin=origin)  # changes nothing
    remove_entry(entry, origin=origin)
    keep(workspace, user, "Call me Sam", scope="person")
    entries = AuditEntry.objects.filter(action=MEMORY).order_by("number")
    told = [load_json(metadata) for metadata in entries.values_list("metadata", flat=True)]
    assert [(one["change"], one["scope"], one.get("text")) for one in told] == [
        ("kept", "workspace", "Use tabs"),
        ("changed", "workspace", "Use spaces"),
        ("removed", "workspace", "Use spaces"),
        ("kept", "person", None),
    ]


def test_entry_that_was_removed_cannot_be_changed_or_removed(
    workspace: Workspace, user: User
) -> None:
    origin = AuditOrigin(user=user)
    keep(workspace, user, "Use tabs")
    first, second = (MemoryEntry.objects.get() for _ in range(2))
    remove_entry(first, origin=origin)
    with pytest.raises(NotFound):
        change_entry(second, text="Use spaces", origin=origin)
    with pytest.raises(NotFound):
        remove_entry(second, origin=origin)
    assert AuditEntry.objects.filter(action=MEMORY).count() == 2


def test_number_of_entries_is_limited(workspace: Workspace, user: User) -> None:
    for number in range(MAX_ENTRIES):
        keep(workspace, user, f"Rule {number}")
    with pytest.raises(Conflict, match="Remove one"):
        keep(workspace, user, "One more")
    keep(workspace, user, "One of my own", scope="person")


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": " \n"},
        {"text": "x" * 161},
        {"text": "x", "kind": "file"},
        {"text": "x", "scope": ""},
    ],
)
def test_invalid_entry_is_refused(workspace: Workspace, user: User, wrong: dict[str, str]) -> None:
    with pytest.raises(Rejected):
        keep(workspace, user, **wrong)
    assert not MemoryEntry.objects.exists()


def test_declined_item_is_not_kept(
    workspace: Workspace, session: Session, user: User, bob: User
) -> None:
    write(session, message("All dates must be UTC"))
    item = find_statement(session.pk, "r1.0")
    for _ in range(2):
        decline_item(session, item, by=user)
    assert list_declined(session, user.pk) == {"r1.0"}
    assert list_declined(session, bob.pk) == frozenset()
    assert list_entries(workspace, user.pk) == []
    assert rules_in(create_session(workspace, owner=user)) == []


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_decline_an_item_once(session: Session, user: User) -> None:
    write(session, message("All dates must be UTC"))
    item = find_statement(session.pk, "r1.0")
    all_are_there = Barrier(4)

    def decline() -> None:
        all_are_there.wait()
        try:
            decline_item(session, item, by=user)
        finally:
            connection.close()

    threads = [Thread(target=decline) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [row] = MemoryEntry.objects.all()
    row.pk, row.uuid = None, uuid4()
    row.save()  # a duplicate, which old databases may hold
    decline_item(session, item, by=user)
    assert list_declined(session, user.pk) == {"r1.0"}
