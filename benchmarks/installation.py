"""A whole installation: many people, each with many sessions over two years.

Database rows are written in bulk, so that the data is ready in minutes. They have all numbers,
digests and search entries that turns appended one by one would have. There are no journals and
runs, because a session without events is shown from its turns.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import batched
from random import Random
from typing import Any
from uuid import UUID, uuid4

from django.contrib.auth.models import User
from django.db import connection, transaction

from conversations.archive.append import INSERT_TURN, moment_value, turn_digest, turn_values
from conversations.domain.search_tokens import VERSION
from conversations.domain.searchable import make_entry
from conversations.domain.text import dump_json, first_digest, instant, next_digest
from conversations.domain.turns import CONTENT_COLUMNS, NewTurn, StoredTurn, content_values
from conversations.models import Membership, SearchProgress, Session, Turn, Workspace
from conversations.models.search import ENTRIES, entry_id
from conversations.search.indexing import (
    ENTRY_COLUMNS,
    TurnEntry,
    merge_index,
    replace_entries,
    searchable_of,
    sum_up,
)

from .vocabulary import make_text

PEOPLE_IN_WORKSPACE = 10
SESSIONS_AT_ONCE = 100
START, DAYS = datetime(2024, 11, 1, 8, tzinfo=UTC), 730
_TURN_COLUMNS = ("number", *CONTENT_COLUMNS, "created_at")
MODELS = ("claude-opus-5", "claude-sonnet-5-5", "claude-haiku-5", "local-model")
TOOLS = ("read_file", "edit_file", "shell_execute", "search_files", "fetch_url", "write_file")
FAILED_SHARE, ARCHIVED_SHARE, EXPIRED_SHARE, REVIEWED_SHARE = 0.05, 0.1, 0.03, 0.5
"""Share of failed tool results, and shares of archived, expired and reviewed sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of an installation.

    ``longest`` is the number of turns of the newest session, which ``turns`` includes. With 0 its
    length is random.
    """

    people: int
    sessions: int
    turns: int
    longest: int = 0


WHOLE = Size(people=200, sessions=20_000, turns=1_000_000)
QUICK = Size(people=20, sessions=1_000, turns=50_000)


def write_installation(size: Size, *, seed: int = 1) -> None:
    """Write an installation, the same for the same seed. Sessions are ordered by their start."""
    random = Random(seed)
    people = _write_people(size.people)
    lengths = _lengths(random, size)
    starts = sorted(START + timedelta(minutes=random.randrange(DAYS * 1440)) for _ in lengths)
    for batch in batched(zip(starts, lengths, strict=True), SESSIONS_AT_ONCE, strict=False):
        with transaction.atomic():
            _write_sessions(random, people, batch)
    while merge_index(pages=2000):
        pass


def repeat_installation(times: int) -> None:
    """Write ``times`` copies of every session, with the same owner, times and words.

    This is three times as fast as creating new sessions.
    """
    keys = Session.objects.order_by("pk").values_list("pk", flat=True)
    for batch in batched(list(keys) * times, SESSIONS_AT_ONCE, strict=False):
        with transaction.atomic():
            for pk in batch:
                _repeat_session(pk)
            merge_index(pages=2000)
    while merge_index(pages=2000):
        pass


def _repeat_session(pk: int) -> None:
    session = Session.objects.select_related("search_progress").get(pk=pk)
    progress = session.search_progress
    uuid = uuid4()
    digest = first_digest(uuid, chain="turns")
    rows = []
    for row in Turn.objects.filter(session=pk).order_by("number").values_list(*_TURN_COLUMNS):
        number, *content, at = row
        digest = next_digest(digest, (number, *content, instant(at)))
        rows.append((number, *content, moment_value(at), digest))
    session.pk, session.uuid, session.turn_digest = None, uuid, digest
    session.event_digest = first_digest(uuid, chain="events")
    session.save(force_insert=True)
    copied = ", ".join(ENTRY_COLUMNS[2:])
    with connection.cursor() as cursor:
        cursor.executemany(INSERT_TURN, [(session.pk, *row) for row in rows])
        cursor.execute(
            f"INSERT INTO {ENTRIES} (id, session_id, {copied})"  # noqa: S608 (constants)
            f" SELECT id + %s, %s, {copied} FROM {ENTRIES} WHERE id BETWEEN %s AND %s",
            [
                entry_id(session.pk, 0) - entry_id(pk, 0),
                session.pk,
                entry_id(pk, 1),
                entry_id(pk, len(rows)),
            ],
        )
    progress.pk = session.pk
    progress.save(force_insert=True)


def _write_people(count: int) -> list[tuple[User, Workspace]]:
    """Create people and workspaces. Return each person with the workspace of their sessions."""
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
    """Return the number of turns of each session, with the total of ``size``.

    Most sessions are short, and a few are very long.
    """
    shares = [random.lognormvariate(0, 1.2) for _ in range(size.sessions)]
    whole = sum(shares)
    lengths = [max(2, int((size.turns - size.longest) * share / whole)) for share in shares]
    lengths[-1] = size.longest or lengths[-1]
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
    SearchProgress.objects.bulk_create(_index(session, new) for session, new in made)
    merge_index(pages=2000)


def _index(session: Session, turns: Iterable[NewTurn]) -> SearchProgress:
    """Write the session's search entries, and return its SearchProgress without saving it."""
    entries = []
    for number, new in enumerate(turns, start=1):
        values = dict(zip(CONTENT_COLUMNS, content_values(new), strict=True))
        turn = StoredTurn(number=number, created_at=new.created_at or START, **values)
        found = searchable_of(session.pk, turn)
        keys = {"owner": session.owner_id, "workspace": session.workspace_id}
        entry = make_entry(turn, found, **keys)
        entries.append(TurnEntry(session_pk=session.pk, turn=turn, entry=entry))
    replace_entries(entries)
    sums = asdict(sum_up(entries))
    return SearchProgress(session=session, indexed_turn=len(entries), version=VERSION, **sums)


def _chain(session: Session, turns: Iterable[NewTurn]) -> list[tuple[Any, ...]]:
    """Return the turns' database rows without the session's key, and set the session's digest."""
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
        unindexed_turn=length + 1,
        reviewed_turn=length if random.random() < REVIEWED_SHARE else 0,
        turn_digest=first_digest(uuid, chain="turns"),
        event_digest=first_digest(uuid, chain="events"),
        created_at=start,
        last_active_at=last,
        archived_at=last if random.random() < ARCHIVED_SHARE else None,
        expires_at=last if random.random() < EXPIRED_SHARE else None,
    )
    return session, turns


def _make_turns(random: Random, model: str, *, start: datetime, length: int) -> Iterator[NewTurn]:
    """Yield exchanges of a message, a tool call, its result and an answer."""
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
            metadata=dump_json({"ok": random.random() >= FAILED_SHARE}),
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
