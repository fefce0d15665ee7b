"""What every run has in common, whatever it writes: a beginning, a stop, an end."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from conversations.agent.mcp.servers import ToolServers
from conversations.archive.runs import Claimed
from conversations.domain import runs as states
from conversations.domain.tool_calls import ToolScope

from .database import Database
from .drafts import DraftWorker
from .frames import Frame, state_frame
from .live import LiveAnswer
from .models import Models
from .options import RuntimeOptions
from .program_tools import ProgramTools
from .publish import Publisher


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What the process has for a run. ``delta_interval`` says how many seconds lie between
    two frames of one answer now; ``offered`` what tools the model is told of where there are
    no others than the product's."""

    options: RuntimeOptions
    database: Database
    models: Models
    publisher: Publisher
    drafts: DraftWorker
    tool_servers: ToolServers
    program_tools: ProgramTools
    delta_interval: Callable[[], float]
    offered: dict[ToolScope, str] = field(default_factory=dict)


class Execution:
    """One run in this process. ``stop`` ends it early."""

    may_need_summary = False
    """Whether the window of the session may have to be summarised after this run."""

    def __init__(self, context: RunContext, claimed: Claimed) -> None:
        self.claimed = claimed
        self.run = str(claimed.run)
        self.live = LiveAnswer(self.run)
        self.state = states.RUNNING
        self.note = ""
        self.doing = ""
        self._context = context
        self._started = monotonic()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    def leave(self) -> None:
        """The process ends."""
        self._stop.set()

    async def notice_decisions(self) -> None:
        """Somebody decided about a call, or asked for its end."""

    def snapshots(self) -> list[Frame]:
        """What the run has written so far, for a page that comes now."""
        return []

    @property
    def elapsed_ms(self) -> int:
        return int((monotonic() - self._started) * 1000)

    def state_frame(self) -> Frame:
        return state_frame(
            run_state=self.state,
            run=self.run,
            note=self.note,
            elapsed_ms=self.elapsed_ms,
            doing=self.doing,
        )

    async def execute(self) -> bool:
        """Do the work until it ends or is stopped; then write the run's end. Returns whether
        another run of the session may wait."""
        raise NotImplementedError

    async def _run_until_stopped[T](self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of its own, so that stopping cancels it and nothing else."""
        self._publish(self.state_frame())
        task = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not task.done():
            task.cancel()
        return task

    def _publish(self, frame: Frame) -> None:
        self._context.publisher.publish(self.claimed.session_pk, frame)
