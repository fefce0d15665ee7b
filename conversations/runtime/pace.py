"""How often pages are told of a running answer: at once, while the processor has time."""

from collections.abc import Callable
from time import monotonic, process_time

SAMPLE_SECONDS = 0.1
# Of one core, as one thread at a time runs Python. Above it frames are held together, below
# it less and less: what answers need beside that (pages, commits) has the rest.
MAX_CPU_SHARE, LOW_CPU_SHARE = 0.85, 0.65
FIRST_INTERVAL, MAX_INTERVAL = 0.005, 0.2  # Seconds


class FramePace:
    """``shortest`` is the least number of seconds between two frames of an answer."""

    def __init__(
        self,
        *,
        shortest: float,
        clock: Callable[[], float] = monotonic,
        cpu_clock: Callable[[], float] = process_time,
    ) -> None:
        self._shortest = shortest
        self._clock, self._cpu_clock = clock, cpu_clock
        self._added = 0.0
        self._sampled, self._used = clock(), cpu_clock()

    def interval(self) -> float:
        """Seconds from one frame of an answer to its next."""
        now = self._clock()
        if (elapsed := now - self._sampled) >= SAMPLE_SECONDS:
            used = self._cpu_clock()
            share = (used - self._used) / elapsed
            self._sampled, self._used = now, used
            if share > MAX_CPU_SHARE:
                self._added = min(MAX_INTERVAL, max(FIRST_INTERVAL, 1.5 * self._added))
            elif share < LOW_CPU_SHARE:
                self._added = self._added / 1.5 if self._added > FIRST_INTERVAL else 0.0
        return max(self._shortest, self._added)
