"""Work that is carried through even when its caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def carry_through[T](work: Coroutine[Any, Any, T]) -> T:
    """Wait until the work has ended, whatever happens; a cancellation is passed on then."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                continue
        if not task.cancelled():
            task.exception()  # it counts less than the cancellation
        raise
