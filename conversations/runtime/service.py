"""The runtime: one for each process, on its event loop.

Entry points call its methods and do not depend on how runs are executed.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from conversations.agent.mcp.servers import ToolServers
from conversations.agent.undo.records import ChangeScope
from conversations.agent.undo.revert import RevertResult, complete_reverts, revert_files
from conversations.agent.undo.trees import complete_all
from conversations.archive import branches
from conversations.archive import context as archive_compactions
from conversations.archive import messages as archive_messages
from conversations.archive import runs as archive_runs
from conversations.archive import tool_calls as archive_calls
from conversations.archive.context import CompactionRequest
from conversations.archive.messages import AcceptedMessage
from conversations.archive.rewinds import RewindResult
from conversations.archive.session_state import edit_state
from conversations.domain.keyset import TranscriptCursor
from conversations.domain.runs import NO_CHOICES, RunChoices
from conversations.domain.tool_calls import ALWAYS
from conversations.domain.windows import MANUAL
from conversations.feature import features
from conversations.models import Session
from conversations.search import meaning

from .access_refresh import SOCKETS, STREAMS, AccessRefresher, ConnectionLimiter
from .cleanup import forget_forever
from .database import Database
from .drafts import DraftWorker
from .execution import FrameThrottle, RunContext
from .model_routing import ModelRouter
from .options import RuntimeOptions
from .ownership import REVERTS_LOCK, Owner, share_lock, try_lock
from .presence import Presence
from .program_tools import ProgramTools
from .publish import (
    CatchUp,
    Frame,
    Hub,
    Publisher,
    Relay,
    active_frame,
    name_frames,
    read_catch_up,
)
from .queue import RunQueue
from .watch import EmbeddingWorker, IndexWorker, Watcher

logger = logging.getLogger(__name__)


class Runtime:
    """The services of a process, to be started on the serving loop and stopped before it ends."""

    def __init__(self, options: RuntimeOptions) -> None:
        self.options = options
        self.owner = Owner(options.data_dir / "run")
        self.database = Database(wait_seconds=options.database_wait)
        self.writer, self.readers = self.database.writer, self.database.readers
        self.hub = Hub()
        self.relay = Relay(
            self.hub,
            url=options.redis_url,
            owner=self.owner.id,
            publish_snapshots=lambda session_pk: self.queue.publish_snapshots(session_pk),
        )
        self.presence = self.relay.presence = Presence(self.hub.publish, self.relay)
        self.publisher = Publisher(self.hub, self.relay, self.readers)
        self.models = ModelRouter(options, self.database)
        self.tool_servers = ToolServers(
            options.mcp,
            options.mcp_timing,
            read=self.database.readers.read,
            write=self.database.writer.write,
        )
        self.program_tools = ProgramTools()
        self.drafts = DraftWorker(
            self.writer,
            interval=options.draft_interval,
            on_saved=lambda chunks: self.queue.deliver_chunks(chunks),
            on_wait=lambda run_pk, change: self.queue.count_waiting(run_pk, change),
        )
        context = RunContext(
            options=options,
            database=self.database,
            models=self.models,
            publisher=self.publisher,
            drafts=self.drafts,
            tool_servers=self.tool_servers,
            program_tools=self.program_tools,
            throttle=FrameThrottle(shortest=options.delta_interval),
        )
        self.queue = RunQueue(context, self.owner, on_interrupted=self._complete_changes_soon)
        self.watcher = Watcher(options, self.readers, self.hub, self.relay, self.queue, self.models)
        self.access_refresher = AccessRefresher(self.readers)
        self.limiter = ConnectionLimiter(
            limits={SOCKETS: options.max_sockets, STREAMS: options.max_streams}
        )
        self.loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._accepting: set[asyncio.Task[AcceptedMessage]] = set()
        self._is_stopped = False
        self._completing_changes = asyncio.Lock()
        self._reverts_lock = options.data_dir / "run" / REVERTS_LOCK

    async def start(self) -> None:
        """Recover the runs of dead processes, then start the background loops."""
        self.loop = asyncio.get_running_loop()
        if self.options.supervise:
            await self.queue.recover()
            self.owner.remove_leftovers()
            self._complete_changes_soon()
            await self.tool_servers.start()
        loops: list[Callable[[], Coroutine[None, None, None]]] = [
            self.drafts.run,
            self.queue.run_heartbeat,
            self.watcher.run,
            self.access_refresher.run,
        ]
        if self.relay.is_used:
            loops += [self.relay.listen, self.presence.run_heartbeat]
        if self.options.supervise:
            loops += [IndexWorker(self.database).run, forget_forever]
            if meaning.is_used():
                worker = EmbeddingWorker(self.database, is_busy=lambda: self.queue.busy_count > 0)
                loops.append(worker.run)
            for feature in features():
                loops.extend(feature.workers(self))
        self._tasks = [asyncio.create_task(self.database.run_forever(loop)) for loop in loops]
        if self.options.supervise:
            self.database.run_in_background(self.models.warm_up())
            await self.queue.begin_waiting()

    async def end_runs(self, *, by_person: bool = False) -> None:
        """Stop the running answers, keep their text, and begin no further runs.

        Reading and writing still work. ``by_person`` means that the person who asked for the
        answers ends the process, so that they need no notice about it.
        """
        self.database.is_stopping = True
        self.hub.close_listeners()
        if self._accepting:  # runs that they claim are given back
            await asyncio.wait(self._accepting)
        await self.queue.end_runs(by_person=by_person)

    async def stop(self, *, by_person: bool = False) -> None:
        if self._is_stopped:
            return
        self._is_stopped = True
        await self.end_runs(by_person=by_person)
        tasks = (*self._tasks, *self.database.background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.tool_servers.stop()
        await self.models.close()
        await self.relay.close()
        await self.database.close()
        self.owner.close()

    async def catch_up(
        self, uuid: UUID, *, cursor: TranscriptCursor | None, rewinds: int | None, hello: bool
    ) -> tuple[list[Frame], int]:
        """Return the frames that bring a page up to date, and the seq of the last row among them.

        The frames include the draft. See :func:`~.publish.read_catch_up`.
        """
        missed: CatchUp = await self.readers.read(
            read_catch_up, uuid, cursor=cursor, rewinds=rewinds
        )
        for frame in missed.frames:
            if frame["type"] == "queue":
                self.hub.queues.setdefault(missed.session_pk, frame["items"])
        execution = self.queue.execution_of(missed.session_pk)
        if execution is not None:
            state, drafts = execution.state_frame(), execution.snapshots()
        else:
            state = active_frame(missed.run)
            drafts = self.watcher.snapshots(missed.session_pk)
            if missed.run is not None and not missed.reload:
                self.watcher.record_shown_run(missed.session_pk, missed.run)
                self.relay.ask_for_snapshots(missed.session_pk)
        frames = missed.frames if missed.reload else [*missed.frames, state, *drafts]
        if hello:
            hello_frame = {
                "type": "hello",
                "session": str(uuid),
                "last_seq": missed.last_seq,
                "rewinds": missed.rewinds,
                "run": state["run"],
            }
            model = self.models.model_for(missed.model)
            names = name_frames(title=missed.title, model=model)
            self.watcher.record_shown_names(missed.session_pk, names)
            frames = [hello_frame, *names, *frames]
        return frames, missed.last_seq

    # Messages and runs

    async def send(
        self,
        session: Session,
        *,
        client_id: str,
        text: str,
        user_pk: int | None,
        attachments: Sequence[str] = (),
        choices: RunChoices = NO_CHOICES,
        goes_first: bool = False,
    ) -> AcceptedMessage:
        """Accept a person's message and start answering it, even if the caller is cancelled.

        See ``archive.messages.accept_message``. Return when the message is on disk.
        """

        async def accept() -> AcceptedMessage:
            accepted = await self.writer.write(
                archive_messages.accept_message,
                session,
                client_id=client_id,
                text=text,
                user_pk=user_pk,
                max_queued=self.options.max_queued,
                # If this process is stopping, the message waits for another one.
                owner="" if self.database.is_stopping else self.owner.id,
                attachments=attachments,
                choices=choices,
                goes_first=goes_first,
            )
            self.publisher.publish_rows(session.pk, accepted.rows, title=accepted.title)
            self.queue.stop_unasked_summary(session.pk)
            self.queue.begin(session.pk, accepted.claimed)
            return accepted

        # A run that was claimed for this process is executed even if the caller is cancelled.
        accepting = asyncio.create_task(accept())
        self._accepting.add(accepting)
        accepting.add_done_callback(self._accepting.discard)
        accepted = await asyncio.shield(accepting)
        if accepted.is_new and accepted.turn is None:
            await self.publisher.publish_queue(session.pk)
        return accepted

    async def edit(
        self, session: Session, *, client_id: str, turn: int, text: str, user_pk: int | None
    ) -> AcceptedMessage:
        accepted = await self.writer.write(
            archive_messages.edit_message,
            session,
            client_id=client_id,
            turn=turn,
            text=text,
            user_pk=user_pk,
        )
        return await self._restart(session, accepted)

    async def regenerate(
        self,
        session: Session,
        *,
        client_id: str,
        turn: int | None,
        user_pk: int | None,
        choices: RunChoices | None = None,
    ) -> AcceptedMessage:
        accepted = await self.writer.write(
            archive_messages.regenerate,
            session,
            client_id=client_id,
            turn=turn,
            user_pk=user_pk,
            choices=choices,
        )
        return await self._restart(session, accepted)

    async def _restart(self, session: Session, accepted: AcceptedMessage) -> AcceptedMessage:
        await self._publish_rewound(session, accepted.rewound)
        self.publisher.publish_rows(session.pk, accepted.rows)
        self.queue.begin(session.pk)
        return accepted

    async def _publish_rewound(self, session: Session, rewound: RewindResult) -> RewindResult:
        self.watcher.record_rewinds(session.pk, rewound.count)
        await self.publisher.publish_rewound(session, rewound)
        return rewound

    async def continue_run(
        self,
        session: Session,
        *,
        client_id: str,
        user_pk: int | None,
        choices: RunChoices | None = None,
    ) -> AcceptedMessage:
        accepted = await self.writer.write(
            archive_messages.continue_run,
            session,
            client_id=client_id,
            user_pk=user_pk,
            choices=choices,
        )
        self.queue.begin(session.pk)
        return accepted

    async def rewind(
        self, session: Session, *, from_turn: int, user_pk: int | None
    ) -> RewindResult:
        rewound = await self.writer.write(
            archive_messages.rewind_session, session, from_turn=from_turn, actor_pk=user_pk
        )
        return await self._publish_rewound(session, rewound)

    async def use_branch(self, session: Session, *, turn: int, user_pk: int | None) -> RewindResult:
        rewound = await self.writer.write(branches.use_branch, session, turn=turn, actor_pk=user_pk)
        return await self._publish_rewound(session, rewound)

    async def reset(
        self, session: Session, *, keeps_instructions: bool, user_pk: int | None
    ) -> RewindResult:
        rewound = await self.writer.write(
            archive_messages.reset_session,
            session,
            keeps_instructions=keeps_instructions,
            actor_pk=user_pk,
        )
        return await self._publish_rewound(session, rewound)

    async def withdraw(self, session: Session, *, run: UUID, user_pk: int) -> None:
        client_id, rows = await self.writer.write(
            archive_messages.withdraw_message, session, run=run, user_pk=user_pk
        )
        self.program_tools.forget(session.pk, client_id)
        # Rows go first, because the author's page takes the withdrawn message from the queue that
        # it still shows.
        self.publisher.publish_rows(session.pk, rows)
        await self.publisher.publish_queue(session.pk)

    async def put_first(self, session: Session, *, run: UUID, stops: bool) -> None:
        """Insert a queued message at the next tool call. With ``stops``, end the running answer."""
        active = await self.writer.write(archive_messages.put_first, session, run=run)
        await self.publisher.publish_queue(session.pk)
        if stops and active is not None:
            await self.queue.stop_run(session.pk, only=active)

    async def stop_run(self, session: Session, *, only: UUID | None = None) -> None:
        await self.queue.stop_run(session.pk, only=only)

    async def wait_idle(self, session_pk: int) -> None:
        await self.queue.wait_idle(session_pk)

    async def choose_for_run(self, session_pk: int, run_pk: int, choices: RunChoices) -> None:
        """Set a program's choices for further answers of a run that waits for it here."""
        await self.writer.write(archive_runs.choose_for_run, run_pk, choices=choices)
        self.queue.choose_for_run(session_pk, run_pk, choices)

    # Tool calls

    async def decide_call(
        self, session: Session, *, call: UUID, decision: str, user_pk: int | None, reason: str = ""
    ) -> None:
        """Allow or deny a waiting tool call, in this process or in another one.

        See ``archive.tool_calls``.
        """
        rows = await self.writer.write(
            archive_calls.decide_call,
            session,
            call=call,
            decision=decision,
            user_pk=user_pk,
            reason=reason,
        )
        self.publisher.publish_rows(session.pk, rows)
        await self.queue.notify_decisions(session.pk, everywhere=decision == ALWAYS)

    async def answer_question(
        self,
        session: Session,
        *,
        call: UUID,
        question: str,
        action: str,
        content: Any = None,
        user_pk: int | None,
    ) -> None:
        """Answer a question of a call's tool server, in this process or in another one.

        See ``archive.tool_calls``.
        """
        rows = await self.writer.write(
            archive_calls.answer_question,
            session,
            call=call,
            question=question,
            action=action,
            content=content,
            user_pk=user_pk,
        )
        self.publisher.publish_rows(session.pk, rows)
        await self.queue.notify_decisions(session.pk)

    async def cancel_call(self, session: Session, *, call: UUID, user_pk: int | None) -> None:
        """End one tool call that runs or waits. The run goes on."""
        await self.writer.write(
            archive_calls.request_call_stop, session, call=call, user_pk=user_pk
        )
        await self.queue.notify_decisions(session.pk)

    # The window and the session state

    async def compact(
        self, session: Session, *, client_id: str, user_pk: int | None, reason: str = MANUAL
    ) -> AcceptedMessage:
        accepted = await self.writer.write(
            archive_compactions.request_compaction,
            session,
            client_id=client_id,
            request=CompactionRequest(reason=reason),
            user_pk=user_pk,
        )
        self.queue.begin(session.pk)
        return accepted

    async def undo_compaction(self, session: Session, *, uuid: UUID, user_pk: int | None) -> None:
        appended = await self.writer.write(
            archive_compactions.undo_compaction, session, uuid=uuid, user_pk=user_pk
        )
        self.publisher.publish_rows(session.pk, appended.rows)
        await self.publisher.publish_window(session.pk)

    async def include_turn(self, session: Session, *, turn: int) -> None:
        appended = await self.writer.write(archive_messages.include_turn, session, turn=turn)
        self.publisher.publish_rows(session.pk, appended.rows)

    async def edit_state(
        self, session: Session, *, actor_pk: int | None, action: str, item: str, text: str
    ) -> None:
        appended = await self.writer.write(
            edit_state, session, actor_pk=actor_pk, action=action, item=item, text=text
        )
        self.publisher.publish_rows(session.pk, appended.rows)

    # Changed files

    def _complete_changes_soon(self) -> None:
        """Find out in the background which files interrupted calls have changed."""

        async def complete() -> None:
            async with self._completing_changes:
                count = await complete_all(read=self.readers.read, write=self.writer.write)
                await self._complete_reverts()
            if count:
                logger.info("changes_settled", extra={"fields": {"calls": count}})

        self.database.run_in_background(complete())

    async def _complete_reverts(self) -> None:
        """Complete interrupted reverts and publish their rows, unless any process runs a revert."""
        with try_lock(self._reverts_lock) as is_ours:
            if is_ours:
                completed = await complete_reverts(read=self.readers.read, write=self.writer.write)
                for session_pk, appended in completed:
                    self.publisher.publish_rows(session_pk, appended.rows)

    async def revert_files(
        self,
        session: Session,
        root: Path,
        *,
        scope: ChangeScope,
        actor_pk: int | None,
        replace: Collection[str],
    ) -> RevertResult:
        """Put files back (see ``agent.undo.revert``) and publish that to all pages."""
        await self._complete_reverts()
        async with share_lock(self._reverts_lock):
            result = await revert_files(
                session,
                root,
                scope=scope,
                actor_pk=actor_pk,
                replace=replace,
                read=self.readers.read,
                write=self.writer.write,
            )
        self.publisher.publish_rows(session.pk, result.appended.rows)
        return result
