"""Kill the bot's process with SIGKILL at random moments and check Discord afterwards.

``python -m tests.features.discord.kill_discord --rounds 20``. In each round, people write messages
and the bot is killed while it answers; they also write while no process runs. At the end, every
message must have exactly one run and exactly one complete answer.
"""

import argparse
import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from loomweb.env import BASE_DIR
from tests.features.discord.discord_server import (
    ANN,
    BOB,
    BOT,
    DM_OF,
    GENERAL,
    GUILD,
    THREAD,
    TOKEN,
    DiscordServer,
)

PLACES = ((DM_OF[ANN], ANN), (GENERAL, BOB), (THREAD, ANN))

TEXTS = ("long", "table", "code", "help")
"""Messages that the demo model answers. Only this program sends the first one, tests do not."""

DEMO = "I am the built-in demo model"
"""A sentence that an answer contains at most once."""

EARLIEST, LATEST = 0.0, 1.5
"""Range of the seconds from the messages to the kill."""


class Killing:
    """Rounds on one data folder and one database. Tests pass their own database."""

    def __init__(
        self,
        folder: Path,
        server: DiscordServer,
        *,
        database: Path | None,
        random: Random,
        popen: Callable[..., Any],
    ) -> None:
        self.said: list[tuple[int, int]] = []
        self._folder = folder
        self._is_new = database is None
        self._database = database or folder / "loom.sqlite3"
        self._server = server
        self._random = random
        self._popen = popen
        self._process: Any = None
        self._log = (folder / "bot.log").open("ab")
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "DJANGO_"))},
            "LOOM_DATA_DIR": str(folder),
            "DATABASE_URL": f"sqlite:///{self._database}",
            "LOOM_DEMO_DELAY": "0.001",
            "LOOM_DISCORD_TOKEN": TOKEN,
            "LOOM_DISCORD_WORKSPACE": "garden",
            "LOOM_DISCORD_ACCOUNT": "ann",
            "LOOM_DISCORD_USERS": f"{ANN}=ann,{BOB}",
            "LOOM_DISCORD_GUILDS": str(GUILD),
            "LOOM_DISCORD_EDIT_SECONDS": "0.3",
            "LOOM_MAX_QUEUED": "1000",  # a bot that is killed all the time answers slowly
            "LOOM_DISCORD_API": f"{server.url}/api/v10",
            "LOOM_DISCORD_GATEWAY": server.gateway_url,
        }
        for name in ("REDIS_URL", "ANTHROPIC_API_KEY"):
            self._environment.pop(name, None)

    async def prepare(self) -> None:
        """Create a workspace ``garden`` that ann owns, unless a test has created it."""
        if not self._is_new:
            return
        root = self._folder / "workspaces" / "garden"
        root.mkdir(parents=True)
        code = (
            "from django.core.management import call_command as call;"
            "from django.contrib.auth.models import User;"
            "from pathlib import Path;"
            "from conversations.archive.workspaces import create_workspace as create;"
            "call('migrate', verbosity=0);"
            f"create(root=Path({str(root)!r}), name='Garden', slug='garden',"
            " owner=User.objects.create_user('ann'))"
        )
        done = self._manage("shell", "--no-imports", "-c", code)
        assert await asyncio.to_thread(done.wait) == 0

    def _manage(self, *arguments: str) -> Any:
        return self._popen(
            [sys.executable, "manage.py", *arguments],
            cwd=BASE_DIR,
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
        )

    async def start(self) -> None:
        """Start the bot and wait until it is connected."""
        before = self._server.identified
        self._process = self._manage("discord")
        async with asyncio.timeout(120):
            while self._server.identified == before:
                assert self._process.poll() is None, (self._folder / "bot.log").read_text()
                await asyncio.sleep(0.01)

    async def know_places(self) -> None:
        """Wait until the first process knows all places, because it answers no earlier messages."""
        async with asyncio.timeout(60):
            while self._read("SELECT 1 FROM conversations_channelplace")[4:] == []:
                await asyncio.sleep(0.05)

    async def end(self, number: int) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code: int = await asyncio.to_thread(self._process.wait)
        await self._server.lose_connections()
        return code

    async def play_round(self) -> None:
        await self._say(unheard=False)
        await asyncio.sleep(self._random.uniform(EARLIEST, LATEST))
        await self.end(signal.SIGKILL)
        await self._say(unheard=True)
        if self._random.random() < 0.3:
            self._server.forget_nonces()
        await self.start()

    async def _say(self, *, unheard: bool) -> None:
        for place, author in PLACES:
            text = self._random.choice(TEXTS if self._is_new else TEXTS[1:])
            mention = "" if place == DM_OF[ANN] else f"<@{BOT}> "
            message = await self._server.say(place, mention + text, author=author, unheard=unheard)
            self.said.append((place, message))

    async def conclude(self) -> None:
        """Wait until all messages are answered, then end the process with SIGTERM."""
        for _ in range(1200):
            if len(self.endings()) >= len(self.said):
                break
            await asyncio.sleep(0.1)
        assert await self.end(signal.SIGTERM) == 0
        self._log.close()

    async def make_sure(self) -> None:
        """Kill the process if it is still running, for example after a failed test."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def endings(self) -> list[tuple[Any, ...]]:
        """Return source, run state and message ids of every answer that was shown completely."""
        return self._read(
            "SELECT p.source, r.state, p.posted FROM conversations_channelreply p"
            " JOIN conversations_run r ON r.id = p.run_id WHERE p.done_at IS NOT NULL"
            " ORDER BY p.id"
        )

    def _read(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as database:
            return database.execute(query).fetchall()

    def problems(self) -> list[str]:
        """Return descriptions of the problems that a person would notice."""
        found: list[str] = []
        runs = Counter(source for source, _, _ in self.endings())
        for place, message in self.said:
            answers = [
                m
                for m in self._server.of_bot(place)
                if m.get("message_reference", {}).get("message_id") == message
            ]
            if runs[message] != 1 or len(answers) != 1:
                found.append(f"{message}: {runs[message]} runs, {len(answers)} answers")
            if any(answer["content"].count(DEMO) > 1 for answer in answers):
                found.append(f"{message} is answered by what answers another one")
        kept = [number for _, _, posted in self.endings() for number in _numbers(posted)]
        shown = {int(m["id"]) for place, _ in PLACES for m in self._server.of_bot(place)}
        found += [f"{number} is shown and not kept" for number in shown - set(kept)]
        found += [f"{number} is kept and not shown" for number in set(kept) - shown]
        return found


def _numbers(posted: str) -> list[int]:
    return [int(text) for text in posted.strip("[]").split(",") if text.strip()]


async def play(
    folder: Path,
    *,
    rounds: int,
    seed: int,
    database: Path | None = None,
    popen: Callable[..., Any] = subprocess.Popen,
) -> Killing:
    """Play the rounds. ``popen`` starts the processes."""
    server = DiscordServer()
    await server.start()
    killing = Killing(folder, server, database=database, random=Random(seed), popen=popen)
    try:
        await killing.prepare()
        await killing.start()
        await killing.know_places()
        for _ in range(rounds):
            await killing.play_round()
        await killing.conclude()
    finally:
        await killing.make_sure()
        await server.stop()
    return killing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        killing = asyncio.run(play(Path(folder), rounds=options.rounds, seed=options.seed))
        states = Counter(state for _, state, _ in killing.endings())
        problems = killing.problems()
        print(f"{options.rounds} kills, {len(killing.said)} messages: {dict(states)}")
        print(f"{len(problems)} problems", *problems[:20], sep="\n")
        sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
