"""This process's runtime, started on first use on the loop that serves."""

import asyncio

from .engine import Runtime
from .options import read_options

_runtime: Runtime | None = None
_starting: asyncio.Lock | None = None


async def current_runtime() -> Runtime:
    """The running runtime of this process."""
    global _runtime, _starting
    if _runtime is not None:
        return _runtime
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


async def stop_current_runtime() -> None:
    """Stop it, if it was started."""
    global _runtime, _starting
    runtime, _runtime, _starting = _runtime, None, None
    if runtime is not None:
        await runtime.stop()
