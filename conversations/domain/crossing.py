"""How async code reaches functions that use the database."""

from collections.abc import Callable
from typing import Protocol


class Crossing(Protocol):
    """Runs a function of the archive on a thread that may use the database."""

    async def __call__[**P, T](
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
