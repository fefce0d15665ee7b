"""Checks after programs have called a server that was killed meanwhile.

Each check yields the problems that it found, as sentences.
"""

import http.client
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep

from benchmarks.processes import Server
from conversations.archive.verify import verify_session
from conversations.models import Run, Session, Turn
from tests.crash.callers import Asked, Place, read_stream, stream_of


def check_archive(asked: Sequence[Asked]) -> Iterator[str]:
    """Check the messages, the order of runs and the texts that callers were shown.

    Each message must be one turn under its key, the runs of a session must not overlap, and no
    caller may have been shown words of another key.
    """
    said = {}
    for session in Session.objects.filter(channel="soak").order_by("pk"):
        yield from _check_session(session)
        turns = Turn.objects.filter(session=session.pk, role="user").order_by("number")
        said[session.key] = Counter(turns.values_list("content", flat=True))
    for one in asked:
        there = {key: turns[one.text] for key, turns in said.items() if turns[one.text]}
        if there != {f"soak:{one.key}": 1}:
            yield f"{one.mark} is there: {there}"
        if one.strange:
            yield f"{one.mark} was shown {one.strange}"
    if sum(sum(turns.values()) for turns in said.values()) != len(asked):
        yield "There are messages that nobody sent."


def _check_session(session: Session) -> Iterator[str]:
    verified = verify_session(session)
    if verified.problem:
        yield f"{session.key}: {verified.problem}"
    runs = list(Run.objects.filter(session=session.pk).order_by("started_at"))
    for run in runs:
        if run.started_at is None or run.finished_at is None:
            yield f"{session.key}: {run} has not ended"
            return
    for one, after in pairwise(runs):
        if after.started_at < one.finished_at:  # type: ignore[operator]
            yield f"{session.key}: {one} and {after} overlap"


def check_streams(asked: Sequence[Asked], place: Place) -> Iterator[str]:
    """Check that each stream that was read in pieces equals the stream that is read at once.

    The pieces come from several connections, before and after the kill of the server.
    """
    streamed = [one for one in asked if one.stream]
    with ThreadPoolExecutor(4) as pool:
        again = pool.map(lambda one: read_stream(place, stream_of(one.run)), streamed)
        for one, whole in zip(streamed, again, strict=True):
            if one.stream != whole:
                yield f"{one.mark}: its stream is another one now"
            is_interrupted = b'"state":"interrupted"' in whole
            if is_interrupted and b'"kind":"interrupted"' not in whole:
                yield f"{one.mark}: its stream does not say that it was interrupted"


LEAVING = "soak:leaving"
"""The key of the session whose callers leave."""

HELD = 12
"""Number of open streams, and of requests that wait for an answer."""


def check_leaving(place: Place, server: Server) -> Iterator[str]:
    """Check streams and waiting requests whose callers leave, then stop the server.

    They must hold no database file and must no longer be counted when their callers have left.
    The server must end the last stream when it stops.
    """
    path = f"/api/v1/workspaces/{place.workspace}/keys/{LEAVING}"
    session = json.loads(_ask(place, "PUT", path).read())["uuid"]
    messages = f"/api/v1/sessions/{session}/messages"
    run = json.loads(_ask(place, "POST", messages, text="[[wire: hang_after=3]]").read())
    yield from _until(f"{place.port}: its streams are not over", lambda: not _streams(place))
    most = _connections(server) + HELD  # a fixed number of threads serves all requests
    streams = [_ask(place, "GET", run["stream"]) for _ in range(HELD)]
    waiting = [
        _ask(place, "POST", f"{messages}?wait=60", text="Later", answers=False) for _ in range(HELD)
    ]
    yield from _until("they are not counted", lambda: _streams(place) == 2 * HELD)
    yield from _until(
        f"there are more than {most} connections to the database while streams are held",
        lambda: _connections(server) <= most,
    )
    for response in streams[1:] + waiting:
        response.close()
    yield from _until("those who left are still there", lambda: _streams(place) == 1)
    server.stop()
    rest = streams[0].read()
    if b"event: end" in rest or streams[0].length:
        yield f"A stream that its server ended says {rest!r}"


def _ask(
    place: Place, method: str, path: str, *, text: str = "", answers: bool = True
) -> http.client.HTTPResponse:
    """Send a request. If ``answers`` is true, wait for the beginning of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=60)
    headers = {"Authorization": f"Bearer {place.token}", "Content-Type": "application/json"}
    connection.request(
        method, path, body=json.dumps({"text": text}) if text else None, headers=headers
    )
    return connection.getresponse() if answers else connection  # type: ignore[return-value]


def _streams(place: Place) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=60)
    with closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    found = re.search(r"^loom_process_streams (\d+)", text, re.M)
    return int(found[1]) if found else -1


def _connections(server: Server) -> int:
    files = Path(f"/proc/{server.pid}/fd").iterdir()
    return sum(file.resolve().name == "loom.sqlite3" for file in files)


def _until(problem: str, condition: Callable[[], bool]) -> Iterator[str]:
    end = monotonic() + 20
    while not condition():
        if monotonic() > end:
            yield problem
            return
        sleep(0.05)
