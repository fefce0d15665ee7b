"""Showing a run as Discord messages, which are posted once and edited as the answer grows.

Messages are edited no more often than Discord allows. The ids of the messages that show a run are
stored, so that a new process can continue the replies of an earlier one. If a process dies after it
has posted a message and before it has stored the id, Discord returns that message for its nonce.
Later, when the nonce has expired, the message is searched for among the last ones of the channel.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from time import monotonic

import discord
from django.conf import settings

from conversations.archive.journal import walk_events
from conversations.archive.run_transcript import RunProgress, read_run_progress
from conversations.archive.sessions import get_session
from conversations.domain.errors import NotFound
from conversations.domain.events import Fallback, Payload, TurnSeparator, UserMessage
from conversations.domain.runs import RUNNING
from conversations.runtime.drafts import TEXT
from conversations.runtime.publish import Listener
from conversations.runtime.service import Runtime

from .models import ChannelReply
from .posting import Channel, ReplyItem, edit, is_transient, make_items, post, retry_until_done
from .service import list_posted, save_posted

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
TYPING_SECONDS = 8.0  # Discord shows its typing indicator for ten seconds.
UNWATCHED_SECONDS = 5.0  # After this time without news of a run, its process may have ended.
PAGE_ROWS = 200
MAX_SEARCHED_MESSAGES = 20  # Messages among which one with an unsaved id is searched for.
COMPARED_CHARS = 60


class RunReply:
    """The messages that show one run. ``payloads`` are the run's rows that were read so far."""

    def __init__(
        self,
        client: discord.Client,
        runtime: Runtime,
        record: ChannelReply,
        *,
        is_left_over: bool,
    ) -> None:
        self.record = record
        self._client = client
        self._runtime = runtime
        self._channel: Channel = client.get_partial_messageable(record.address)
        self._posted = record.posted_ids
        # The content of each posted message; None if it is not known.
        self._shown_items: list[ReplyItem | None] = [None] * len(self._posted)
        self._is_left_over = is_left_over
        self.payloads: list[Payload | Fallback] = []
        self._last_seq: int | None = None
        self._has_all_rows = False
        self._typed_at = self._shown_at = float("-inf")
        self._last_state: tuple[object, ...] = ()
        self._changed_at = monotonic()

    async def has_ended(self) -> bool:
        """Return whether the run is over, even if it is not completely shown."""
        progress = await self._read_progress()
        return progress is None or progress.run.is_over

    async def follow(self) -> None:
        """Show the run until it has ended and all of it is shown."""
        with self._runtime.hub.listening(Listener(self.record.session_id)) as listener:
            while True:
                listener.take_chunks()  # before reading, so that later news wakes wait() again
                if await retry_until_done(self._step):
                    return
                await listener.wait(POLL_SECONDS)
                if monotonic() - self._changed_at > UNWATCHED_SECONDS:
                    self._changed_at = monotonic()
                    queue = self._runtime.queue
                    session_pk = self.record.session_id
                    await retry_until_done(partial(queue.recover, session_pk=session_pk))
                    queue.begin(session_pk)
                # Discord limits how often messages may be edited.
                wait_seconds = self._shown_at + settings.LOOM.discord_edit_seconds - monotonic()
                if wait_seconds > 0:
                    await asyncio.sleep(wait_seconds)

    async def _read_progress(self) -> RunProgress | None:
        """Read the run's progress. Return None if the session was purged."""
        try:
            return await self._runtime.readers.read(read_run_progress, self.record.run_id)
        except NotFound:
            return None

    async def _step(self) -> bool:
        """Post and edit messages once. Return True when the whole run is shown."""
        progress = await self._read_progress()
        if progress is None:
            return True
        state = (progress.run.state, progress.run.note, progress.last_seq, len(progress.chunks))
        if state != self._last_state:
            self._last_state = state
            self._changed_at = monotonic()
        done = progress.run.is_over
        await self.read_rows(progress)
        draft: dict[int, str] = {}
        if not done:
            for _, part, kind, text in progress.chunks:
                if kind == TEXT:
                    draft[part] = draft.get(part, "") + text
        texts = [text for _, text in sorted(draft.items())]
        loom, session = settings.LOOM, self.record.session.uuid
        items = make_items(
            self.payloads,
            texts,
            done=done,
            max_messages=loom.discord_max_messages,
            page=f"{loom.site}/s/{session}/",
        )
        if self._is_left_over:
            await self._find_unsaved(items)
            self._is_left_over = False
        if progress.run.state == RUNNING and monotonic() - self._typed_at >= TYPING_SECONDS:
            self._typed_at = monotonic()
            try:
                await self._channel.typing()
            except discord.HTTPException as error:
                logger.info("discord_typing_refused", extra={"fields": {"reason": str(error)}})
        for index, item in enumerate(items):
            if index == len(self._posted):
                await self._post(index, item)
            elif self._shown_items[index] != item:
                await self._edit(index, item)
        if done:
            # The draft may have been longer than the final answer.
            for message in self._posted[len(items) :]:
                try:
                    await self._channel.get_partial_message(message).delete()
                except discord.HTTPException as error:
                    if is_transient(error):
                        raise
                    fields = {"reason": str(error)}
                    logger.info("discord_message_not_removed", extra={"fields": fields})
            del self._posted[len(items) :]
            await self._save(done=True)
        return done

    async def read_rows(self, progress: RunProgress) -> None:
        """Add the run's new rows up to ``progress.last_seq``.

        Later rows are not added, because the draft in ``progress`` still has their text."""
        if self._last_seq is None:
            if progress.run.first_seq is None:
                return  # the run has not begun
            self._last_seq = progress.run.first_seq - 1
        session = await self._runtime.readers.read(get_session, self.record.session.uuid)
        while self._last_seq < progress.last_seq and not self._has_all_rows:
            events = await self._runtime.readers.read(
                walk_events, session.pk, start=self._last_seq, limit=PAGE_ROWS
            )
            for event in events:
                if event.seq > progress.last_seq or self._has_all_rows:
                    return
                self._last_seq = event.seq
                payload = event.payload
                if isinstance(payload, TurnSeparator):
                    self._has_all_rows = payload.run == str(self.record.run.uuid)
                if not isinstance(payload, UserMessage):
                    self.payloads.append(payload)
            if not events:
                return

    async def _post(self, index: int, item: ReplyItem) -> None:
        try:
            message = await post(
                self._channel,
                item,
                nonce=f"{self.record.run.uuid.hex[:20]}-{index}",
                source=0 if index else self.record.source,
                session=self.record.session.uuid,
            )
        except discord.HTTPException as error:
            self._abandon(index, item, error)
            return
        self._shown_at = monotonic()
        is_earlier_message = message.content.strip() != item.text.strip()
        self._posted.append(message.id)
        self._shown_items.append(None if is_earlier_message else item)
        await self._save(done=False)
        if is_earlier_message:
            await self._edit(index, item)

    async def _edit(self, index: int, item: ReplyItem) -> None:
        if self._posted[index]:
            try:
                session = self.record.session.uuid
                await edit(self._channel, self._posted[index], item, session=session)
            except discord.HTTPException as error:
                self._abandon(index, item, error)
                return
            self._shown_at = monotonic()
        self._shown_items[index] = item

    def _abandon(self, index: int, item: ReplyItem, error: discord.HTTPException) -> None:
        # Discord refuses the message because it was deleted or the bot may no longer write there.
        # The archive has the answer.
        if is_transient(error):
            raise error
        fields = {
            "run": str(self.record.run.uuid),
            "status": error.status,
            "reason": error.text[:200],
        }
        logger.warning("discord_message_refused", extra={"fields": fields})
        if index == len(self._posted):
            self._posted.append(0)
            self._shown_items.append(item)
        elif error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            self._posted[index] = 0  # later edits would be refused too
        self._shown_items[index] = item

    async def _save(self, *, done: bool) -> None:
        await self._runtime.writer.write(
            save_posted, self.record.pk, posted=self._posted, done=done
        )

    async def _find_unsaved(self, items: Sequence[ReplyItem]) -> None:
        """Find messages of this run whose ids were not stored because a process died.

        They are newer than the known messages and begin like the missing items."""
        newest_known = max([*self._posted, self.record.source])
        history = self._channel.history(
            limit=MAX_SEARCHED_MESSAGES, after=discord.Object(newest_known), oldest_first=True
        )
        try:
            own_messages = [m async for m in history if m.author == self._client.user]
        except discord.HTTPException as error:
            if is_transient(error):
                raise
            return
        posted_elsewhere = await self._runtime.readers.read(
            list_posted, self.record.address, but=self.record.pk
        )
        for message in own_messages:
            if message.id in posted_elsewhere or len(self._posted) >= len(items):
                continue
            # The message can show an earlier state of the item. Both begin alike, except for the
            # closing fence of a code block at the end of the earlier state.
            content = message.content.strip().rstrip("`~").rstrip()[:COMPARED_CHARS]
            if content and items[len(self._posted)].text.strip().startswith(content):
                self._posted.append(message.id)
                self._shown_items.append(None)


class ReplyTasks:
    """The replies that this process shows.

    Replies in one channel are shown one after the other, because a message cannot be moved after
    it was posted."""

    def __init__(self, client: discord.Client, runtime: Runtime) -> None:
        self._client = client
        self._runtime = runtime
        self._open: dict[int, tuple[RunReply, asyncio.Task[None]]] = {}

    def follow(self, record: ChannelReply, *, is_left_over: bool) -> None:
        """Show a run in its place. ``is_left_over``: another process may have begun to show it."""
        if record.done_at is not None or record.pk in self._open:
            return
        reply = RunReply(self._client, self._runtime, record, is_left_over=is_left_over)
        earlier = [
            task for other, task in self._open.values() if other.record.address == record.address
        ]
        task = asyncio.create_task(self._follow(reply, earlier))
        self._open[record.pk] = (reply, task)

    async def _follow(self, reply: RunReply, earlier: Sequence[asyncio.Task[None]]) -> None:
        try:
            if earlier:
                await asyncio.wait(earlier)
            await reply.follow()
        except Exception:
            fields = {"run": str(reply.record.run.uuid)}
            logger.exception("discord_reply_failed", extra={"fields": fields})
        finally:
            del self._open[reply.record.pk]

    @property
    def are_open(self) -> bool:
        return bool(self._open)

    async def end(self, *, seconds: float) -> None:
        """Finish showing the runs that are over, for at most ``seconds``.

        All other replies are left to the next process."""
        followed = list(self._open.values())
        ending = [task for reply, task in followed if await reply.has_ended()]
        if ending:
            await asyncio.wait(ending, timeout=seconds)
        tasks = [task for _, task in self._open.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
