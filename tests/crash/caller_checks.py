"""What must hold when programs have called and the server was killed meanwhile. Each check
gives the problems that it found, as sentences."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from conversations.archive.verify import verify_session
from conversations.models import Run, Session, Turn
from tests.crash.callers import Asked, Place, read_stream, stream_of


def check_archive(asked: Sequence[Asked]) -> Iterator[str]:
    """Each message is one turn, under its key; runs follow one another; nobody was shown
    words of another key."""
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
    """What was read in pieces, over the ends of connections and of the server, is what is
    read there at once."""
    streamed = [one for one in asked if one.stream]
    with ThreadPoolExecutor(4) as pool:
        again = pool.map(lambda one: read_stream(place, stream_of(one.run)), streamed)
        for one, whole in zip(streamed, again, strict=True):
            if one.stream != whole:
                yield f"{one.mark}: its stream is another one now"
            is_interrupted = b'"state":"interrupted"' in whole
            if is_interrupted and b'"kind":"interrupted"' not in whole:
                yield f"{one.mark}: its stream does not say that it was interrupted"
