"""The run queue: claiming, executing, taking over and interrupting runs.

A run belongs to its process and not to a socket, so it goes on when every page is closed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from conversations.archive import runs as archive_runs
from conversations.archive.append import RunLost
from conversations.archive.context import request_compaction
from conversations.archive.runs import ActiveRun, ClaimedRun
from conversations.archive.sessions import get_session
from conversations.archive.storage import MONITOR, is_storage_error
from conversations.domain import runs as states
from conversations.domain.errors import Conflict
from conversations.domain.runs import RunChoices
from conversations.models import DraftChunk

from .compaction import CompactionExecution, find_due_compaction
from .database import log_failure, wait_for_database
from .execution import Execution, RunContext
from .ownership import Owner
from .publish import EVERY_DRAFT, active_frame, rows_frame
from .run import RunExecution
from .titles import wants_title, write_title

logger = logging.getLogger(__name__)

MAX_ENDING_SECONDS = 20.0  # Limit on how long a stopping process waits for its runs to end


@dataclass(slots=True)
class _Worker:
    """Executes the runs of a session, one after the other.

    ``claimed`` is a run that was already claimed for the worker. ``stops_next`` means that the next
    run has to be stopped when it begins. ``ended`` is set when the current run has ended.
    """

    task: asyncio.Task[None] | None = None
    execution: Execution | None = None
    claimed: ClaimedRun | None = None
    has_work: bool = False
    stops_next: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class RunQueue:
    """The runs of this process.

    ``on_interrupted`` is called after a run of a process that is gone was interrupted.
    """

    def __init__(
        self, context: RunContext, owner: Owner, *, on_interrupted: Callable[[], None]
    ) -> None:
        self._context = context
        self._database = context.database
        self._publisher = context.publisher
        self._owner = owner
        self._on_interrupted = on_interrupted
        self._workers: dict[int, _Worker] = {}
        self._recovering = asyncio.Lock()

    @property
    def busy_count(self) -> int:
        return len(self._workers)

    @property
    def run_count(self) -> int:
        return sum(worker.execution is not None for worker in self._workers.values())

    def execution_of(self, session_pk: int) -> Execution | None:
        worker = self._workers.get(session_pk)
        return worker.execution if worker else None

    def begin(self, session_pk: int, claimed: ClaimedRun | None = None) -> None:
        """Make this process work on the session's queue.

        If the process is stopping, the run in ``claimed`` is given back.
        """
        if self._database.is_stopping and claimed is None:
            return
        worker = self._workers.get(session_pk)
        if worker is None:
            worker = self._workers[session_pk] = _Worker()
            worker.task = asyncio.create_task(self._work(session_pk, worker))
        worker.has_work = True
        worker.claimed = claimed or worker.claimed

    async def stop_run(self, session_pk: int, *, only: UUID | None = None) -> None:
        """Stop the session's running answer, in this process or in another one.

        With ``only``, stop it only if it is still this run and not the following one.
        """
        worker = self._workers.get(session_pk)
        if worker is not None and worker.execution is not None:
            if only is None or worker.execution.claimed.run == only:
                worker.execution.stop()
            return
        if worker is not None and only is None:
            worker.stops_next = True  # it is about to claim a run, unless another process has
        await self._database.writer.write(archive_runs.request_stop, session_pk, only=only)

    def stop_unasked_summary(self, session_pk: int) -> None:
        """Stop a running summary that nobody requested, because a person has sent a message."""
        execution = self.execution_of(session_pk)
        if isinstance(execution, CompactionExecution) and not execution.is_asked_for:
            execution.stop()

    def choose_for_run(self, session_pk: int, run_pk: int, choices: RunChoices) -> None:
        execution = self.execution_of(session_pk)
        if isinstance(execution, RunExecution) and execution.claimed.run_pk == run_pk:
            execution.choices = choices

    async def notify_decisions(self, session_pk: int, *, everywhere: bool = False) -> None:
        """Notify the session's run, or all runs of this process, of a decision or a stop of a call.

        If no run of the session is executed here, recover it in case its process is gone.
        """
        for pk, worker in list(self._workers.items()):
            if worker.execution is not None and (everywhere or pk == session_pk):
                await worker.execution.notify_decisions()
        if session_pk not in self._workers:
            await self.recover(session_pk=session_pk)

    async def wait_idle(self, session_pk: int) -> None:
        """Wait until this process does not work on the session any more."""
        worker = self._workers.get(session_pk)
        if worker is not None and worker.task is not None:
            await asyncio.wait({worker.task})

    async def wait_run_ended(self, session_pk: int) -> None:
        """Wait until this process has ended a run of the session, or does not work on it any more.

        A summary may follow the run.
        """
        worker = self._workers.get(session_pk)
        if worker is None or worker.task is None:
            return
        ended = asyncio.create_task(worker.ended.wait())
        await asyncio.wait({worker.task, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()

    async def end_runs(self, *, by_person: bool) -> None:
        tasks = [worker.task for worker in self._workers.values() if worker.task]
        for worker in list(self._workers.values()):
            if worker.execution:
                worker.execution.shut_down(by_person=by_person)
        if tasks:
            await asyncio.wait(tasks, timeout=MAX_ENDING_SECONDS)

    def deliver_chunks(self, chunks: Sequence[DraftChunk]) -> None:
        """Deliver the saved chunks of this process's answers to their listeners."""
        hub = self._publisher.hub
        for session_pk, worker in self._workers.items():
            if worker.execution is not None and session_pk in hub.listeners:
                run_pk = worker.execution.claimed.run_pk
                hub.deliver_chunks(session_pk, [c for c in chunks if c.run_id == run_pk])

    def count_waiting(self, run_pk: int, change: int) -> None:
        """Count a write of the run's draft that begins (1) or ceases (-1) to wait for room."""
        for worker in self._workers.values():
            if worker.execution is not None and worker.execution.claimed.run_pk == run_pk:
                worker.execution.writer.count_waiting(change)

    def publish_snapshots(self, session_pk: int) -> None:
        execution = self.execution_of(session_pk)
        if execution is not None:
            for frame in execution.snapshots():
                self._publisher.publish(session_pk, frame)

    async def _work(self, session_pk: int, worker: _Worker) -> None:
        wait_for_database(self._context.options.database_wait)
        try:
            while worker.has_work and (worker.claimed or not self._database.is_stopping):
                worker.has_work = False
                claimed, worker.claimed = worker.claimed, None
                if claimed is None:
                    claimed = await self._database.writer.write(
                        archive_runs.claim_next_run, session_pk, owner=self._owner.id
                    )
                    if claimed is not None:
                        self._publisher.publish_rows(session_pk, claimed.rows, title=claimed.title)
                        await self._publisher.publish_queue(session_pk)
                if claimed is None:
                    continue
                if self._database.is_stopping:
                    await self._database.writer.write(archive_runs.unclaim_run, claimed)
                # A run that was queued while this one was active is found when this one ends.
                elif await self._execute(worker, claimed):
                    worker.has_work = True
        except Exception as error:
            log_failure(error, "session_worker_ended", session_pk=str(session_pk))
        finally:
            del self._workers[session_pk]
        self._publisher.publish(session_pk, active_frame(None))

    async def _execute(self, worker: _Worker, claimed: ClaimedRun) -> bool:
        """Execute a run, and return whether another run of the session may wait."""
        is_compaction = claimed.kind == states.COMPACT
        execution_class = CompactionExecution if is_compaction else RunExecution
        execution = worker.execution = execution_class(self._context, claimed)
        if worker.stops_next:
            worker.stops_next = False
            execution.stop()
        try:
            may_wait = await execution.execute()
            worker.ended.set()
            if wants_title(execution):
                self._database.run_in_background(write_title(execution))
            return await self._request_summary(execution) or may_wait
        except RunLost:
            logger.warning("run_lost", extra={"fields": {"run": str(claimed.run)}})
            self._context.drafts.forget(claimed.run_pk)
            await self._database.writer.write(archive_runs.drop_draft_of_ended, claimed.run_pk)
            execution.live.clear()
            # From now on, the pages of this process follow the run as one of another process.
            ended = rows_frame([], ends_draft=execution.run)
            self._publisher.hub.publish(claimed.session_pk, ended)
        except Exception as error:
            log_failure(error, "run_not_finished", run=str(claimed.run))
            # If the database cannot be written, this process finds the run as an orphan later.
            if not is_storage_error(error):
                await self._interrupt(
                    claimed.run_pk,
                    claimed.session_pk,
                    owner=claimed.owner,
                    cause=archive_runs.SERVER_FAILED,
                )
        finally:
            worker.ended.set()  # in case execute() failed
            if self._context.program_tools.requests:
                self._context.program_tools.forget(claimed.session_pk, claimed.client_id)
            worker.execution, worker.ended = None, asyncio.Event()
        return True

    async def _request_summary(self, execution: Execution) -> bool:
        """Queue a summary after an answer to a new message of a person, if the window is full.

        No summary is made for other runs, because opening or continuing a session must not cause
        one.
        """
        claimed = execution.claimed
        is_answer = claimed.kind == states.MESSAGE and execution.state == states.COMPLETED
        if not is_answer or not execution.may_need_summary:
            return False
        read = self._database.readers.read
        try:
            request = await read(find_due_compaction, claimed.session_pk, self._context)
            if request is None or self._database.is_stopping:
                return False
            await self._database.writer.write(
                request_compaction,
                await read(get_session, claimed.session),
                client_id=f"compact-{claimed.run.hex}",
                request=request,
                user_pk=None,
            )
        except Conflict:  # a message was sent meanwhile, or the session was archived
            pass
        except Exception as error:
            log_failure(error, "compaction_not_begun", run=str(claimed.run))
        return True

    async def run_heartbeat(self) -> None:
        """Record that this process's runs are alive, and look after those of other processes."""
        while True:
            await asyncio.sleep(self._context.options.heartbeat)
            MONITOR.is_low()  # logs a warning if space is short
            running = {
                worker.execution.claimed.run_pk: worker.execution
                for worker in self._workers.values()
                if worker.execution is not None
            }
            if running:
                to_stop = await self._database.writer.write(
                    archive_runs.record_heartbeat, list(running), owner=self._owner.id
                )
                for run_pk in to_stop:
                    running[run_pk].stop()
            if self._context.options.supervise:
                await self.recover()
                await self.begin_waiting()

    async def begin_waiting(self) -> None:
        for session_pk in await self._database.readers.read(archive_runs.sessions_with_queue):
            if session_pk not in self._workers:
                self.begin(session_pk)

    async def recover(self, *, session_pk: int | None = None) -> None:
        """Recover the runs whose process is gone, in all sessions or in one.

        Runs that wait for a person continue in this process. The others are interrupted.
        """
        async with self._recovering:
            if self._database.is_stopping:
                return
            active = await self._database.readers.read(
                archive_runs.active_runs,
                stale_seconds=self._context.options.stale_after,
                session_pks=None if session_pk is None else [session_pk],
            )
            for run in active:
                if not self.is_orphan(run):
                    continue
                claimed = await self._database.writer.write(
                    archive_runs.adopt_run, run.run_pk, owner=run.owner, new_owner=self._owner.id
                )
                if claimed is not None:
                    logger.info("run_adopted", extra={"fields": {"run": str(run.run)}})
                    self._publisher.publish_rows(run.session_pk, claimed.rows)
                    self.begin(run.session_pk, claimed)
                else:
                    # A run of this process is an orphan only if writing its end failed.
                    is_own = self.owns(run)
                    cause = archive_runs.DATABASE_AWAY if is_own else archive_runs.SERVER_STOPPED
                    await self._interrupt(run.run_pk, run.session_pk, owner=run.owner, cause=cause)

    def owns(self, run: ActiveRun) -> bool:
        return run.owner == self._owner.id

    def is_orphan(self, run: ActiveRun) -> bool:
        options = self._context.options
        if not run.owner:
            return True  # released by a process that ended
        if run.owner == self._owner.id:
            worker = self._workers.get(run.session_pk)
            return worker is None and run.elapsed_ms > 1000 * options.heartbeat
        is_gone = self._owner.is_gone(run.owner)
        if is_gone is not None:
            return is_gone
        # While the database was away, the other process could not record a heartbeat.
        return run.is_stale and self._database.readers.answered_for > options.stale_after

    async def _interrupt(self, run_pk: int, session_pk: int, *, owner: str, cause: str) -> None:
        drafts = self._context.drafts
        with drafts.pending_chunks(run_pk) as draft:
            rows = await self._database.writer.write(
                archive_runs.interrupt_run, run_pk, owner=owner, draft=draft, cause=cause
            )
        drafts.forget(run_pk)
        if rows:
            logger.warning("run_interrupted", extra={"fields": {"run_pk": run_pk}})
            self._on_interrupted()
            self._publisher.publish(session_pk, rows_frame(rows, ends_draft=EVERY_DRAFT))
            self._publisher.publish(session_pk, active_frame(None))
