"""Publishing the changes of a session to its pages, in every process.

Frames go to the sockets of this process at once. If ``REDIS_URL`` is set, they also go to those of
the other processes through Redis.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

from channels.layers import channel_layers

from conversations.archive.append import Row
from conversations.archive.messages import queued_messages
from conversations.archive.model_calls import WindowMark, read_window_mark, window_mark_of
from conversations.archive.rewinds import RewindResult
from conversations.archive.runs import ActiveRun, active_runs
from conversations.archive.sessions import get_session
from conversations.archive.transcript import live_seq_of, read_live_rows, render_rewound_marker
from conversations.archive.transcript_plan import rewound_ranges
from conversations.archive.turns import MAX_PAGE_ROWS
from conversations.domain.keyset import TranscriptCursor
from conversations.domain.messages import Message, message_data
from conversations.domain.runs import IDLE, RUNNING
from conversations.domain.text import dump_json
from conversations.models import DraftChunk, Session
from conversations.rendering.rows import render_meter, render_queue, render_window_line

from .database import Readers
from .presence import PRESENCE, Presence

# The frames that pages get, as plain dicts; ``docs/protocol.md`` describes them.
type Frame = dict[str, Any]

RETRYING = "retrying"
EVERY_DRAFT = "*"  # In ``ends_draft``: any draft that the page shows


def rows_frame(rows: Iterable[Row], *, ends_draft: str = "") -> Frame:
    frame: Frame = {
        "type": "rows",
        "rows": [
            {"seq": r.seq, "event_type": r.event_type, "turn": r.turn, "html": r.html}
            | ({"client_id": r.client_id} if r.client_id else {})
            for r in rows
        ],
    }
    return frame | {"ends_draft": ends_draft} if ends_draft else frame


def state_frame(*, run_state: str, run: str, note: str, elapsed_ms: int, doing: str = "") -> Frame:
    """Return a frame with the state of a run.

    ``note`` says what the run waits for, ``doing`` what it does instead of writing. If that text is
    a message, its parts are sent as well, for clients that translate it.
    """
    text = note or doing
    frame = {
        "type": "state",
        "run_state": RETRYING if note and run_state == RUNNING else run_state,
        "run": run,
        "text": text,
        "elapsed_ms": elapsed_ms,
    }
    return frame | {"said": message_data(text)} if isinstance(text, Message) else frame


def active_frame(run: ActiveRun | None) -> Frame:
    """Return the state frame of the active run, or an idle one if ``run`` is None."""
    if run is None:
        return state_frame(run_state=IDLE, run="", note="", elapsed_ms=0)
    return state_frame(
        run_state=run.state, run=str(run.run), note=run.note, elapsed_ms=run.elapsed_ms
    )


def name_frames(*, title: str, model: str) -> list[Frame]:
    """Return frames with the title and the model of a session, as far as it has them."""
    frames: list[Frame] = [{"type": "title", "title": title}] if title else []
    return [*frames, {"type": "model", "model": model}] if model else frames


def queue_frame(waiting: Sequence[dict[str, Any]]) -> Frame:
    return {"type": "queue", "items": waiting, "html": render_queue(waiting)}


def window_frame(mark: WindowMark) -> Frame:
    """Return a frame with the start and the size of the window, and their HTML."""
    return {
        "type": "window",
        "key": mark.key,
        "floor": mark.floor,
        "left_out": mark.left_out,
        "tokens": mark.tokens,
        "limit": mark.limit,
        "line": render_window_line(mark.session, left_out=mark.left_out),
        "meter": render_meter(
            mark.session, tokens=mark.tokens, limit=mark.limit, cost_microusd=mark.cost_microusd
        ),
    }


class CatchUp(NamedTuple):
    """The frames that bring a page up to ``last_seq``, without the active run and its draft.

    ``model`` is the session's ``chosen_model``. ``reload`` says why the page has to be loaded again
    instead; it is empty if the page need not.
    """

    session_pk: int
    last_seq: int
    rewinds: int
    title: str
    model: str
    run: ActiveRun | None
    reload: str
    frames: list[Frame]


def read_catch_up(uuid: UUID, *, cursor: TranscriptCursor | None, rewinds: int | None) -> CatchUp:
    """Return the changes that a page has missed.

    If ``cursor`` is None, the page wants no missed rows but only new ones. ``rewinds`` is the
    number of rewinds when the page was rendered, or None if the page has reported it before.
    """
    session = get_session(uuid)
    last_seq, frames = session.last_seq, []
    after = last_seq if cursor is None else live_seq_of(session, cursor)
    reload = "too_far_behind" if last_seq - after > MAX_PAGE_ROWS else ""
    if rewinds is not None and rewinds != session.rewind_count:
        reload = "rewound"
    if reload:
        frames.append({"type": "reload", "reason": reload})
    else:
        if rows := read_live_rows(session.pk, after_seq=after, limit=MAX_PAGE_ROWS):
            # The draft on the page may have become one of these rows. The current draft is sent
            # again.
            frames.append(rows_frame(rows, ends_draft=EVERY_DRAFT) | {"after": after})
            last_seq = rows[-1].seq
        frames += [queue_frame(queued_messages(session.pk)), window_frame(window_mark_of(session))]
    running = active_runs(stale_seconds=60, session_pks=[session.pk])
    run = running[0] if running else None
    return CatchUp(
        session_pk=session.pk,
        last_seq=last_seq,
        rewinds=session.rewind_count,
        title=session.title,
        model=session.chosen_model,
        run=run,
        reload=reload,
        frames=frames,
    )


# Fan-out within this process: from a session's run to the sockets that follow it.
@dataclass(slots=True, eq=False)
class Subscriber:
    """A page that follows a session.

    ``deliver`` accepts a frame as JSON text. ``reached`` is the seq of the last row that the page
    got.
    """

    session_pk: int
    deliver: Callable[[str], None]
    reached: int = 0
    held: bool = True
    backlog: list[Frame] = field(default_factory=list)

    def release(self) -> None:
        """Deliver the frames that came while the subscriber was catching up, and go live."""
        self.held = False
        backlog, self.backlog = self.backlog, []
        for frame in backlog:
            self.offer(frame, None)

    def offer(self, frame: Frame, text: str | None) -> None:
        if self.held:
            if frame["type"] != "draft":
                self.backlog.append(frame)
            return
        if frame["type"] == "rows":
            new_rows = [row for row in frame["rows"] if row["seq"] > self.reached]
            if not new_rows and "ends_draft" not in frame:
                return
            if len(new_rows) != len(frame["rows"]):
                frame, text = frame | {"rows": new_rows}, None
            if new_rows:
                self.reached = new_rows[-1]["seq"]
        self.deliver(text or dump_json(frame))


# Limit on chunks of a draft that wait for a listener. A slower listener reads them from disk.
MAX_CHUNKS = 200


@dataclass(slots=True, eq=False)
class Listener:
    """A stream or a request that reads new output of a session from disk.

    ``has_news`` says that there may be new output to read. With ``of_drafts``, chunks of a draft
    that are on disk are also delivered in ``chunks``, so that they need not be read. ``is_closed``
    means that the process ends.
    """

    session_pk: int
    of_drafts: bool = True
    has_news: bool = True
    chunks: list[DraftChunk] = field(default_factory=list)
    is_closed: bool = False
    _notified: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        self.has_news = True
        self._notified.set()

    def deliver(self, chunks: Iterable[DraftChunk]) -> None:
        self.chunks += chunks
        self._notified.set()
        if len(self.chunks) > MAX_CHUNKS:
            self.chunks = []
            self.has_news = True

    def take_chunks(self) -> list[DraftChunk] | None:
        """Return the chunks since the last call, or None if the listener has to read from disk."""
        chunks, self.chunks = self.chunks, []
        has_news, self.has_news = self.has_news, False
        self._notified.clear()
        return None if has_news else chunks

    async def wait(self, seconds: float) -> None:
        """Wait until there is something to take.

        After ``seconds`` without news, the listener has to read, as there may be something.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._notified.wait()
        except TimeoutError:
            self.has_news = True


# Types of frames whose data is not on disk, or not yet.
LIVE_FRAMES = frozenset({"draft", "call", "people"})


class Hub:
    """All ``subscribers`` and ``listeners`` of this process, by session.

    A session without subscribers or listeners has no entry. ``queues`` holds the waiting messages
    that were last sent to subscribers.
    """

    def __init__(self) -> None:
        self.subscribers: dict[int, set[Subscriber]] = {}
        self.listeners: dict[int, set[Listener]] = {}
        self.queues: dict[int, list[dict[str, Any]]] = {}
        self._is_closed = False

    def add(self, subscriber: Subscriber) -> None:
        self.subscribers.setdefault(subscriber.session_pk, set()).add(subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        _discard(self.subscribers, subscriber.session_pk, subscriber)

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[Listener]:
        self.listeners.setdefault(listener.session_pk, set()).add(listener)
        listener.is_closed = self._is_closed
        try:
            yield listener
        finally:
            _discard(self.listeners, listener.session_pk, listener)

    def notify(self, session_pk: int) -> None:
        for listener in self.listeners.get(session_pk, ()):
            listener.notify()

    def deliver_chunks(self, session_pk: int, chunks: Sequence[DraftChunk]) -> None:
        for listener in self.listeners.get(session_pk, ()):
            if listener.of_drafts:
                listener.deliver(chunks)

    def close_listeners(self) -> None:
        """End all waiting listeners, because the process ends."""
        self._is_closed = True
        for listeners in self.listeners.values():
            for listener in listeners:
                listener.is_closed = True
                listener.notify()

    @property
    def listener_count(self) -> int:
        return sum(len(listeners) for listeners in self.listeners.values())

    @property
    def subscriber_count(self) -> int:
        return sum(len(watchers) for watchers in self.subscribers.values())

    def lowest_reached(self, session_pk: int) -> int:
        """Return the seq up to which all released subscribers of the session have its rows."""
        subscribers = self.subscribers.get(session_pk, ())
        return min((s.reached for s in subscribers if not s.held), default=0)

    def publish(self, session_pk: int, frame: Frame) -> None:
        if frame["type"] not in LIVE_FRAMES:
            self.notify(session_pk)
        if watchers := self.subscribers.get(session_pk):
            if frame["type"] == "queue":
                self.queues[session_pk] = frame["items"]
            text = dump_json(frame)
            for subscriber in tuple(watchers):
                subscriber.offer(frame, text)


def _discard[T](groups: dict[int, set[T]], session_pk: int, member: T) -> None:
    members = groups.get(session_pk, set())
    members.discard(member)
    if not members:
        groups.pop(session_pk, None)


# Type of the frames between processes that ask for the current draft, which a new page lacks.
SNAPSHOT_WANTED = "snapshot_wanted"

# How often a process sends a message to itself, and after how long without any message Redis counts
# as disconnected.
ECHO_SECONDS, LOST_SECONDS = 1.0, 3.0

MAX_OUTGOING_FRAMES = 1_000
MAX_MISSED_ROWS = 500


class Publisher:
    def __init__(self, hub: Hub, relay: "Relay", readers: Readers) -> None:
        self.hub = hub
        self.relay = relay
        self._readers = readers

    def is_watched(self, session_pk: int) -> bool:
        return self.relay.is_used or session_pk in self.hub.subscribers

    def publish(self, session_pk: int, frame: Frame) -> None:
        self.hub.publish(session_pk, frame)
        self.relay.send(session_pk, frame)

    def publish_rows(self, session_pk: int, rows: Sequence[Row], *, title: str = "") -> None:
        if rows:
            self.publish(session_pk, rows_frame(rows))
        if title:
            self.publish(session_pk, {"type": "title", "title": title})

    async def publish_missed_rows(self, session_pk: int) -> None:
        """Publish rows that another process has written in a session whose run is executed here."""
        if session_pk in self.hub.subscribers:
            reached = self.hub.lowest_reached(session_pk)
            rows = await self._readers.read(
                read_live_rows, session_pk, after_seq=reached, limit=MAX_MISSED_ROWS
            )
            if rows:
                self.hub.publish(session_pk, rows_frame(rows))

    async def publish_queue(self, session_pk: int) -> None:
        waiting = await self._readers.read(queued_messages, session_pk)
        self.publish(session_pk, queue_frame(waiting))

    async def publish_window(self, session_pk: int, mark: WindowMark | None = None) -> None:
        if self.is_watched(session_pk):
            if mark is None:
                mark = await self._readers.read(read_window_mark, session_pk)
            self.publish(session_pk, window_frame(mark))

    async def publish_rewound(self, session: Session, rewound: RewindResult) -> None:
        """Publish to open pages which rows have left the active path."""
        if rewound.has_synthesised or rewound.has_returned:
            self.publish(session.pk, {"type": "reload", "reason": "rewound"})
        elif rewound.from_seq <= rewound.to_seq:

            def make_frame() -> Frame:
                current = get_session(session.uuid)
                ranges = rewound_ranges(current, source="seq")
                [whole] = [r for r in ranges if r.low <= rewound.from_seq <= r.high]
                return {
                    "type": "rewound",
                    "from_seq": whole.low,
                    "to_seq": whole.high,
                    "html": render_rewound_marker(current, whole),
                }

            self.publish(session.pk, await self._readers.read(make_frame))


class Relay:
    """The exchange of frames between processes.

    ``publish_snapshots`` is called if a page in another process lacks the draft of an answer.
    """

    presence: Presence

    def __init__(
        self, hub: Hub, *, url: str, owner: str, publish_snapshots: Callable[[int], None]
    ) -> None:
        self.is_used = bool(url)
        self.joined: set[int] = set()
        self._hub = hub
        self._owner = owner
        self._publish_snapshots = publish_snapshots
        self._layer: Any = channel_layers.make_backend("relay") if url else None
        self._channel = ""
        self._heard_at = -LOST_SECONDS  # when the last message came
        self._outgoing: asyncio.Queue[tuple[int, Frame]] = asyncio.Queue(MAX_OUTGOING_FRAMES)

    @property
    def is_connected(self) -> bool:
        return monotonic() - self._heard_at < LOST_SECONDS

    def send(self, session_pk: int, frame: Frame) -> None:
        """Send a frame to the other processes without waiting for it.

        If too many frames wait, the oldest is dropped. Pages that lack it ask for it.
        """
        if self.is_used:
            if self._outgoing.full():
                self._outgoing.get_nowait()
            self._outgoing.put_nowait((session_pk, frame))

    def ask_for_snapshots(self, session_pk: int) -> None:
        self.send(session_pk, {"type": SNAPSHOT_WANTED})

    async def listen(self) -> None:
        """Deliver the frames of other processes, until the task is cancelled."""
        self.joined.clear()
        self._heard_at = -LOST_SECONDS
        await self._layer.flush()  # the layer would keep each abandoned channel
        self._channel = await self._layer.new_channel("loom.")
        while not self._outgoing.empty():
            self._outgoing.get_nowait()  # pages have got it from the database meanwhile
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._echo_forever())
            tasks.create_task(self._send_forever())
            tasks.create_task(self._join_forever())
            tasks.create_task(self._receive_forever())

    async def close(self) -> None:
        if self.is_used:
            await self._layer.flush()

    async def _echo_forever(self) -> None:
        while True:
            await self._layer.send(self._channel, {"from": self._owner})
            await asyncio.sleep(ECHO_SECONDS)

    async def _send_forever(self) -> None:
        while True:
            session_pk, frame = await self._outgoing.get()
            message = {"type": "loom.frame", "from": self._owner, "s": session_pk}
            await self._layer.group_send(_group(session_pk), message | {"frame": frame})

    async def _join_forever(self) -> None:
        while True:
            watched = self._hub.subscribers.keys() | self._hub.listeners.keys()
            for session_pk in watched - self.joined:
                await self._layer.group_add(_group(session_pk), self._channel)
                self.presence.ask_others(session_pk)
            for session_pk in self.joined - watched:
                await self._layer.group_discard(_group(session_pk), self._channel)
            self.joined = watched
            await asyncio.sleep(0.1)

    async def _receive_forever(self) -> None:
        while True:
            message = await self._layer.receive(self._channel)
            self._heard_at = monotonic()
            if message["from"] == self._owner:
                continue
            if message["frame"]["type"] == SNAPSHOT_WANTED:
                self._publish_snapshots(message["s"])
            elif message["frame"]["type"] == PRESENCE:
                self.presence.receive(message["s"], message["from"], message["frame"])
            else:
                self._hub.publish(message["s"], message["frame"])


def _group(session_pk: int) -> str:
    return f"loom.session.{session_pk}"
