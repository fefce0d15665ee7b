"""Checks of the archive after the server was killed and restarted.

Each check yields the problems that it found, as sentences.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from benchmarks.wire import SentAnswer, SentPiece
from conversations.archive.sessions import get_session
from conversations.archive.verify import verify_session
from conversations.domain.runs import ACTIVE_STATES, INTERRUPTED, QUEUED
from conversations.models import ChatEvent, Run, Turn
from conversations.rendering.messages import fill_marks
from tests.crash.stories import Person


@dataclass(frozen=True, slots=True)
class Loss:
    """The text that one unfinished answer lost: its seconds before the kill, and its length."""

    seconds: float
    characters: int


def check_messages(person: Person, *, all_of_them: bool) -> Iterator[str]:
    """Check that acknowledged (or all) messages exist exactly once, as a turn or queued."""
    texts = list(
        Turn.objects.filter(session__uuid=person.session, role="user")
        .order_by("number")
        .values_list("content", flat=True)
    )
    waiting = Run.objects.filter(session__uuid=person.session, state=QUEUED, user_turn=None)
    waiting_ids = set(waiting.values_list("client_id", flat=True))
    for said in person.said if all_of_them else person.acknowledged:
        count = texts.count(said.text) + (said.client_id in waiting_ids)
        if count != 1:
            yield f"message {said.mark} is there {count} times"


def check_rows(person: Person) -> Iterator[str]:
    """Check that every row that was shown as done is stored as it was shown."""
    events = ChatEvent.objects.filter(session__uuid=person.session).order_by("seq")
    stored = dict(events.values_list("seq", "html"))
    for seq, html in sorted(person.rows.items()):
        if fill_marks(stored.get(seq, "")) != html:
            yield f"row {seq} of {person.name} is not what the page was shown"


def measure_losses(
    person: Person,
    answers: Sequence[SentAnswer],
    *,
    killed_at: int,
    read_answers: Callable[[], Sequence[SentAnswer]],
) -> Iterator[Loss | str]:
    """Compare the provider's answers with the archive's, right after the restart.

    ``answers`` holds the answers at the kill. ``read_answers`` returns the answers until now,
    because a queued message may have been answered since the restart.
    """
    for said in person.acknowledged:
        sent = [piece for piece in _pieces(answers, said.mark) if piece.at <= killed_at]
        kept = _text_after(person.session, said.text)
        known = sent or (_pieces(read_answers(), said.mark) if kept else [])
        if not "".join(piece.text for piece in known).startswith(kept):
            # The provider may have sent the last pieces at the moment of the kill.
            yield f"the answer to {said.mark} is not what was sent: {kept[-80:]!r}"
            continue
        length = 0
        missing = [p for p in sent if (length := length + len(p.text)) > len(kept)]
        if missing:
            seconds = (killed_at - missing[0].at) / 1e9
            yield Loss(seconds, length - len(kept))


def _pieces(answers: Sequence[SentAnswer], mark: str) -> list[SentPiece]:
    return [piece for answer in answers if answer.mark == mark for piece in answer.pieces()]


def _text_after(session: UUID, text: str) -> str:
    """Return the text of the assistant's turns between a message and the next one."""
    turns = Turn.objects.filter(session__uuid=session).order_by("number")
    asked = turns.filter(role="user", content=text).values_list("number", flat=True).first()
    if asked is None:
        return ""
    later = turns.filter(number__gt=asked)
    end = later.filter(role="user").values_list("number", flat=True).first()
    answer = later.filter(role="assistant", number__lt=end or 10**9)
    return "".join(answer.values_list("content", flat=True))


def count_interrupted(session: UUID) -> int:
    return Run.objects.filter(session__uuid=session, state=INTERRUPTED).count()


def check_page(person: Person, html: str, *, interrupted: int) -> Iterator[str]:
    """Check that the first page after the restart has a row for each interrupted run.

    Each of these rows must have a button that continues the run.
    """
    shown = html.count('data-kind="interrupted"')
    offered = html.count('data-action="continue"')
    if shown != interrupted or offered < interrupted:
        yield (
            f"the first page of {person.name} shows {shown} interrupted rows and {offered}"
            f" buttons; the archive has {interrupted}"
        )


def check_ended(person: Person) -> Iterator[str]:
    """Check that no run is active or queued in the end, and that the archive is valid."""
    unfinished = Run.objects.filter(
        session__uuid=person.session, state__in=(*ACTIVE_STATES, QUEUED)
    )
    for state in unfinished.values_list("state", flat=True):
        yield f"a run of {person.name} stays {state}"
    verified = verify_session(get_session(person.session))
    if verified.problem:
        yield f"the archive of {person.name}: {verified.problem}"
