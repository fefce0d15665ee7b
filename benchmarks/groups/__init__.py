"""The groups of measurements, by the names that ``--only`` takes."""

from collections.abc import Callable

from benchmarks.bench import Bench
from benchmarks.figures import Figure

from . import (
    age,
    burst,
    files,
    first_token,
    hostile,
    review,
    search,
    start,
    streams,
    tools,
    window,
    writers,
)

GROUPS: dict[str, Callable[[Bench], list[Figure]]] = {
    "start": start.measure,
    "first_token": first_token.measure,
    "burst": burst.measure,
    "streams": streams.measure,
    "writers": writers.measure,
    "age": age.measure,
    "window": window.measure,
    "search": search.measure,
    "review": review.measure,
    "tools": tools.measure,
    "files": files.measure,
    "hostile": hostile.measure,
}
