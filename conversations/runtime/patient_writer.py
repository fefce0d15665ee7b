"""Writing what must not be lost while the disk is full.

A message that does not fit is refused, and its sender still has it. Nobody else has an
answer, the result of a tool or the end of a run: they wait in memory until there is room.
"""

import asyncio
from collections.abc import Callable

from conversations.archive.storage_errors import translate_storage_error
from conversations.domain.errors import StorageFull

from .database import Writer

FULL_NOTE = "The server's disk is full. This answer is kept in memory until there is room."

TRY_SECONDS = 1.0
"""Between two tries. A refused write leaves nothing behind, so it can be tried for ever."""


class PatientWriter:
    """``tell`` is given a note when waiting begins, and an empty one when it is over.
    ``gives_up``: the process ends, so StorageFull is raised after all."""

    def __init__(
        self, writer: Writer, *, gives_up: Callable[[], bool], tell: Callable[[str], None]
    ) -> None:
        self._writer = writer
        self._gives_up = gives_up
        self._tell = tell
        self._waiting = 0

    async def write[**P, T](self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As :meth:`Writer.write`."""
        is_waiting = False
        try:
            while True:
                try:
                    return await self._writer.write(function, *args, **kwargs)
                except Exception as error:
                    is_full = isinstance(translate_storage_error(error), StorageFull)
                    if not is_full or self._gives_up():
                        raise
                if not is_waiting:
                    is_waiting = True
                    self._count(1)
                await asyncio.sleep(TRY_SECONDS)
        finally:
            if is_waiting:
                self._count(-1)

    def _count(self, change: int) -> None:
        before, self._waiting = self._waiting, self._waiting + change
        if not (before and self._waiting):
            self._tell(FULL_NOTE if self._waiting else "")
