"""A whole installation: many people, each with many sessions over two years.

Rows are written in bulk, with everything that a row written one by one would have
(numbers, digests, search entries), so that the data is ready in minutes. Journals and
runs are left out: a session without events is shown from its turns.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import batched
from random import Random
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import connection, transaction

from conversations.archive.append import INSERT_TURN, turn_digest, turn_values
from conversations.domain.text import dump_json, first_digest
from conversations.domain.turns import NewTurn
from conversations.models import Membership, Session, Workspace
from conversations.search.indexing import index_session, merge_index

from .vocabulary import make_text

PEOPLE_IN_WORKSPACE = 10
SESSIONS_AT_ONCE = 100
START, DAYS = datetime(2024, 11, 1, 8, tzinfo=UTC), 730
MODELS = ("claude-opus-5", "claude-sonnet-5-5", "claude-haiku-5", "local-model")
TOOLS = ("read_file", "edit_file", "shell_execute", "search_files", "fetch_url", "write_file")
FAILED, ARCHIVED, EXPIRED, REVIEWED = 0.05, 0.1, 0.03, 0.5
"""Shares of the tools' results, and of the sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    people: int
    sessions: int
    turns: int


WHOLE = Size(people=200, sessions=20_000, turns=1_000_000)
QUICK = Size(people=20, sessions=1_000, turns=50_000)


def write_installation(size: Size, *, seed: int = 1) -> None:
    """The same for the same seed. Sessions are in the order of their beginning."""
    random = Random(seed)
    people = _write_people(size.people)
    lengths = _lengths(random, size)
    starts = sorted(START + timedelta(minutes=random.randrange(DAYS * 1440)) for _ in lengths)
    for batch in batched(zip(starts, lengths, strict=True), SESSIONS_AT_ONCE, strict=False):
        with transaction.atomic():
            _write_sessions(random, people, batch)
    while merge_index(pages=2000):
        pass


def _write_people(count: int) -> list[tuple[User, Workspace]]:
    """Each person with the workspace that most of their sessions are in."""
    people = User.objects.bulk_create(
        User(username=f"person-{number:03}") for number in range(1, count + 1)
    )
    placed = []
    for number, members in enumerate(batched(people, PEOPLE_IN_WORKSPACE, strict=False), start=1):
        name = f"team-{number:02}"
        workspace = Workspace.objects.create(
            name=name, slug=name, root=f"/workspaces/{name}", created_at=START
        )
        Membership.objects.bulk_create(
            Membership(workspace=workspace, user=user, role="member", created_at=START)
            for user in members
        )
        placed += [(user, workspace) for user in members]
    return placed


def _lengths(random: Random, size: Size) -> list[int]:
    """Turns of each session: most are short, a few are very long; all of them together
    are as many as asked for."""
    shares = [random.lognormvariate(0, 1.2) for _ in range(size.sessions)]
    whole = sum(shares)
    lengths = [max(2, int(size.turns * share / whole)) for share in shares]
    lengths[0] += max(0, size.turns - sum(lengths))
    return lengths


def _write_sessions(
    random: Random,
    people: Sequence[tuple[User, Workspace]],
    batch: Iterable[tuple[datetime, int]],
) -> None:
    made = [_make_session(random, people, start=start, length=length) for start, length in batch]
    turns = [_chain(session, new) for session, new in made]
    sessions = Session.objects.bulk_create(session for session, _ in made)
    rows = [
        (session.pk, *values)
        for session, chained in zip(sessions, turns, strict=True)
        for values in chained
    ]
    with connection.cursor() as cursor:
        cursor.executemany(INSERT_TURN, rows)
    for session in sessions:
        index_session(session.pk)
    merge_index(pages=2000)


def _chain(session: Session, turns: Iterable[NewTurn]) -> list[tuple[Any, ...]]:
    """The turns' rows but for the session's key; the session gets the last digest."""
    rows = []
    for number, turn in enumerate(turns, start=1):
        at = turn.created_at or START
        session.turn_digest = turn_digest(session.turn_digest, turn, number=number, created_at=at)
        values = turn_values(0, turn, number=number, created_at=at, digest=session.turn_digest)
        rows.append(values[1:])
    return rows


def _make_session(
    random: Random,
    people: Sequence[tuple[User, Workspace]],
    *,
    start: datetime,
    length: int,
) -> tuple[Session, list[NewTurn]]:
    owner, workspace = random.choice(people)
    model = random.choice(MODELS)
    turns = list(_make_turns(random, model, start=start, length=length))
    last = turns[-1].created_at or start
    uuid = UUID(int=random.getrandbits(128), version=4)
    session = Session(
        uuid=uuid,
        workspace=workspace,
        owner=owner,
        channel=random.choice(("web", "web", "web", "api", "import")),
        title=make_text(random, words=(3, 8)),
        model=model,
        next_turn=length + 1,
        reviewed_turn=length if random.random() < REVIEWED else 0,
        turn_digest=first_digest(uuid, chain="turns"),
        event_digest=first_digest(uuid, chain="events"),
        created_at=start,
        last_active_at=last,
        archived_at=last if random.random() < ARCHIVED else None,
        expires_at=last if random.random() < EXPIRED else None,
    )
    return session, turns


def _make_turns(random: Random, model: str, *, start: datetime, length: int) -> Iterator[NewTurn]:
    """Exchanges of a message, a call of a tool, its result, and an answer."""
    at = start
    for number in range(length):
        at += timedelta(seconds=random.expovariate(1 / 240))
        yield _make_turn(random, number, model=model, at=at)


def _make_turn(random: Random, number: int, *, model: str, at: datetime) -> NewTurn:
    tool, call_id = TOOLS[number // 4 % len(TOOLS)], f"toolu_{number // 4}"
    if number % 4 == 0:
        return NewTurn(role="user", content=make_text(random, words=(5, 60)), created_at=at)
    if number % 4 == 2:
        return NewTurn(
            role="tool",
            content=make_text(random, words=(10, 150)),
            tool_call_id=call_id,
            tool_name=tool,
            metadata=dump_json({"ok": random.random() >= FAILED}),
            created_at=at,
        )
    text = make_text(random, words=(20, 140) if number % 4 == 3 else (4, 20))
    blocks: list[dict[str, object]] = [{"type": "text", "text": text}]
    if number % 4 == 1:
        path = make_text(random, words=(2, 4)).replace(" ", "/") + ".py"
        blocks.append({"type": "tool_use", "id": call_id, "name": tool, "input": {"path": path}})
    return NewTurn(
        role="assistant",
        content=text,
        blocks=dump_json(blocks),
        metadata=dump_json({"model": model}),
        created_at=at,
    )
