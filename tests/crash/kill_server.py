"""A script that kills the server with SIGKILL at random moments and checks the data.

In each round some people chat, the server is killed and a new one starts on the same data. The
script checks the people's first pages, compares what they were shown with the archive, and lets
them continue. The provider's stand-in records when it sent which text.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic, monotonic_ns, sleep
from typing import TYPE_CHECKING, Any

from benchmarks.figures import median, percentile
from benchmarks.pages import PageReader
from benchmarks.wire import SentAnswer
from tests.crash.scripts import Ground, conclude, prepared

if TYPE_CHECKING:
    from tests.crash.checks import Loss
    from tests.crash.stories import Person

EARLIEST, LATEST = 0.05, 2.6
"""Seconds from the first messages to the kill. A test gives a smaller maximum."""

BOUND = 0.25
"""Seconds of an unfinished answer's text that may be lost on an otherwise idle machine. A test
gives a larger value."""


@dataclass(slots=True)
class Found:
    """The results of all rounds."""

    rounds: int = 0
    messages: int = 0
    acknowledged: int = 0
    interrupted: int = 0
    starts: list[float] = field(default_factory=list)
    losses: list["Loss"] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def summary(self) -> str:
        seconds = [loss.seconds for loss in self.losses]
        return (
            f"{self.rounds} kills: {self.acknowledged} of {self.messages} messages were"
            f" acknowledged, {self.interrupted} answers interrupted, {len(self.losses)} lost"
            f" their last {1000 * median(seconds):.0f} ms (median),"
            f" {1000 * percentile(seconds, 0.95):.0f} ms (p95),"
            f" {1000 * max(seconds, default=0):.0f} ms and"
            f" {max((loss.characters for loss in self.losses), default=0)} characters (most);"
            f" {median(self.starts):.2f} s to the first page (median);"
            f" {len(self.problems)} problems"
        )


class Killing:
    """Rounds of kills on one data folder."""

    def __init__(
        self,
        ground: Ground,
        *,
        sessions: int,
        latest: float,
        bound: float,
        random: Random,
    ) -> None:
        self.found = Found()
        self._server = ground.make_server()
        self._wire = ground.wire
        self._answers: list[SentAnswer] = []
        self._count = sessions
        self._latest = latest
        self._bound = bound
        self._random = random
        self._cookie = ""

    def play(self, rounds: int) -> list[str]:
        """Play the rounds and return the problems."""
        self._server.start()
        self._cookie = self._server.sign_in()
        self._wire.take_answers()  # drop the answers of the scripts before this one
        try:
            for number in range(1, rounds + 1):
                self.play_round()
                if number % 10 == 0 or number == rounds:
                    print(self.found.summary(), flush=True)
        finally:
            self._server.stop()
        return self.found.problems

    def play_round(self) -> None:
        from django.db import connection

        try:
            asyncio.run(self._play())
        finally:
            connection.close()  # only the server may have a connection when it is killed

    async def _play(self) -> None:
        people = await asyncio.to_thread(self._invite)
        killed_at = await self._chat_until_killed(people)
        answers = self._answers = self._wire.take_answers()
        pages = await self._restart(people)
        await asyncio.to_thread(self._compare, people, answers, pages, killed_at)
        await asyncio.gather(*(self._go_on(person) for person in people))
        await asyncio.to_thread(self._conclude, people)

    def _invite(self) -> list["Person"]:
        from benchmarks.bench import Bench
        from tests.crash.stories import Person

        bench = Bench(data_dir=self._server.data_dir, is_quick=True)
        number = self.found.rounds
        return [
            Person(f"r{number}p{index}", uuid)
            for index, uuid in enumerate(bench.new_sessions(self._count))
        ]

    async def _chat_until_killed(self, people: Sequence["Person"]) -> int:
        """Let people chat, kill the server and return the time of the kill."""
        from tests.crash.stories import STORIES, live

        chats = [
            asyncio.create_task(
                live(
                    person,
                    STORIES[index % len(STORIES)],
                    port=self._server.port,
                    cookie=self._cookie,
                    random=self._random,
                )
            )
            for index, person in enumerate(people)
        ]
        await asyncio.wait_for(people[0].has_begun.wait(), 60)
        await asyncio.sleep(self._random.uniform(EARLIEST, self._latest))
        killed_at = monotonic_ns()
        self._server.kill()
        await asyncio.wait_for(asyncio.gather(*chats), 60)
        for person in people:
            if person.page is not None:
                await person.page.close()
                person.note_rows()
        return killed_at

    async def _restart(self, people: Sequence["Person"]) -> list[str]:
        """Start the server and return each person's first page, requested as early as possible."""
        began = monotonic()
        self._server.launch()
        pages = [asyncio.to_thread(self._load_page, f"/s/{p.session}/") for p in people]
        htmls = await asyncio.gather(*pages)
        self.found.starts.append(monotonic() - began)
        await asyncio.to_thread(self._server.read_link)
        return htmls

    def _load_page(self, path: str) -> str:
        end = monotonic() + 60
        while True:
            reader = PageReader(port=self._server.port, cookie=self._cookie)
            try:
                reader.read(path)
            except OSError:
                if monotonic() > end:
                    raise
                sleep(0.01)
            else:
                return reader.html
            finally:
                reader.close()

    def _compare(
        self,
        people: Sequence["Person"],
        answers: Sequence[SentAnswer],
        pages: Sequence[str],
        killed_at: int,
    ) -> None:
        from tests.crash import checks

        for person, html in zip(people, pages, strict=True):
            self.found.messages += len(person.said)
            self.found.acknowledged += len(person.acknowledged)
            interrupted = checks.count_interrupted(person.session)
            self.found.interrupted += interrupted
            self._report(checks.check_page(person, html, interrupted=interrupted))
            self._report(checks.check_messages(person, all_of_them=False))
            self._report(checks.check_rows(person))
            losses = checks.measure_losses(
                person, answers, killed_at=killed_at, read_answers=self._read_answers
            )
            for loss in losses:
                if isinstance(loss, str):
                    self._report([loss])
                    continue
                self.found.losses.append(loss)
                if loss.seconds > self._bound:
                    self._report(
                        [f"{person.name}: {1000 * loss.seconds:.0f} ms of an answer are missing"]
                    )

    def _read_answers(self) -> list[SentAnswer]:
        """Return all answers that were sent in this round so far."""
        self._answers = self._answers + self._wire.take_answers()
        return self._answers

    async def _go_on(self, person: "Person") -> None:
        """Continue an interrupted run and stop it, resend all messages and send one more."""
        from tests.crash.checks import count_interrupted

        page = await self._open(person)
        if page.is_busy:
            await page.wait_until_idle(seconds=60)
        if await asyncio.to_thread(count_interrupted, person.session):
            self._expect(person, await page.request({"type": "continue"}), "continue")
            await page.wait_until_busy(seconds=60)
            await page.tell({"type": "stop"})
            await page.wait_until_idle(seconds=60)
        for said in person.said:
            ack = await page.send(said.text, client_id=said.client_id)
            self._expect(person, ack, f"sending {said.mark} again")
            if said.ack is not None and said.ack["turn"] not in (None, ack["turn"]):
                self._report([f"{said.mark} was turn {said.ack['turn']}, is {ack['turn']}"])
        await person.say("words=5")
        await person.wait()
        await page.close()

    async def _open(self, person: "Person") -> Any:
        from benchmarks.pages import PageSocket

        page = PageSocket(port=self._server.port, cookie=self._cookie, session=person.session)
        person.page = page
        await page.open()
        return page

    def _expect(self, person: "Person", answer: dict[str, Any], what: str) -> None:
        if answer["type"] != "ack":
            self._report([f"{person.name}, {what}: {answer}"])

    def _conclude(self, people: Sequence["Person"]) -> None:
        from tests.crash import checks

        for person in people:
            self._report(checks.check_messages(person, all_of_them=True))
            self._report(checks.check_ended(person))
        self.found.rounds += 1

    def _report(self, problems: Any) -> None:
        for problem in problems:
            self.found.problems.append(f"round {self.found.rounds}: {problem}")
            print(self.found.problems[-1], flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--latest", type=float, default=LATEST, help="a kill comes, in seconds")
    parser.add_argument("--bound", type=float, default=BOUND, help="of what may be lost")
    parser.add_argument("--seed", type=int, default=None, help="to repeat a run's moments")
    parser.add_argument("--database", type=Path, help="a migrated one to begin with")
    options = parser.parse_args()
    with prepared(options.database) as ground:
        killing = Killing(
            ground,
            sessions=options.sessions,
            latest=options.latest,
            bound=options.bound,
            random=Random(options.seed),
        )
        problems = killing.play(options.rounds)
    return conclude(ground, problems)


if __name__ == "__main__":
    sys.exit(main())
