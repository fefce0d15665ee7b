"""A script in which programs call the API while the server is killed with SIGKILL and restarted.

Several programs share each key. Another process may run on the same data meanwhile.

Then the script checks that every message exists exactly once, in the session of its key, that
the runs of a session did not overlap and that no program was shown words of another key. Each
stream that was interrupted and resumed must equal, byte for byte, the stream read at once.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from time import monotonic, sleep

from benchmarks.processes import Server
from tests.crash.callers import Asked, Caller, Place
from tests.crash.scripts import Ground, conclude, prepared

WORKSPACE = "example"


@dataclass(slots=True, kw_only=True)
class Soak:
    ground: Ground
    options: argparse.Namespace
    problems: list[str] = field(default_factory=list)

    def play(self) -> list[str]:
        """Run the script and return the problems."""
        server, other = self.ground.make_server(), self.ground.make_server()
        server.start()
        server.sign_in()
        try:
            token = self._make_token()
            if self.options.beside:
                other.start()
            callers = self._call(server, token)
            place = Place(port=server.port, token=token, workspace=WORKSPACE)
            beside = Place(port=other.port, token=token, workspace=WORKSPACE)
            asked = [one for caller in callers for one in caller.asked]
            self.problems += [problem for caller in callers for problem in caller.problems]
            self._check(asked, place, beside if self.options.beside else place, server)
            self._tell(asked)
        finally:
            server.stop()
            other.stop()
        return self.problems

    def _make_token(self) -> str:
        from django.contrib.auth.models import User
        from django.db import connection

        from conversations.accounts.tokens import create_token

        token = create_token(
            User.objects.get(is_superuser=True),
            name="Soak",
            scopes=["read", "write"],
            lifetime=timedelta(days=1),
        )
        connection.close()  # only the server may have a connection when it is killed
        return token

    def _call(self, server: Server, token: str) -> list[Caller]:
        place = Place(port=server.port, token=token, workspace=WORKSPACE)
        callers = [
            Caller(
                place,
                key=f"k{n % self.options.keys}",
                name=f"c{n}",
                every=1 + n % 9,
                streams_first=n % 2 == 0,
            )
            for n in range(self.options.callers)
        ]
        began = monotonic()
        with ThreadPoolExecutor(len(callers)) as pool:
            living = [pool.submit(caller.live, self._goes_on(began)) for caller in callers]
            for share in self._kills():
                self._wait_for(share, began, callers)
                server.kill()
                server.launch()
                server.read_link()
            for life in living:
                life.result()
        return callers

    def _goes_on(self, began: float) -> Callable[[int], bool]:
        options = self.options
        if options.messages:
            return lambda count: count < options.messages
        return lambda count: monotonic() < began + options.seconds

    def _kills(self) -> Iterator[float]:
        """Yield the share of all messages, or of the time, after which each kill comes."""
        random = Random(self.options.seed)
        for number in range(1, self.options.kills + 1):
            yield (number - random.uniform(0, 0.4)) / (self.options.kills + 1)

    def _wait_for(self, share: float, began: float, callers: list[Caller]) -> None:
        if not self.options.messages:
            sleep(max(0.0, began + share * self.options.seconds - monotonic()))
            return
        while sum(len(caller.asked) for caller in callers) < share * len(callers) * (
            self.options.messages
        ):
            sleep(0.02)
        sleep(0.3)

    def _check(self, asked: list[Asked], place: Place, beside: Place, server: Server) -> None:
        from tests.crash.caller_checks import check_archive, check_leaving, check_streams

        self.problems += check_archive(asked)
        self.problems += check_streams(asked, beside)
        self.problems += check_leaving(place, server)
        if self.options.strict:
            self.problems += server.problems()

    def _tell(self, asked: list[Asked]) -> None:
        from conversations.models import Run
        from tests.crash.caller_checks import LEAVING

        runs = Run.objects.exclude(session__key=LEAVING)
        states = Counter(runs.values_list("state", flat=True))
        streams = [one.stream for one in asked if one.stream]
        print(
            f"{self.options.callers} callers, {self.options.keys} keys, {self.options.kills}"
            f" kills: {len(asked)} messages"
            f" ({', '.join(f'{count} {state}' for state, count in sorted(states.items()))}),"
            f" {sum(one.tries for one in asked)} requests, {len(streams)} streams of"
            f" {sum(stream.count(b'id: ') for stream in streams)} events;"
            f" {len(self.problems)} problems"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--callers", type=int, default=50)
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--messages", type=int, default=0, help="of each, whatever the time")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--beside", action="store_true", help="another process on the data")
    parser.add_argument("--strict", action="store_true", help="errors in the log count too")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--seed", type=int, default=None, help="to repeat the kills' moments")
    parser.add_argument("--database", type=Path, help="a migrated one to begin with")
    options = parser.parse_args()
    with prepared(options.database) as ground:
        problems = Soak(ground=ground, options=options).play()
    return conclude(ground, problems)


if __name__ == "__main__":
    sys.exit(main())
