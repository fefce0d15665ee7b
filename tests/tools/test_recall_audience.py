"""The sessions that each session may quote, by kind of session and of person.

The tests cover every action of ``conversation_recall`` and the contents of the window that
are added without a call.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Group, User
from django.urls import reverse
from django.utils import timezone

from conversations.agent.recall.tool import TOOL
from conversations.agent.tools.tool import ToolResult
from conversations.agent.window.related_turns import find_hint, name_turns
from conversations.agent.window.window import WindowSpec, assemble_window
from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.rights import readable_sessions, role_group
from conversations.archive.sessions import (
    archive_session,
    begin_anew,
    create_session,
    get_or_create_by_key,
    get_session,
    release_expired_key,
)
from conversations.archive.workspaces import (
    add_group,
    add_member,
    create_workspace,
    remove_member,
)
from conversations.domain.text import dump_json
from conversations.domain.windows import WindowRules
from conversations.models import Session, Workspace
from loomweb.env import BASE_DIR
from tests.api.conftest import caller_of

from .test_conversation_recall import Look, call_tool, cursor_in, look_for, say

pytestmark = pytest.mark.django_db

FLOOR = 20
"""The turn at which the windows of these sessions start.

The word that identifies a session stands in an earlier turn.
"""

WORDS = (  # noqa: SIM905 (a list of them would be a word a line)
    "abelia azalea begonia camellia dahlia erica freesia gardenia hibiscus iris jasmine"
    " kalmia lavender magnolia nerine oleander petunia quince rudbeckia salvia tagetes"
    " ursinia verbena weigela zinnia"
).split()


class Neighbourhood:
    """A workspace with a session of every kind, each with a word of its own."""

    def __init__(self, workspace: Workspace, owner: User, other: Workspace) -> None:
        self.workspace, self.owner, self.other = workspace, owner, other
        self.sessions: dict[str, Session] = {}
        self.uuids: dict[str, UUID] = {}
        self.words: dict[str, str] = {}
        self.turns: dict[str, int] = {}
        for kind, begin in KINDS.items():
            self._add(kind, begin(self))
        for kind, change in CHANGES.items():
            change(self, self.sessions[kind])
        del self.sessions["purged"]

    def begin(self, **fields: Any) -> Session:
        return create_session(self.workspace, owner=self.owner, **fields)

    def find(self, key: str, **fields: Any) -> Session:
        return get_or_create_by_key(self.workspace, key=key, owner=self.owner, **fields)

    def _add(self, kind: str, session: Session) -> None:
        word = WORDS[len(self.words)]
        self.turns[kind] = session.turn_count + 1
        session.title = f"About {word}titles"
        session.save(update_fields=["title"])
        say(session, f"The {word} is blue.", "Noted.")
        call_tool(session, "bash", {"command": "ls"}, f"{word}leaf")
        say(session, *(f"Line {n}" for n in range(FLOOR)))
        self.sessions[kind], self.uuids[kind], self.words[kind] = session, session.uuid, word

    def words_in(self, text: str) -> set[str]:
        """Return the kinds of session whose word occurs in the text."""
        return {kind for kind, word in self.words.items() if word in text.lower()}


def forked_by_a_program(n: Neighbourhood) -> Session:
    forked = n.begin()
    say(forked, "Hello.")
    fork = reverse("api:turn_fork", args=[forked.uuid, 1])
    return get_session(UUID(caller_of(n.owner).post(fork).json()["uuid"]))


type Begin = Callable[[Neighbourhood], Session]

KINDS: dict[str, Begin] = {
    "page": lambda n: n.begin(),
    "page of another person": lambda n: create_session(
        n.workspace, owner=User.objects.get(username="mem")
    ),
    "terminal": lambda n: n.begin(channel="cli"),
    "imported": lambda n: n.begin(channel="chatgpt"),
    "fork": lambda n: n.begin(continues=n.sessions["page"]),
    "archived": lambda n: n.begin(),
    "expired": lambda n: n.begin(),
    "direct message": lambda n: n.find("discord:dm:1", channel="discord"),
    "another direct message": lambda n: n.find("discord:dm:2", channel="discord"),
    "channel": lambda n: n.find("discord:channel:3", channel="discord"),
    "thread": lambda n: n.find("discord:thread:4", channel="discord"),
    "work item": lambda n: n.find("bead:ac-c0f.2"),
    "work item, expired": lambda n: n.find("bead:ac-c0f.3"),
    "work item, renewed": lambda n: begin_anew(
        n.workspace, key=n.sessions["work item"].key or "", owner=n.owner
    ),
    "key of the terminal": lambda n: n.find("cli:default", channel="cli"),
    "key with the page's channel": lambda n: n.begin(key="report:daily", channel="web"),
    "program without a key": lambda n: n.begin(channel="api"),
    "program with its own channel": lambda n: n.begin(channel="slack"),
    "fork of a program": forked_by_a_program,
    "imported from a channel": lambda n: n.begin(channel="discord"),
    "purged": lambda n: n.begin(),
    "other workspace": lambda n: create_session(n.other, owner=n.owner),
}

OUTSIDE = {
    *("direct message", "another direct message", "channel", "thread", "imported from a channel"),
    *("work item", "work item, expired", "work item, renewed"),
    *("key of the terminal", "key with the page's channel"),
    *("program without a key", "program with its own channel", "fork of a program"),
}
"""Kinds of session with readers who may read no other session of the workspace."""


def _expire(_: Neighbourhood, session: Session) -> None:
    now = timezone.now()
    Session.objects.filter(pk=session.pk).update(expires_at=now - timedelta(days=1))
    assert release_expired_key(session.uuid, now=now)


def _purge(_: Neighbourhood, session: Session) -> None:
    purge(
        session,
        order=PurgeRequest(reason="Told to."),
        origin=AuditOrigin(name="test"),
        now=timezone.now(),
    )


CHANGES: dict[str, Callable[[Neighbourhood, Session], object]] = {
    "archived": lambda _, session: archive_session(session, archived=True),
    "expired": _expire,
    "work item, expired": _expire,
    "purged": _purge,
}

# The arguments with which each action reads another session. ``sessions`` names no session.
INTO: dict[str, dict[str, Any]] = {
    "search": {"query": "blue"},
    "range": {"start_turn": 1, "end_turn": 3},
    "tool_calls": {"tool_name": "bash"},
    "summary": {},
}
AMONG = ("sessions",)


def test_every_action_has_its_row() -> None:
    """A new action may read other sessions only if it has a row in this matrix."""
    declared = TOOL.input_schema["properties"]["action"]["enum"]
    assert sorted(declared) == sorted([*INTO, *AMONG])


@pytest.fixture
def neighbourhood(workspace: Workspace, user: User, tmp_path: Path) -> Neighbourhood:
    add_member(workspace, user_pk=User.objects.create_user("mem").pk, role="member")
    other = create_workspace(root=tmp_path / "other", name="Other", owner=user)
    add_member(other, user_pk=User.objects.create_user("elsewhere").pk, role="member")
    return Neighbourhood(workspace, user, other)


def read_by_all(neighbourhood: Neighbourhood, *, outside: set[str]) -> dict[str, set[str]]:
    """Return for each kind of session the kinds that all its readers can read too.

    The sessions are determined person by person. ``outside`` holds the kinds with readers who
    can read no other session.
    """
    kinds = {session.pk: kind for kind, session in neighbourhood.sessions.items()}
    shelves = [
        {kinds[pk] for pk in readable_sessions(person).values_list("pk", flat=True) if pk in kinds}
        for person in User.objects.order_by("pk")
    ] + [{kind} for kind in outside]
    return {
        kind: set.intersection(*(shelf for shelf in shelves if kind in shelf))
        for kind in neighbourhood.sessions
    }


type Quoted = set[tuple[str, str]]
"""Actions with the kinds of session that they quoted."""


def quote_from(
    neighbourhood: Neighbourhood, look: Look, asked: Iterable[tuple[str, str]], **among: Any
) -> Quoted:
    """Return the quotations of each action for each kind, and the sessions that ``sessions`` shows.

    Check that a refusal is the same as for a session that does not exist.
    """
    found: Quoted = set()
    missing: dict[str, ToolResult] = {}
    for action, kind in asked:
        answer = look(action=action, session=str(neighbourhood.uuids[kind]), **INTO[action])
        if answer.ok:
            assert neighbourhood.words_in(answer.output) == {kind}
            found.add((action, kind))
        else:
            if action not in missing:
                missing[action] = look(action=action, session=str(uuid4()), **INTO[action])
            assert answer == missing[action]
    for action in AMONG:
        shown = "".join(pages_of(look, action=action, **among))
        found |= {(action, kind) for kind in neighbourhood.words_in(shown)}
    return found


def pages_of(look: Look, **arguments: Any) -> Iterator[str]:
    while True:
        page = look(**arguments, limit=20).output
        yield page
        cursor = cursor_in(page)
        if not cursor:
            return
        arguments["cursor"] = cursor


def all_asked() -> list[tuple[str, str]]:
    return [(action, kind) for action in INTO for kind in KINDS]


def some_asked(number: int) -> list[tuple[str, str]]:
    """Return every fourth kind of session, each with another action.

    Each ``number`` gives other pairs.
    """
    actions = list(INTO)
    return [
        (actions[(number // 4 + n) % len(actions)], kind)
        for n, kind in enumerate(KINDS)
        if n % 4 == number % 4
    ]


def expect(asked: Iterable[tuple[str, str]], seen: set[str], *, own: str) -> Quoted:
    among = {(action, kind) for action in AMONG for kind in seen - {own}}
    return {(action, kind) for action, kind in asked if kind in seen} | among


def test_session_quotes_the_sessions_that_all_its_readers_can_read(
    neighbourhood: Neighbourhood,
) -> None:
    """Sessions of every kind are requested from sessions of every kind.

    If the workspace treats readers of its channels as members, no kind has readers outside.
    Sessions of other workspaces are never quoted.
    """
    for setting in Workspace.ChannelRecall.values:
        Workspace.objects.update(channel_recall=setting)
        readable = read_by_all(neighbourhood, outside=OUTSIDE if setting == "session" else set())
        for number, (kind, session) in enumerate(neighbourhood.sessions.items()):
            is_alone = setting == "session" and kind in OUTSIDE
            assert (len(readable[kind]) == 1) == (is_alone or kind == "other workspace")
            look, asked = look_for(session, neighbourhood.owner.pk), some_asked(number)
            found = quote_from(neighbourhood, look, asked)
            assert found == expect(asked, readable[kind], own=kind), kind


def test_every_action_reads_the_same_sessions(neighbourhood: Neighbourhood) -> None:
    """Every action is called for every kind of session, from one session of each audience."""
    for kind in ("page", "direct message", "work item"):
        seen = set(neighbourhood.sessions) - {"other workspace"}
        seen = {str(kind)} if kind in OUTSIDE else seen
        look = look_for(neighbourhood.sessions[kind], neighbourhood.owner.pk)
        found = quote_from(neighbourhood, look, all_asked(), query="blue")
        assert found == expect(all_asked(), seen, own=kind)


PEOPLE = {
    "owner": True,
    "member": True,
    "viewer": True,
    "of a group": True,
    "bot": True,
    "reviewer": False,
    "superuser": False,
    "administrator": False,
    "stranger": False,
    "removed": False,
    "closed": False,
    "nobody": False,
}
"""Whether each person who asks belongs to the workspace.

A reviewer can read every session on the pages, where each reading is recorded in the audit
log. The model cannot read those sessions for a reviewer.
"""


def make_person(workspace: Workspace, role: str) -> int | None:
    if role in ("owner", "nobody"):
        return User.objects.get(username="ann").pk if role == "owner" else None
    person = User.objects.create_user(role, is_superuser=role == "superuser")
    if role in ("member", "viewer", "bot", "removed", "closed"):
        as_role = "viewer" if role == "viewer" else "member"
        add_member(workspace, user_pk=person.pk, role=as_role)
    if role == "removed":
        remove_member(workspace, user_pk=person.pk)
    if role == "closed":
        User.objects.filter(pk=person.pk).update(is_active=False)
    if role in ("reviewer", "administrator"):
        person.groups.add(role_group(f"{role.title()}s"))
    if role == "of a group":
        group = Group.objects.create(name="Gardeners")
        person.groups.add(group)
        add_group(workspace, group=group, role="viewer", origin=AuditOrigin(name="test"))
    return person.pk


def test_other_sessions_are_quoted_only_for_members(neighbourhood: Neighbourhood) -> None:
    everything = set(neighbourhood.sessions) - {"other workspace"}
    people = {role: make_person(neighbourhood.workspace, role) for role in PEOPLE}
    for kind, setting in (
        ("page", "session"),
        ("direct message", "session"),
        ("direct message", "workspace"),
    ):
        Workspace.objects.update(channel_recall=setting)
        is_alone = setting == "session" and kind in OUTSIDE
        for number, (role, is_member) in enumerate(PEOPLE.items()):
            if is_alone and role not in ("owner", "member", "reviewer", "superuser", "nobody"):
                # If members are quoted nothing, people with fewer rights are quoted nothing either.
                continue
            look = look_for(neighbourhood.sessions[kind], people[role])
            asked = some_asked(number)
            seen = everything if is_member and not is_alone else {kind}
            assert quote_from(neighbourhood, look, asked) == expect(asked, seen, own=kind), role


def test_window_contents_quote_only_their_own_session(
    neighbourhood: Neighbourhood,
) -> None:
    """The hint, the stand-ins for omitted turns and the turns quote no other session.

    This holds for messages about every session, although the workspace's channels may quote
    other sessions.
    """
    Workspace.objects.update(channel_recall="workspace")
    kinds = list(KINDS)
    for number, (kind, session) in enumerate(neighbourhood.sessions.items()):
        others = {"direct message", "page", kinds[number - 1]} - {kind}
        for other in (kind, *sorted(others)):
            text = f"What colour had the {neighbourhood.words[other]} that was blue?"
            hint = find_hint(session.pk, text, floor=FLOOR, turn=session.next_turn)
            assert hint == (name_turns([neighbourhood.turns[kind]]) if other == kind else "")
        wish = WindowSpec(
            session_pk=session.pk,
            floor=FLOOR,
            rewinds=0,
            model="demo",
            system="",
            tools="[]",
            limit=30_000,
            max_output=1_000,
            ratio=1.0,
            rules=WindowRules(),
        )
        given = dump_json(assemble_window(wish).referring.messages)
        assert "Line 19" in given
        assert neighbourhood.words_in(given) <= {kind}


def test_tools_and_windows_have_no_other_way_to_read_sessions() -> None:
    """Tools and windows import no function or table that gives sessions.

    The only exception is ``quotable_sessions``. An annotation may name the type of a row that
    the code was given.
    """
    folders = [BASE_DIR / "conversations/agent" / name for name in ("tools", "recall", "window")]
    found = {
        f"{path.relative_to(BASE_DIR)}: {node.module}.{name.name}"
        for folder in folders
        for path in folder.rglob("*.py")
        if path.name != "queries.py"  # the queries that all of them use
        for tree in [ast.parse(path.read_text())]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
        if (node.module.startswith("conversations.models") and name.name in named_in_code(tree))
        or (node.module.startswith("conversations.archive") and name.name in giving_sessions())
    }
    assert found == {
        "conversations/agent/recall/tool.py: conversations.archive.rights.quotable_sessions",
        "conversations/agent/window/parent.py: conversations.archive.rights.quotable_sessions",
    }


def named_in_code(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are used outside annotations."""
    for field, value in ast.iter_fields(tree):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Name) and field not in ("annotation", "returns"):
                yield child.id
            if isinstance(child, ast.AST) and field not in ("annotation", "returns"):
                yield from named_in_code(child)


@cache
def giving_sessions() -> frozenset[str]:
    """Return the archive's functions that return sessions, or lists and queries of sessions."""
    return frozenset(
        function.name
        for path in (BASE_DIR / "conversations" / "archive").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and function.returns is not None
        if {"Session", "SessionItem", "SessionRecord"}
        & {node.id for node in ast.walk(function.returns) if isinstance(node, ast.Name)}
    )
