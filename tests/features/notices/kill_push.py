"""Kill the server with SIGKILL while it asks a person, and check what their browser showed.

``python -m tests.features.notices.kill_push --rounds 20``. In each round, messages make the model
ask for approval, and the server is killed meanwhile and started again. At the end, each question
and each interrupted answer must have been shown exactly once. Afterwards the program sends one
message a second without kills, to measure how long a question takes from its record to the browser.
"""

import argparse
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from benchmarks.processes import Server, free_port
from tests.features.notices.push_service import PushService, Worker, open_push_service
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

EARLIEST, LATEST = 0.0, 5.0
"""Range of the seconds from the messages to the kill. The first question after a start is slow."""

MESSAGES = 3
"""Number of messages in a round, each in its own session."""

GOAL_SECONDS = 2.0

NOTICES = """
    SELECT n.uuid, n.event, n.subject, n.created_at, r.state FROM conversations_notice n
    JOIN conversations_run r ON r.id = n.run_id ORDER BY n.id
"""
UNTOLD_RUNS = """
    SELECT r.id, r.state FROM conversations_run r
    WHERE NOT EXISTS (SELECT 1 FROM conversations_notice n WHERE n.run_id = r.id)
"""
AT_REST = """
    SELECT NOT EXISTS (SELECT 1 FROM conversations_run WHERE state IN ('queued', 'running'))
    AND NOT EXISTS (SELECT 1 FROM conversations_noticemessage WHERE state = 'pending')
"""


class Killing:
    def __init__(self, folder: Path, *, service: PushService, wire: WireThread, seed: int) -> None:
        self.sent = 0
        self._random = Random(seed)
        self._wire = wire
        self._database = folder / "loom.sqlite3"
        self._server = Server(
            data_dir=folder,
            port=free_port(),
            settings={
                "ANTHROPIC_API_KEY": wire.key,
                "ANTHROPIC_BASE_URL": wire.url,
                "LOOM_TITLE_MODEL": "off",
                "LOOM_PUSH_PRIVATE_ADDRESSES": "yes",
            },
        )
        self._server.start()
        self.browser = service.make_browser()
        self.worker = Worker(port=self._server.port, cookie=self._server.sign_in())
        self._subscribe()

    def _subscribe(self) -> None:
        page = "/account/notifications/"
        self.worker.request("GET", page)
        body = self.browser.subscription
        status, _ = self.worker.request("POST", f"{page}subscribe/", body, csrf=self.worker.csrf)
        assert status == 201, status
        self.browser.on_push = self.worker.tell

    def play_round(self) -> None:
        self.send(MESSAGES)
        time.sleep(self._random.uniform(EARLIEST, LATEST))
        self._server.kill()
        self._server.start()

    def send(self, count: int) -> None:
        for _ in range(count):
            number = self.sent
            self.sent += 1
            write = ToolCall(name="write_file", input={"path": f"f{number}", "content": "x"})
            self._wire.enqueue(Scenario(text="I write it.", tools=(write,)))
            made = self._post("/w/example/new/")
            self._post(f"{made}send/", text=f"Write {number}", client_id=str(uuid4()))

    def _post(self, path: str, **form: str) -> str:
        status, location = self.worker.request(
            "POST",
            path,
            urlencode(form),
            csrf=self.worker.csrf,
            kind="application/x-www-form-urlencoded",
        )
        assert status == 302, (path, status)
        return str(location)

    def settle(self, seconds: float = 60) -> None:
        """Wait until no run is active and no message is pending."""
        end = time.monotonic() + seconds
        while not self._read(AT_REST)[0][0] and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(1)

    def stop(self) -> None:
        self._server.stop()

    def problems(self) -> list[str]:
        """Return descriptions of the problems that a person would notice."""
        found = []
        notices = self._read(NOTICES)
        shown = Counter(notice["id"] for notice in self.worker.shown)
        for uuid, event, subject, _, state in notices:
            if shown[_uuid(uuid)] != 1:
                found.append(f"{event} of {subject} ({state}): shown {shown[_uuid(uuid)]} times")
        twice = Counter(subject for _, _, subject, _, _ in notices)
        found += [f"{subject}: {count} notices" for subject, count in twice.items() if count > 1]
        found += [f"run {pk} ({state}) is told nowhere" for pk, state in self._read(UNTOLD_RUNS)]
        found += [f"{uuid} was given again after it was shown" for uuid in self.worker.again]
        return found

    def events(self) -> Counter[str]:
        return Counter(event for _, event, _, _, _ in self._read(NOTICES))

    def seconds(self, *, since: int) -> list[float]:
        """Return the seconds from each notice's record to its display, from notice ``since`` on."""
        clock = time.time() - time.monotonic()
        return [
            self.worker.at[_uuid(uuid)]
            + clock
            - datetime.fromisoformat(created).replace(tzinfo=UTC).timestamp()
            for uuid, _, _, created, _ in self._read(NOTICES)[since:]
        ]

    def _read(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as database:
            return database.execute(query).fetchall()


def _uuid(stored: str) -> str:
    """Return the UUID as it is written in JSON."""
    return f"{stored[:8]}-{stored[8:12]}-{stored[12:16]}-{stored[16:20]}-{stored[20:]}"


def play(folder: Path, *, rounds: int, calm: int, seed: int) -> tuple[Killing, list[float]]:
    """Play rounds with a kill, then ``calm`` ones without; return the seconds of the latter too."""
    wire = WireThread()
    wire.start()
    try:
        with open_push_service() as service:
            killing = Killing(folder, service=service, wire=wire, seed=seed)
            try:
                for _ in range(rounds):
                    killing.play_round()
                killing.settle()
                told = sum(killing.events().values())
                for _ in range(calm):
                    killing.send(1)
                    time.sleep(1)
                killing.settle()
            finally:
                killing.stop()
            assert service.problems == []
            return killing, killing.seconds(since=told)
    finally:
        wire.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calm", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        killing, seconds = play(
            Path(folder), rounds=options.rounds, calm=options.calm, seed=options.seed
        )
        problems = killing.problems()
        events = dict(killing.events())
        print(f"{options.rounds} kills, {killing.sent} messages, notices: {events}")
        print(f"{len(killing.browser.pushes)} pushes, {len(killing.worker.shown)} shown")
        p95 = quantiles(seconds, n=20)[-1]
        print(
            f"{len(seconds)} without a kill: median {quantiles(seconds)[1]:.2f} s, p95 {p95:.2f} s"
        )
        print(f"{len(problems)} problems", *problems[:20], sep="\n")
        sys.exit(1 if problems or p95 > GOAL_SECONDS else 0)


if __name__ == "__main__":
    main()
