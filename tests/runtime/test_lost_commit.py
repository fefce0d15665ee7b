"""A connection is lost during a commit: the write is done once and its caller is told.

A proxy between the writer and a real PostgreSQL server cuts the connection at the COMMIT.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from enum import Enum

import pytest
from django.db import connection, connections

from conversations.archive.storage import transaction_id, was_committed
from conversations.domain.errors import Unavailable
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.runtime.database import Writer
from conversations.runtime.drafts import DraftWorker
from tests.archive.turns import append_turn, read_turns

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has no connections"),
]

COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
"""The simple query message that psycopg sends to commit."""


class Cut(Enum):
    BEFORE = "the server gets no COMMIT, and learns that the client is gone"
    UNNOTICED = "the server gets no COMMIT, and does not learn that the client is gone"
    AFTER = "the client gets no answer to its COMMIT"


class Proxy:
    """A relay between clients and the server that cuts one connection as ``next_cut`` says."""

    def __init__(self, host: str, port: str) -> None:
        self._host, self._port = host, port or "5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._unanswered: set[socket.socket] = set()
        self.next_cut: Cut | None = None
        self.is_last = False
        """Whether all connections after the cut are refused."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            _hang_up(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                if self.is_last and self.next_cut is None:
                    _hang_up(client)
                    continue
                server = self._connect()
                self._ends += [client, server]
                for relay in (self._relay_questions, self._relay_answers):
                    threading.Thread(target=relay, args=(client, server), daemon=True).start()

    def _connect(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, int(self._port)))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._host}/.s.PGSQL.{self._port}")
        return server

    def _relay_questions(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self.next_cut and data.endswith(COMMIT):
                    cut, self.next_cut = self.next_cut, None
                    if cut is Cut.UNNOTICED:
                        _hang_up(client)
                        return
                    if cut is Cut.BEFORE:
                        break
                    self._unanswered.add(server)
                server.sendall(data)
        _hang_up(server)
        _hang_up(client)

    def _relay_answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(65536)) and server not in self._unanswered:
                client.sendall(data)
        _hang_up(client)


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side has already closed it
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Proxy]:
    params = connection.get_connection_params()
    started = Proxy(str(params.get("host") or "127.0.0.1"), str(params.get("port") or ""))
    given = connections.settings["default"]  # used for every new connection
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(given, "HOST", "127.0.0.1")
        patch.setitem(given, "PORT", str(started.port))
        yield started
    connection.close()  # the test's own connection may go through the proxy as well
    started.close()


@pytest.fixture
async def writer(proxy: Proxy) -> AsyncIterator[Writer]:
    started = Writer()
    yield started
    await asyncio.to_thread(started.close)


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name)
async def test_a_write_that_loses_its_connection_at_commit_is_done_once(
    proxy: Proxy, writer: Writer, garden: Session, cut: Cut
) -> None:
    runs = []

    def say() -> int:
        runs.append(1)
        return append_turn(garden, NewTurn(role="user", content="once"))

    proxy.next_cut = cut
    assert await writer.write(say) == 1
    assert proxy.next_cut is None
    assert len(runs) == (1 if cut is Cut.AFTER else 2)
    assert await writer.write(lambda: [t.content for t in read_turns(garden.pk)]) == ["once"]


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name)
async def test_a_transaction_that_wrote_nothing_is_repeated(
    proxy: Proxy, writer: Writer, garden: Session, cut: Cut
) -> None:
    def read() -> tuple[str, str]:
        return Session.objects.get(pk=garden.pk).title, transaction_id()

    proxy.next_cut = cut
    assert await writer.write(read) == (garden.title, "")
    assert proxy.next_cut is None


async def test_draft_text_is_not_queued_again_after_an_uncertain_commit(
    proxy: Proxy, writer: Writer, garden: Session
) -> None:
    """The answer to the COMMIT is lost, and the database stays unreachable."""
    drafts = DraftWorker(writer, interval=0.01, on_saved=lambda _: None, on_wait=lambda *_: None)
    drafts.add(7, part=0, kind="text", text="once")
    proxy.next_cut, proxy.is_last = Cut.AFTER, True
    with pytest.raises(Unavailable) as told, drafts.pending_chunks(7):
        await writer.write(append_turn, garden, NewTurn(role="user", content="once"))
    assert told.value.may_be_done
    with drafts.pending_chunks(7) as chunks:
        assert chunks == []

    drafts.add(7, part=1, kind="text", text="more")
    with pytest.raises(Unavailable) as told, drafts.pending_chunks(7):
        await writer.write(append_turn, garden, NewTurn(role="user", content="never"))
    assert not told.value.may_be_done
    with drafts.pending_chunks(7) as chunks:
        assert [chunk.text for chunk in chunks] == ["more"]


@pytest.mark.usefixtures("transactional_db")
def test_a_transaction_unknown_after_a_crash_counts_as_aborted() -> None:
    assert not was_committed(str(2**40 + 5))
