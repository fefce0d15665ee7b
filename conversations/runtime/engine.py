"""The runtime: one for each process, on its event loop.

Entry points call its methods and know nothing of how a run is carried out. A run
belongs to this object and not to a socket, so it goes on when every page closes.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from conversations.agent.mcp.servers import ToolServers
from conversations.archive import compactions as archive_compactions
from conversations.archive import messages as archive_messages
from conversations.archive import runs as archive_runs
from conversations.archive import tool_calls as archive_calls
from conversations.archive.append import Row
from conversations.archive.compactions import CompactionRequest, read_window_mark
from conversations.archive.disk_space import MONITOR
from conversations.archive.journal import Chunk
from conversations.archive.messages import Accepted, Restarted
from conversations.archive.model_calls import save_prompt_texts
from conversations.archive.rewinds import Rewound
from conversations.archive.runs import ActiveRun, Claimed
from conversations.archive.session_state import edit_state
from conversations.archive.sessions import get_session
from conversations.archive.storage_errors import is_storage_error
from conversations.archive.transcript import render_rewound_marker
from conversations.archive.transcript_plan import rewound_ranges
from conversations.domain import runs as states
from conversations.domain.errors import Conflict, LoomError, ProviderError
from conversations.domain.runs import NO_CHOICES, RunChoices
from conversations.domain.stream import ModelInfo, Provider
from conversations.domain.tool_calls import ALWAYS
from conversations.domain.windows import MANUAL
from conversations.feature import features
from conversations.models import Session
from conversations.providers.model_limits import find_limits
from conversations.providers.registry import make_provider

from .compaction import CompactionExecution, find_due_compaction
from .database import PatientWriter, Readers, Writer, wait_for_database
from .drafts import DraftWorker
from .frames import EVERY_DRAFT, Frame, idle_frame, queue_frame, rows_frame, window_frame
from .hub import Hub, Relay
from .indexer import Indexer
from .options import RuntimeOptions
from .ownership import Owner
from .program_tools import ProgramTools
from .run import RunExecution
from .undo import Undo
from .visitors import SOCKETS, STREAMS, AccessRefresher, ConnectionLimiter
from .watch import Watcher

logger = logging.getLogger(__name__)

MODELS_SECONDS = 3.0
"""Seconds that a first answer waits for the list of models at most."""

BUSY_STEP, LONGEST_INTERVAL = 0.001, 0.12
"""Seconds by which each running answer stretches the interval between its frames,
up to a bound: a hundred answers share one core with everything else."""


type Execution = RunExecution | CompactionExecution


@dataclass(slots=True)
class _Worker:
    """Carries out a session's runs, one after the other. ``claimed`` is one that was
    claimed for it already, ``stopped``: the run that it begins next is to be stopped.
    ``ended`` is set when the next run has ended."""

    task: asyncio.Task[None] | None = None
    execution: Execution | None = None
    claimed: Claimed | None = None
    again: bool = False
    stopped: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Runtime:
    """Start it on the loop that serves; stop it before that loop ends."""

    def __init__(self, options: RuntimeOptions) -> None:
        self.options = options
        self.owner = Owner(options.data_dir / "run")
        self.writer = Writer()
        self.patient_writer = PatientWriter(
            self.writer, gives_up=lambda: self._stopping, tell=lambda _: None
        )
        self.readers = Readers()
        self.hub = Hub()
        self.provider: Provider = _make_provider(options)
        self.drafts = DraftWorker(
            self.writer, interval=options.draft_interval, kept=self._hand_over
        )
        self.models: list[ModelInfo] = list(options.models)
        self.watcher = Watcher(self)
        self.visitors = AccessRefresher(self)
        self.relay = Relay(self, url=options.redis_url)
        self.tool_servers = ToolServers(options.mcp, options.mcp_timing)
        self.program_tools = ProgramTools()
        self.lines = ConnectionLimiter(
            most={SOCKETS: options.max_sockets, STREAMS: options.max_streams}
        )
        self._workers: dict[int, _Worker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._kept_texts: set[str] = set()
        self._stopping = self._is_stopped = False
        self._models_asked: asyncio.Task[Any] | None = None
        self._recovering = asyncio.Lock()
        self.undo = Undo(self)
        self.loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Recover what dead processes left, then look after things."""
        self.loop = asyncio.get_running_loop()
        if self.provider.is_demo:
            self.models = await self.provider.list_models()
        if self.options.supervise:
            await self.recover()
            self.owner.remove_leftovers()
            self.undo.settle_soon()
            await self.tool_servers.start()
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self.drafts.keep,
            self._beat_for_ever,
            self.watcher.watch,
            self.visitors.watch,
        ]
        if self.relay.is_used:
            loops.append(self.relay.listen)
        if self.options.supervise:
            loops.append(Indexer(self).keep)
            for feature in features():
                loops.extend(feature.workers(self))
        self._tasks = [asyncio.create_task(self._for_ever(loop)) for loop in loops]
        if self.options.supervise:
            await self._claim_waiting()

    async def end_runs(self) -> None:
        """Begin nothing more; stop the running answers and keep what they have. It is read
        and written as before."""
        self._stopping = True
        self.hub.close_listeners()
        workers = [w.task for w in self._workers.values() if w.task]
        for worker in list(self._workers.values()):
            if worker.execution:
                worker.execution.leave()
        if workers:
            await asyncio.wait(workers, timeout=20)

    async def stop(self) -> None:
        """End the runs, and let go of everything."""
        if self._is_stopped:
            return
        self._is_stopped = True
        await self.end_runs()
        for task in (*self._tasks, *self._background):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._background, return_exceptions=True)
        await self.tool_servers.stop()
        await self.provider.close()
        await self.relay.close()
        await asyncio.to_thread(self.writer.close)
        await asyncio.to_thread(self.readers.close)
        self.owner.close()

    async def send(
        self,
        session: Session,
        *,
        client_id: str,
        text: str,
        user_pk: int | None,
        attachments: Sequence[str] = (),
        choices: RunChoices = NO_CHOICES,
    ) -> Accepted:
        """Accept a person's message (see ``archive.messages.accept_message``) and see
        that it is answered, also when the caller leaves. Returns when it is on disk."""
        writing = asyncio.create_task(
            self.writer.write(
                archive_messages.accept_message,
                session,
                client_id=client_id,
                text=text,
                user_pk=user_pk,
                max_queued=self.options.max_queued,
                owner=self.owner.id,
                attachments=attachments,
                choices=choices,
            )
        )
        try:
            accepted = await asyncio.shield(writing)
        except asyncio.CancelledError:
            self.run_in_background(self._take_up_late(session.pk, writing))
            raise
        self._take_up(session.pk, accepted)
        if accepted.is_new and accepted.claimed is None:
            await self.publish_queue(session.pk)
        return accepted

    def _take_up(self, session_pk: int, accepted: Accepted) -> None:
        self.publish_rows(session_pk, accepted.rows, title=accepted.title)
        self._make_way(session_pk)
        self._begin(session_pk, accepted.claimed)

    async def _take_up_late(self, session_pk: int, writing: asyncio.Task[Accepted]) -> None:
        """The sender has left before the message was on disk: a run that was claimed for
        this process is carried out all the same."""
        with contextlib.suppress(LoomError):
            self._take_up(session_pk, await writing)

    async def edit(
        self, session: Session, *, client_id: str, turn: int, text: str, user_pk: int | None
    ) -> Accepted:
        restarted = await self.writer.write(
            archive_messages.edit_message,
            session,
            client_id=client_id,
            turn=turn,
            text=text,
            user_pk=user_pk,
        )
        return await self._restart(session, restarted)

    async def answer_again(
        self,
        session: Session,
        *,
        client_id: str,
        turn: int | None,
        user_pk: int | None,
        choices: RunChoices | None = None,
    ) -> Accepted:
        """See ``archive.messages.answer_again``."""
        restarted = await self.writer.write(
            archive_messages.regenerate,
            session,
            client_id=client_id,
            turn=turn,
            user_pk=user_pk,
            choices=choices,
        )
        return await self._restart(session, restarted)

    async def rewind(self, session: Session, *, from_turn: int, user_pk: int | None) -> Rewound:
        """See ``archive.messages.rewind_session``."""
        rewound = await self.writer.write(
            archive_messages.rewind_session, session, from_turn=from_turn, actor_pk=user_pk
        )
        await self._show_rewound(session, rewound)
        return rewound

    async def reset(
        self, session: Session, *, keeps_instructions: bool, user_pk: int | None
    ) -> Rewound:
        """See ``archive.messages.reset_session``."""
        rewound = await self.writer.write(
            archive_messages.reset_session,
            session,
            keeps_instructions=keeps_instructions,
            actor_pk=user_pk,
        )
        await self._show_rewound(session, rewound)
        return rewound

    async def go_on(self, session: Session, *, client_id: str, user_pk: int | None) -> Accepted:
        accepted = await self.writer.write(
            archive_messages.continue_run, session, client_id=client_id, user_pk=user_pk
        )
        self._begin(session.pk, None)
        return accepted

    async def choose_for_run(self, session_pk: int, run_pk: int, choices: RunChoices) -> None:
        """What a program asks of the further answers of a run that waits for it here."""
        await self.writer.write(archive_runs.choose_for_run, run_pk, choices=choices)
        execution = self.execution_of(session_pk)
        if isinstance(execution, RunExecution) and execution.claimed.run_pk == run_pk:
            execution.choices = choices

    async def compact(
        self, session: Session, *, client_id: str, user_pk: int | None, reason: str = MANUAL
    ) -> Accepted:
        """Have older turns summarised for the window (see ``runtime.compaction``)."""
        accepted = await self.writer.write(
            archive_compactions.request_compaction,
            session,
            client_id=client_id,
            request=CompactionRequest(reason=reason),
            user_pk=user_pk,
        )
        self._begin(session.pk, None)
        return accepted

    async def undo_compaction(self, session: Session, *, uuid: UUID, user_pk: int | None) -> None:
        """See ``archive.compactions``."""
        appended = await self.writer.write(
            archive_compactions.undo_compaction, session, uuid=uuid, user_pk=user_pk
        )
        self.publish_rows(session.pk, appended.rows)
        await self.publish_window(session.pk)

    async def withdraw(self, session: Session, *, run: UUID) -> None:
        await self.writer.write(archive_messages.withdraw_message, session, run=run)
        await self.publish_queue(session.pk)

    async def stop_run(self, session: Session) -> None:
        """End the session's running answer, in this process or in another one."""
        worker = self._workers.get(session.pk)
        if worker is None:
            await self.writer.write(archive_runs.request_stop, session.pk)
        elif worker.execution is not None:
            worker.execution.stop()
        else:
            worker.stopped = True  # it is about to claim a run

    async def decide_call(
        self,
        session: Session,
        *,
        call: UUID,
        decision: str,
        user_pk: int | None,
        reason: str = "",
    ) -> None:
        """Allow or deny a call that waits (see ``archive.tool_calls``), in this process
        or in another one."""
        decided = await self.writer.write(
            archive_calls.decide_call,
            session,
            call=call,
            decision=decision,
            user_pk=user_pk,
            reason=reason,
        )
        self.publish_rows(session.pk, decided.rows)
        await self._notice_decisions(None if decision == ALWAYS else session.pk)
        await self._see_to(session.pk)

    async def cancel_call(self, session: Session, *, call: UUID, user_pk: int | None) -> None:
        """End one call, which runs or waits; the run goes on."""
        await self.writer.write(
            archive_calls.request_call_stop, session, call=call, user_pk=user_pk
        )
        await self._notice_decisions(session.pk)
        await self._see_to(session.pk)

    async def _notice_decisions(self, session_pk: int | None) -> None:
        """Tell the runs of this process, or the one in a session."""
        for pk, worker in list(self._workers.items()):
            if worker.execution is not None and session_pk in (None, pk):
                await worker.execution.notice_decisions()

    async def _see_to(self, session_pk: int) -> None:
        """Somebody has to go on with the run, if its process is gone."""
        if session_pk not in self._workers:
            await self.recover(session_pk=session_pk)

    async def edit_state(
        self, session: Session, *, actor_pk: int | None, action: str, item: str, text: str
    ) -> None:
        """Change one item of the session state (see ``archive.session_state``)."""
        appended = await self.writer.write(
            edit_state, session, actor_pk=actor_pk, action=action, item=item, text=text
        )
        self.publish_rows(session.pk, appended.rows)

    def execution_of(self, session_pk: int) -> Execution | None:
        """The run that this process is carrying out in a session."""
        worker = self._workers.get(session_pk)
        return worker.execution if worker else None

    @property
    def run_count(self) -> int:
        return sum(worker.execution is not None for worker in self._workers.values())

    def kick(self, session_pk: int) -> None:
        """See that the session's queue is worked on by this process."""
        self._begin(session_pk, None)

    async def wait_idle(self, session_pk: int) -> None:
        """Return when this process works on the session no more."""
        worker = self._workers.get(session_pk)
        if worker is not None and worker.task is not None:
            await asyncio.wait({worker.task})

    async def wait_run_ended(self, session_pk: int) -> None:
        """Return when this process has ended a run of the session, or works on it no
        more. A summary may follow."""
        worker = self._workers.get(session_pk)
        if worker is None or worker.task is None:
            return
        ended = asyncio.create_task(worker.ended.wait())
        await asyncio.wait({worker.task, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()

    @property
    def delta_interval(self) -> float:
        """Seconds between two frames of one answer."""
        wanted = len(self._workers) * BUSY_STEP
        return max(self.options.delta_interval, min(wanted, LONGEST_INTERVAL))

    def is_watched(self, session_pk: int) -> bool:
        return self.relay.is_used or self.hub.is_watched(session_pk)

    def publish(self, session_pk: int, frame: Frame) -> None:
        """Send a frame to every page that watches the session, in any process."""
        self.hub.publish(session_pk, frame)
        self.relay.send(session_pk, frame)

    def _hand_over(self, chunks: Sequence[Chunk]) -> None:
        """Give what is on disk of this process's answers to those who follow them."""
        for session_pk, worker in self._workers.items():
            if worker.execution is not None and self.hub.is_listened_to(session_pk):
                run_pk = worker.execution.claimed.run_pk
                self.hub.hand_over(session_pk, [c for c in chunks if c.run_pk == run_pk])

    def publish_snapshots(self, session_pk: int) -> None:
        """Send the whole draft of a run that this process carries out."""
        execution = self.execution_of(session_pk)
        if execution is not None:
            for frame in execution.snapshots():
                self.publish(session_pk, frame)

    def publish_rows(self, session_pk: int, rows: Sequence[Row], *, title: str = "") -> None:
        if rows:
            self.publish(session_pk, rows_frame(rows))
        if title:
            self.publish(session_pk, {"type": "title", "title": title})

    async def publish_queue(self, session_pk: int) -> None:
        waiting = await self.readers.read(archive_messages.queued_messages, session_pk)
        self.publish(session_pk, queue_frame(waiting))

    async def publish_window(self, session_pk: int) -> None:
        """Say where the session's window starts and how full it is."""
        if self.is_watched(session_pk):
            mark = await self.readers.read(read_window_mark, session_pk)
            self.publish(session_pk, window_frame(mark))

    async def _restart(self, session: Session, restarted: Restarted) -> Accepted:
        accepted = restarted.accepted
        await self._show_rewound(session, restarted.rewound)
        self.publish_rows(session.pk, accepted.rows)
        self._begin(session.pk, None)
        return accepted

    async def _show_rewound(self, session: Session, rewound: Rewound) -> None:
        """Tell the open pages which rows left the active path."""
        self.watcher.note_rewinds(session.pk, rewound.count)
        if rewound.has_synthesised:
            self.publish(session.pk, {"type": "reload", "reason": "rewound"})
        elif rewound.from_seq <= rewound.to_seq:
            frame = await self.readers.read(self._rewound_frame, session.uuid, rewound)
            self.publish(session.pk, frame)

    def _rewound_frame(self, uuid: UUID, rewound: Rewound) -> Frame:
        session = get_session(uuid)
        [whole] = [
            r for r in rewound_ranges(session, source="seq") if r.low <= rewound.from_seq <= r.high
        ]
        return {
            "type": "rewound",
            "from_seq": whole.low,
            "to_seq": whole.high,
            "html": render_rewound_marker(session, whole),
        }

    def model_for(self, chosen: str) -> str:
        if self.provider.is_demo:
            return "demo"
        return chosen or self.options.model

    def compact_model_for(self, own: str) -> str:
        """The model that writes the summary of a session which has that one."""
        if self.provider.is_demo or self.options.compact_model:
            return own if self.provider.is_demo else self.options.compact_model
        return next((info.id for info in self.models if "haiku" in info.id.lower()), own)

    def limits_of(self, model: str) -> tuple[int, int]:
        """Tokens that a request may have, and that its answer may have."""
        known = next((info for info in self.models if info.id == model), None)
        limits = find_limits(model)
        limit = known.max_input_tokens if known else limits.input_tokens
        output = known.max_output_tokens if known else limits.output_tokens
        return (
            min(limit, self.options.max_input_tokens),
            min(output, self.options.max_output_tokens),
        )

    async def refresh_models(self) -> None:
        """Ask the provider which models it offers; keep the configured ones when it
        does not say."""
        try:
            self.models = await self.provider.list_models() or self.models
        except ProviderError as error:
            logger.warning("models_not_listed", extra={"fields": {"error_code": error.code}})

    def prepare_provider(self) -> None:
        """Somebody is about to chat: load what the first answer needs, once."""
        if self._models_asked is None and not self.provider.is_demo:
            self._models_asked = self.run_in_background(self.refresh_models())

    async def know_models(self) -> None:
        """Wait until the provider has said which limits its models have, for a while:
        the first window is made by them."""
        self.prepare_provider()
        if self._models_asked is not None and not self._models_asked.done():
            await asyncio.wait({self._models_asked}, timeout=MODELS_SECONDS)

    def write_in_background(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Write what an answer need not wait for."""
        self.run_in_background(self.patient_writer.write(function, *args, **kwargs))

    def keep_prompt_texts(self, texts: Mapping[str, str]) -> None:
        """Keep what manifests name by digest; each text is written once by a process."""
        new = {digest: text for digest, text in texts.items() if digest not in self._kept_texts}
        if new:
            self._kept_texts |= new.keys()
            self.write_in_background(save_prompt_texts, new)

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(wait_for_database, self.options.database_wait)
        task = asyncio.create_task(work, context=context)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(_log_failure)
        return task

    def _begin(self, session_pk: int, claimed: Claimed | None) -> None:
        if self._stopping:
            return
        worker = self._workers.get(session_pk)
        if worker is None:
            worker = self._workers[session_pk] = _Worker()
            worker.task = asyncio.create_task(self._work(session_pk, worker))
        worker.again = True
        worker.claimed = claimed or worker.claimed

    async def _work(self, session_pk: int, worker: _Worker) -> None:
        wait_for_database(self.options.database_wait)
        try:
            while worker.again and not self._stopping:
                worker.again = False
                claimed = worker.claimed or await self._claim(session_pk)
                if claimed is not None:
                    worker.again, worker.claimed = True, None
                    await self._carry_out(worker, claimed)
        except Exception as error:
            _log(error, f"the worker of session {session_pk} ended")
        finally:
            del self._workers[session_pk]
        self.publish(session_pk, idle_frame())

    async def _claim(self, session_pk: int) -> Claimed | None:
        claimed = await self.writer.write(
            archive_runs.claim_next_run, session_pk, owner=self.owner.id
        )
        if claimed is not None:
            self.publish_rows(session_pk, claimed.rows, title=claimed.title)
            await self.publish_queue(session_pk)
        return claimed

    async def _carry_out(self, worker: _Worker, claimed: Claimed) -> None:
        is_compaction = claimed.kind == states.COMPACT
        worker.execution = (CompactionExecution if is_compaction else RunExecution)(self, claimed)
        if worker.stopped:
            worker.stopped = False
            worker.execution.stop()
        try:
            await worker.execution.carry_out()
            worker.ended.set()
        except archive_runs.RunLost:
            logger.warning("run_lost", extra={"fields": {"run": str(claimed.run)}})
        except Exception as error:
            _log(error, "run_not_finished", run=str(claimed.run))
            # Where nothing can be written, this process finds the run as an orphan later.
            if not is_storage_error(error):
                await self._interrupt(
                    claimed.run_pk, claimed.session_pk, cause=archive_runs.SERVER_FAILED
                )
        else:
            await self._compact_if_due(worker.execution)
        finally:
            worker.ended.set()  # in case it failed
            self.program_tools.forget(claimed.session_pk, claimed.client_id)
            worker.execution, worker.ended = None, asyncio.Event()

    async def _compact_if_due(self, execution: Execution) -> None:
        """After an answer to a new message of a person, and only then: neither opening
        nor continuing a session has anything summarised."""
        claimed = execution.claimed
        if claimed.kind != states.MESSAGE or execution.state != states.COMPLETED:
            return
        try:
            request = await self.readers.read(find_due_compaction, claimed.session_pk, self)
            if request is None or self._stopping:
                return
            await self.writer.write(
                archive_compactions.request_compaction,
                await self.readers.read(get_session, claimed.session),
                client_id=f"compact-{claimed.run.hex}",
                request=request,
                user_pk=None,
            )
        except Conflict:  # somebody has written meanwhile, or archived the session
            return
        except Exception as error:
            _log(error, "compaction_not_begun", run=str(claimed.run))

    def _make_way(self, session_pk: int) -> None:
        """Nobody waits for a summary that nobody asked for."""
        execution = self.execution_of(session_pk)
        if isinstance(execution, CompactionExecution) and not execution.is_asked_for:
            execution.stop()

    async def _for_ever(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Keep a loop going: a database that is away must not end it."""
        wait_for_database(self.options.database_wait)
        while True:
            try:
                await loop()
            except Exception as error:
                _log(error, "a loop of the runtime failed and is started again")
                await asyncio.sleep(1)

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.options.heartbeat)
            MONITOR.is_low()  # says so in the log
            await self._beat()
            if self.options.supervise:
                await self.recover()
                await self._claim_waiting()

    async def _beat(self) -> None:
        running = {
            w.execution.claimed.run_pk: w.execution
            for w in self._workers.values()
            if w.execution is not None
        }
        if running:
            for run_pk in await self.writer.write(
                archive_runs.beat, list(running), owner=self.owner.id
            ):
                running[run_pk].stop()

    async def recover(self, *, session_pk: int | None = None) -> None:
        """See to the runs whose process is gone, in all sessions or in one: those that
        wait for a person go on here, the others end."""
        async with self._recovering:
            if self._stopping:
                return
            found = await self.readers.read(
                archive_runs.active_runs,
                stale_seconds=self.options.stale_after,
                session_pks=None if session_pk is None else [session_pk],
            )
            for run in found:
                if self.is_orphan(run) and not await self._adopt(run):
                    # This process leaves a run only when it could not write its end.
                    is_own = run.owner == self.owner.id
                    cause = archive_runs.DATABASE_AWAY if is_own else archive_runs.SERVER_STOPPED
                    await self._interrupt(run.run_pk, run.session_pk, cause=cause)

    async def _adopt(self, run: ActiveRun) -> bool:
        claimed = await self.writer.write(
            archive_runs.adopt_run, run.run_pk, owner=run.owner, new_owner=self.owner.id
        )
        if claimed is None:
            return False
        logger.info("run_adopted", extra={"fields": {"run": str(run.run)}})
        self.publish_rows(run.session_pk, claimed.rows)
        self._begin(run.session_pk, claimed)
        return True

    def is_orphan(self, run: ActiveRun) -> bool:
        if not run.owner:
            return True  # let go of by a process that ended
        if run.owner == self.owner.id:
            worker = self._workers.get(run.session_pk)
            return worker is None and run.elapsed_ms > 1000 * self.options.heartbeat
        gone = self.owner.is_gone(run.owner)
        if gone is not None:
            return gone
        # While the database was away nobody could say there that a run is alive.
        return run.is_stale and self.readers.answered_for > self.options.stale_after

    async def _interrupt(self, run_pk: int, session_pk: int, *, cause: str) -> None:
        draft = self.drafts.take(run_pk)
        try:
            rows = await self.writer.write(
                archive_runs.interrupt_run, run_pk, draft=draft, cause=cause
            )
        except Exception as error:
            self.drafts.give_back(run_pk, draft, error=error)
            raise
        self.drafts.forget(run_pk)
        if rows:
            logger.warning("run_interrupted", extra={"fields": {"run_pk": run_pk}})
            self.undo.settle_soon()
            self.publish(session_pk, rows_frame(rows, ends_draft=EVERY_DRAFT))
            self.publish(session_pk, idle_frame())

    async def _claim_waiting(self) -> None:
        for session_pk in await self.readers.read(archive_runs.sessions_with_queue):
            if session_pk not in self._workers:
                self.kick(session_pk)


def _make_provider(options: RuntimeOptions) -> Provider:
    return make_provider(
        name="anthropic" if options.api_key else "demo",
        api_key=options.api_key,
        base_url=options.base_url or None,
        timeout=options.provider_timeout,
        demo_delay=options.demo_delay,
        fallback_models=options.models,
    )


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log(error, "background work failed")


def _log(error: BaseException, event: str, **fields: str) -> None:
    """A fault of ours with its traceback; a database or a disk that fails in one line."""
    # The lines of one statement are limited: each of the callers has a limit of its own.
    if is_storage_error(error):
        logger.warning("%s: %s", event, error, extra={"fields": fields}, stacklevel=2)
    else:
        logger.error(event, exc_info=error, extra={"fields": fields}, stacklevel=2)
