"""This process's runtime, started on first use on the loop that serves."""

import asyncio

from conversations.domain.errors import Unavailable

from .engine import Runtime
from .options import read_options

_runtime: Runtime | None = None
_starting: asyncio.Lock | None = None
_is_over = False


async def current_runtime() -> Runtime:
    """The running runtime of this process. Raises Unavailable when the process ends: a
    new one would claim what nobody carries out."""
    global _runtime, _starting
    if _runtime is not None:
        return _runtime
    if _is_over:
        raise Unavailable("The server is stopping. Try again in a moment.", code="stopping")
    _starting = _starting or asyncio.Lock()
    async with _starting:
        if _runtime is None:
            runtime = Runtime(read_options(supervise=True))
            await runtime.start()
            _runtime = runtime
    return _runtime


def started_runtime() -> Runtime | None:
    """The runtime, if there is one already."""
    return _runtime


async def stop_current_runtime(*, for_good: bool = False) -> None:
    """Stop it, if it was started. ``for_good``: the process ends."""
    global _runtime, _starting, _is_over
    _is_over = for_good
    runtime, _runtime, _starting = _runtime, None, None
    if runtime is not None:
        await runtime.stop()
