"""The runtime of this process, started on first use on the loop that serves requests."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.contrib.auth.models import User

from conversations.archive import sessions as archive_sessions
from conversations.archive.runs import active_runs, count_runs_by_state
from conversations.archive.storage import data_free_bytes, is_storage_error
from conversations.domain.errors import Rejected, Unavailable
from conversations.domain.runs import QUEUED, RUNNING, WAITING_APPROVAL
from conversations.domain.stream import ModelInfo
from conversations.domain.windows import END
from conversations.feature import Metric, features
from conversations.models import Session, Workspace

from .database import stopping
from .model_routing import default_model, offered_models
from .options import read_options
from .service import Runtime

logger = logging.getLogger(__name__)

_runtime: Runtime | None = None
_starting: asyncio.Lock | None = None
_is_over = False


async def current_runtime() -> Runtime:
    """Return the runtime of this process, started if necessary.

    Raise Unavailable when the process ends, because a new runtime would claim runs that it cannot
    execute any more.
    """
    global _runtime, _starting
    if _runtime is not None:
        return _runtime
    if _is_over:
        raise stopping()
    _starting = _starting or asyncio.Lock()
    async with _starting:
        if _runtime is None:
            runtime = Runtime(read_options(supervise=True))
            await runtime.start()
            _runtime = runtime
    return _runtime


def started_runtime() -> Runtime | None:
    return _runtime


def has_open(session_pk: int, *, user_pk: int) -> bool:
    """Return whether the person has the session open and has thereby read its rows."""
    return _runtime is not None and _runtime.presence.has(session_pk, user_pk=user_pk)


async def stop_current_runtime(*, for_good: bool = False) -> None:
    """Stop the runtime if it was started. ``for_good`` means that the process ends."""
    global _runtime, _starting, _is_over
    _is_over = for_good
    runtime, _runtime, _starting = _runtime, None, None
    if runtime is not None:
        await runtime.stop()


# Functions for views, which call the runtime from a request's thread.

RECOVERY_SECONDS = 10.0

# Help texts of the metrics, in the order in which they are listed.
METRICS = {
    "loom_runs_queued": "Queued messages.",
    "loom_runs_running": "Running answers.",
    "loom_runs_waiting_approval": "Runs that wait for a person's approval.",
    "loom_process_runs": "Runs of this process.",
    "loom_process_sockets": "Pages connected to this process.",
    "loom_process_streams": (
        "Programs that follow a run or a session in this process, or wait for a run."
    ),
    "loom_process_lines_refused_total": (
        "Sockets and streams refused because a person had too many in this process."
    ),
    "loom_tool_servers_ready": "Working connections to tool servers.",
    "loom_tool_servers_failed": "Tool servers that do not respond.",
    "loom_disk_free_bytes": (
        "Free bytes on the disk of the data folder or of the SQLite database, whichever has less."
    ),
}

# Metrics that are read from the database, and the state of the runs that each of them counts.
IN_FLIGHT = {
    "loom_runs_queued": QUEUED,
    "loom_runs_running": RUNNING,
    "loom_runs_waiting_approval": WAITING_APPROVAL,
}


def list_models() -> list[ModelInfo]:
    """Return the models on offer: those of the settings until the providers have listed theirs."""
    runtime = started_runtime()
    if runtime is not None:
        return runtime.models.listed
    return offered_models(read_options(supervise=False))


def find_model(text: str, models: Sequence[ModelInfo]) -> ModelInfo:
    """Return the model with this id or name, or the only one whose id or name contains the text.

    Raise Rejected if there is no such model or more than one.
    """
    needle = text.casefold()
    exact = [model for model in models if needle in (model.id.casefold(), model.name.casefold())]
    partial = [model for model in models if needle in f"{model.id} {model.name}".casefold()]
    matches = exact or partial
    if len(matches) != 1:
        names = ", ".join(model.id for model in matches or models)
        raise Rejected(
            "Choose one of these models: %(models)s.", models=names, code="unknown_model"
        )
    return matches[0]


def require_model(model: str) -> None:
    """Raise Rejected if no model on offer has this id."""
    if model not in {info.id for info in list_models()}:
        raise Rejected("This model is not available.", code="unknown_model")


def recover_session(session_pk: int) -> bool:
    """End the session's run if its process is gone.

    Return whether there was such a run and its recovery finished in time.
    """
    runs = active_runs(stale_seconds=settings.LOOM.stale_seconds, session_pks=[session_pk])
    runtime = started_runtime()
    if not runs or runtime is None or runtime.loop is None:
        return False
    if not any(runtime.queue.is_orphan(run) for run in runs):
        return False
    recovery = asyncio.run_coroutine_threadsafe(
        runtime.queue.recover(session_pk=session_pk), runtime.loop
    )
    try:
        recovery.result(RECOVERY_SECONDS)
    except TimeoutError:  # the page shows the old state; the supervisor tries again
        logger.warning("session_not_recovered", extra={"fields": {"session_pk": session_pk}})
        return False
    return True


def require_runtime() -> Runtime:
    """Return the runtime, for use in a request's thread. Raise Unavailable if it is not started."""
    runtime = started_runtime()
    if runtime is None or runtime.loop is None:
        raise Unavailable("The server is starting. Try again in a moment.")
    return runtime


def run_on_runtime[T](work: Coroutine[Any, Any, T], *, seconds: float) -> T:
    """Run a coroutine on the runtime's loop and wait for its result in a request's thread.

    Raise Unavailable if the runtime is not started or the coroutine takes longer than ``seconds``.
    """
    try:
        loop = require_runtime().loop
    except Unavailable:
        work.close()
        raise
    assert loop is not None
    waiting = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return waiting.result(seconds)
    except TimeoutError as error:
        waiting.cancel()
        raise Unavailable("The model server did not answer in time.") from error


def find_default_model() -> str:
    """Return the model of sessions without a chosen one, or an empty string if none is on offer."""
    runtime = started_runtime()
    if runtime is not None:
        return runtime.models.model_for("")
    return default_model(settings.LOOM.model, settings.LOOM.providers, list_models())


def model_of(session: Session) -> str:
    """Return the model that answers in the session, or an empty string if none is on offer."""
    runtime = started_runtime()
    if runtime is not None:
        return runtime.models.model_for(session.chosen_model)
    return session.chosen_model or find_default_model()


def is_demo() -> bool:
    """Return whether the demo model answers."""
    runtime = started_runtime()
    return runtime.models.is_demo if runtime is not None else not settings.LOOM.providers


def open_new_session(workspace: Workspace, *, owner: User, came_from: str) -> Session:
    """Return a session without messages, which may be an existing unused one.

    A session that the person has open in another tab is not reused, because they may be writing
    there. ``came_from`` is the address of the page that sends the request.
    """
    return archive_sessions.open_empty_session(
        workspace,
        owner=owner,
        is_taken=lambda unused: (
            str(unused.uuid) not in came_from and has_open(unused.pk, user_pk=owner.pk)
        ),
    )


def rename_session(session: Session, *, title: str) -> str:
    """Give the session a title that a person chose, and show it on open pages.

    Raise Rejected for a title that cannot be used.
    """
    chosen = archive_sessions.rename_session(session, title=title)
    announce(session.pk, "title", chosen)
    return chosen


def choose_model(session: Session, *, model: str) -> None:
    """Set the model that answers in the session from now on, and show it on open pages."""
    archive_sessions.choose_model(session, model=model)
    announce(session.pk, "model", model)


def announce(session_pk: int, name: str, value: str) -> None:
    """Send the session's new ``title`` or ``model`` to its open pages in all processes."""
    runtime = started_runtime()
    if runtime is not None and runtime.loop is not None:
        frame = {"type": name, name: value}
        runtime.loop.call_soon_threadsafe(runtime.publisher.publish, session_pk, frame)


def compact_at_end(session: Session, *, user_pk: int) -> None:
    """Summarise a session that has just been archived, in the background, if this is set up."""
    runtime = started_runtime()
    if not settings.LOOM.compact_at_end or runtime is None or runtime.loop is None:
        return

    async def compact() -> None:
        with contextlib.suppress(Rejected):  # the session is empty, or an answer is being written
            await runtime.compact(session, client_id=uuid4().hex, user_pk=user_pk, reason=END)

    runtime.loop.call_soon_threadsafe(lambda: runtime.database.run_in_background(compact()))


def read_metrics() -> list[Metric]:
    """Return the metrics of this process, and those of the archive if the database answers."""
    figures: dict[str, float] = dict.fromkeys(METRICS, 0)
    figures["loom_disk_free_bytes"] = data_free_bytes()
    feature_metrics: list[Metric] = []
    try:
        states = count_runs_by_state(tuple(IN_FLIGHT.values()))
        figures |= {name: states.get(state, 0) for name, state in IN_FLIGHT.items()}
        feature_metrics = [metric for feature in features() for metric in feature.metrics()]
    except Exception as error:
        if not is_storage_error(error):
            raise
        figures = {name: value for name, value in figures.items() if name not in IN_FLIGHT}
    if runtime := started_runtime():
        servers = runtime.tool_servers.count_states()
        figures |= {
            "loom_process_runs": runtime.queue.run_count,
            "loom_process_sockets": runtime.hub.subscriber_count,
            "loom_process_streams": runtime.hub.listener_count,
            "loom_process_lines_refused_total": runtime.limiter.refused,
            "loom_tool_servers_ready": servers["ready"],
            "loom_tool_servers_failed": servers["failed"],
        }
    metrics = []
    for name in figures:
        kind = "counter" if name.endswith("_total") else "gauge"
        metrics.append(Metric(name=name, help=METRICS[name], value=figures[name], kind=kind))
    return metrics + feature_metrics
