"""Imports that stop early: each imported turn is shown, and the session can be continued."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.archive.transcript import read_page
from conversations.domain.keyset import parse_cursor
from conversations.features.interchange.export import session_text
from conversations.features.interchange.import_sessions import ImportCounts
from conversations.features.interchange.pipeline import ImportRun
from conversations.features.interchange.worker import ImportStopped
from conversations.models import Session
from tests.api.conftest import Program, program, provider
from tests.api.test_messages import send
from tests.web.conftest import make_person, owner, runtime_ends
from tests.wire.server import WireThread

from .conftest import Importing
from .test_export import forget_sessions

__all__ = ["make_person", "owner", "program", "provider", "runtime_ends"]

UUID = "7b0b3ac2-6a0e-4c35-9bb1-3f8e6a2b8f11"
TURNS = 600


def turn_lines(count: int = TURNS) -> Iterator[dict[str, Any]]:
    for n in range(1, count + 1):
        role = "user" if n % 2 else "assistant"
        yield {"type": "turn", "number": n, "role": role, "content": f"word{n}."}


def event_lines(first: int = 1, **keys: Any) -> Iterator[dict[str, Any]]:
    """Yield the events of the turns from ``first`` on. With ``turn=True`` each names its turn."""
    for seq, n in enumerate(range(first, TURNS + 1), 1):
        kind = "user_message" if n % 2 else "assistant_text"
        named = {"turn": n} if keys.get("turn") else {}
        payload = {"v": 1, "text": f"word{n}."}
        yield {"type": "event", "seq": seq, "event_type": kind, "payload": payload} | named


def opening(**keys: Any) -> dict[str, Any]:
    return {"type": "session", "uuid": UUID, "title": "Beans", **keys}


def import_until(importing: Importing, text: str, *, lines: int) -> Session:
    """Import ``text``, stop after ``lines`` lines and return the session."""
    path, counts = importing.folder / "file.jsonl", ImportCounts()
    path.write_text(text)

    def stop() -> None:
        if counts.lines >= lines:
            raise ImportStopped

    with pytest.raises(ImportStopped):
        ImportRun(importing.target, counts, lambda line, text: None, stop).run(path, name="file")
    return Session.objects.get(uuid=UUID)


def written(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def shown_words(session: Session) -> Counter[str]:
    """Count the rows of the whole transcript in which each turn's word appears."""
    found = Counter[str]()
    page = read_page(session, limit=500)
    while True:
        for row in page.rows:
            found.update(set(re.findall(r"word\d+", row.html)))
        if not page.older:
            return found
        page = read_page(session, before=parse_cursor(page.older), limit=500)


EACH_ONCE = Counter(f"word{n}" for n in range(1, TURNS + 1))


@pytest.mark.django_db
@pytest.mark.parametrize("events", [549, 550])
def test_a_stopped_journal_without_turn_numbers_is_shown_once(
    importing: Importing, events: int
) -> None:
    """The import stops after a message or after its answer."""
    text = written(opening(), *turn_lines(), *event_lines())
    stopped = import_until(importing, text, lines=1 + TURNS + events)
    assert shown_words(stopped) == EACH_ONCE
    importing.text(text)
    assert shown_words(Session.objects.get(uuid=UUID)) == EACH_ONCE


@pytest.mark.django_db
@pytest.mark.parametrize("unread", [40, 1])
def test_turns_in_a_gap_that_was_not_read_are_shown(importing: Importing, unread: int) -> None:
    """The first ten turns have no events. Only the last line of the export names this gap."""
    importing.lines(opening(), *turn_lines(), *event_lines(11, turn=True))
    text = "".join(session_text(Session.objects.get(uuid=UUID)))
    assert '"type":"gap","from_turn":1,"to_turn":10' in text.splitlines()[-1]
    forget_sessions()
    stopped = import_until(importing, text, lines=len(text.splitlines()) - unread)
    assert shown_words(stopped) == EACH_ONCE
    importing.text(text)
    whole = Session.objects.get(uuid=UUID)
    assert shown_words(whole) == EACH_ONCE
    assert "".join(session_text(whole)) == text


@pytest.mark.django_db
def test_turns_in_a_gap_on_a_truncated_line_are_shown(importing: Importing) -> None:
    importing.lines(opening(), *turn_lines(), *event_lines(11, turn=True))
    text = "".join(session_text(Session.objects.get(uuid=UUID)))
    forget_sessions()
    importing.text(text[:-20])
    assert shown_words(Session.objects.get(uuid=UUID)) == EACH_ONCE


@pytest.mark.django_db
def test_a_fork_whose_import_was_stopped_is_linked_to_its_parent(importing: Importing) -> None:
    parent = "22222222-0000-4000-8000-000000000002"
    lines = [{"type": "session", "uuid": parent}, *turn_lines(4)]
    text = written(*lines, opening(parent=parent, fork_turn=2), *turn_lines(4))
    assert str(import_until(importing, text, lines=8).parent.uuid) == parent


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_stopped", [True, False])
async def test_a_session_cut_off_below_its_floor_can_be_continued(
    importing: Importing,
    program: Program,
    provider: WireThread,
    session: Session,
    is_stopped: bool,
) -> None:
    text = written(opening(floor_turn=500, turns=900, events=0), *turn_lines(100))
    if is_stopped:
        await sync_to_async(import_until)(importing, text, lines=90)
    else:
        await sync_to_async(importing.text)(text)
    cut = await Session.objects.aget(uuid=UUID)
    assert cut.floor_turn == 1
    answer = (await send(program, cut, "What did I say last?")).json()
    assert (answer["state"], answer["error"]) == ("completed", None)
    given = json.dumps(provider.requests[-1]["messages"])
    assert f"word{cut.turn_count}." in given
    assert "What did I say last?" in given
