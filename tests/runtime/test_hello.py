"""The cost of one short message: files entered, statements, updates of the session's row.

The tests compare counts instead of times, because counts are the same on every machine. The limits
are upper bounds. A change that exceeds one of them makes every message more expensive.
"""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from conversations.models import Session
from conversations.runtime.current import stop_current_runtime
from loomweb.env import BASE_DIR
from tests.web.sockets import Socket, open_socket

MAX_FILES = 62
MAX_STATEMENTS = 30
MAX_SESSION_UPDATES = 4

TRIES = 5
"""Number of messages, of which the cheapest counts. A periodic task may run during one of them."""

PRODUCT = tuple(f"{BASE_DIR / folder}/" for folder in ("conversations", "loomweb"))


pytestmark = [pytest.mark.django_db(transaction=True)]


@dataclass(slots=True)
class Costs:
    files: Counter[str] = field(default_factory=Counter)
    statements: list[str] = field(default_factory=list)

    @property
    def session_updates(self) -> int:
        updates = ("UPDATE conversations_session ", 'UPDATE "conversations_session" ')
        return sum(statement.startswith(updates) for statement in self.statements)


@contextmanager
def counted() -> Iterator[Costs]:
    """Count files, statements and updates in all threads."""
    costs = Costs()
    tool = sys.monitoring.PROFILER_ID

    def note_start(code: CodeType, _: int) -> object:
        if code.co_filename.startswith(PRODUCT):
            costs.files[code.co_filename] += 1
        return sys.monitoring.DISABLE

    def note(name: str, original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            costs.statements.append(str(args[0]) if args else name)
            return original(self, *args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for method in ("execute", "executemany"):
            patch.setattr(CursorWrapper, method, note(method, getattr(CursorWrapper, method)))
        for method, name in (("_commit", "COMMIT"), ("_rollback", "ROLLBACK")):
            original = getattr(BaseDatabaseWrapper, method)
            patch.setattr(BaseDatabaseWrapper, method, note(name, original))
        sys.monitoring.use_tool_id(tool, "hello")
        try:
            sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, note_start)
            sys.monitoring.set_events(tool, sys.monitoring.events.PY_START)
            sys.monitoring.restart_events()
            yield costs
        finally:
            sys.monitoring.set_events(tool, 0)
            sys.monitoring.free_tool_id(tool)


@pytest.fixture
async def socket(
    transactional_db: None, session: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Socket]:
    # With this interval a fast answer has no draft on disk, however slow the machine is.
    monkeypatch.setattr(settings.LOOM, "draft_interval_ms", 600_000)
    opened = await open_socket(session, user)
    await opened.until("state")
    yield opened
    await opened.close()
    await stop_current_runtime()


async def say_hello(socket: Socket, number: int) -> Costs:
    with counted() as costs:
        await socket.send({"type": "send", "client_id": f"hello-{number:08}", "text": "hello"})
        await socket.until_idle()
    assert socket.rows[-1]["event_type"] == "turn_separator"
    assert len(socket.rows) == 3 * (number + 1)  # message, answer and footer each time
    return costs


async def test_a_short_message_stays_within_the_limits(socket: Socket) -> None:
    await say_hello(socket, 0)
    tries = [await say_hello(socket, number) for number in range(1, TRIES + 1)]
    fewest = min((costs.files for costs in tries), key=len)
    assert len(fewest) <= MAX_FILES, sorted(fewest)
    least = min((costs.statements for costs in tries), key=len)
    assert len(least) <= MAX_STATEMENTS, least
    assert min(costs.session_updates for costs in tries) <= MAX_SESSION_UPDATES
