"""The groups of measurements, by their names for ``--only``."""

from collections.abc import Callable

from benchmarks.bench import Bench
from benchmarks.figures import Figure

from . import (
    age,
    append,
    browser,
    exchanges,
    files,
    first_token,
    hostile,
    imports,
    people,
    processor,
    review,
    search,
    sessions,
    start,
    streams,
    tools,
    window,
    writers,
)

GROUPS: dict[str, Callable[[Bench], list[Figure]]] = {
    "start": start.measure,
    "first_token": first_token.measure,
    "streams": streams.measure,
    "processor": processor.measure,
    "browser": browser.measure,
    "exchanges": exchanges.measure,
    "age": age.measure,
    "sessions": sessions.measure,
    "imports": imports.measure,
    "append": append.measure,
    "writers": writers.measure,
    "people": people.measure,
    "window": window.measure,
    "search": search.measure,
    "review": review.measure,
    "tools": tools.measure,
    "files": files.measure,
    "hostile": hostile.measure,
}
