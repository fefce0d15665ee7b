"""Opening a session of tool rows with outputs of a megabyte, compared with one of text rows.

The sessions are measured alternately in one run, so that a busy machine slows both alike.
"""

import logging
from collections.abc import Iterator
from itertools import batched
from random import Random
from uuid import UUID, uuid4

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median
from benchmarks.history import make_answer
from benchmarks.pages import PageReader
from benchmarks.processes import running_server, running_wire
from conversations.archive.append import NewEvent, append
from conversations.domain.events import AssistantText, Payload, ToolCallCompleted
from conversations.domain.turns import NewTurn
from conversations.models import Session

PAGE_ROWS = 200
OUTPUT_CHARS, QUICK_OUTPUT_CHARS = 1_000_000, 100_000
EVENT_CHARS = 20_000
"""Characters of an output that its event holds."""

ROUNDS, QUICK_ROUNDS = 60, 20
MAX_RATIO = 1.3


def measure(bench: Bench) -> list[Figure]:
    logging.getLogger("conversations").setLevel(logging.WARNING)
    size = QUICK_OUTPUT_CHARS if bench.is_quick else OUTPUT_CHARS
    tools, texts = bench.new_session(), bench.new_session()
    _write(tools, _calls(size))
    _write(texts, _answers())
    with running_wire() as wire:
        settings = wire.settings | {"LOOM_PAGE_SIZE": str(PAGE_ROWS)}
        with running_server(bench.data_dir, settings=settings) as server:
            reader = PageReader(port=server.port, cookie=server.sign_in())
            figures = _opened(
                reader, tools.uuid, texts.uuid, QUICK_ROUNDS if bench.is_quick else ROUNDS
            )
            figures += _paged(reader, tools.uuid)
            reader.close()
    return [Figure(name="characters of an output", value=size), *figures, *_queries(tools, texts)]


def _calls(size: int) -> Iterator[tuple[NewTurn, Payload]]:
    random = Random(3)
    for number in range(PAGE_ROWS):
        line = f"tests/test_{number}.py::test_that \x1b[32mPASSED\x1b[0m {random.random()}\n"
        output = (line * (size // len(line) + 1))[:size]
        call = ToolCallCompleted(
            call_id=f"c{number}",
            name="shell_execute",
            ok=True,
            arguments={"command": f"pytest tests/test_{number}.py"},
            output=output[:EVENT_CHARS],
            output_chars=size,
            duration_ms=number,
            call=str(uuid4()),
        )
        yield NewTurn(role="tool", content=output, tool_call_id=call.call_id), call


def _answers() -> Iterator[tuple[NewTurn, Payload]]:
    random = Random(4)
    for _ in range(PAGE_ROWS):
        text = make_answer(random)
        yield NewTurn(role="assistant", content=text), AssistantText(text=text)


def _write(session: Session, rows: Iterator[tuple[NewTurn, Payload]]) -> None:
    for batch in batched(rows, 20, strict=False):
        append(
            session.pk,
            session_uuid=session.uuid,
            turns=[turn for turn, _ in batch],
            events=[NewEvent(payload=row, new=place) for place, (_, row) in enumerate(batch)],
        )


def _opened(reader: PageReader, tools: UUID, texts: UUID, rounds: int) -> list[Figure]:
    figures: list[Figure] = []
    for gzipped in (False, True):
        times: dict[UUID, list[float]] = {tools: [], texts: []}
        sizes: dict[UUID, int] = {}
        for number in range(rounds + 3):
            for session in (tools, texts) if number % 2 else (texts, tools):
                times[session].append(reader.read(f"/s/{session}/", gzipped=gzipped))
                sizes[session] = reader.size
                assert reader.html.count("data-seq=") == PAGE_ROWS
        taken = {session: median(kept[3:]) for session, kept in times.items()}
        how = "gzip" if gzipped else "plain"
        figures += [
            Figure(name=f"{PAGE_ROWS} tool rows, {how}", value=1000 * taken[tools], unit="ms"),
            Figure(name=f"{PAGE_ROWS} text rows, {how}", value=1000 * taken[texts], unit="ms"),
            Figure(name=f"tool/text, {how}", value=taken[tools] / taken[texts], at_most=MAX_RATIO),
            Figure(name=f"size with tools, {how}", value=sizes[tools] / 1000, unit="kB"),
            Figure(name=f"size with texts, {how}", value=sizes[texts] / 1000, unit="kB"),
        ]
    return figures


def _paged(reader: PageReader, session: UUID) -> list[Figure]:
    """Measure the first page of an output, which is requested when a row is opened."""
    address = f"/s/{session}/t/{PAGE_ROWS}/output/"
    times = [reader.read(address, fragment=True) for _ in range(20)]
    return [Figure(name="a page of an output", value=1000 * median(times), unit="ms")]


def _queries(tools: Session, texts: Session) -> list[Figure]:
    client = Client(headers={"host": "127.0.0.1"})
    client.force_login(
        User.objects.filter(is_superuser=True).order_by("pk").get(),
        "django.contrib.auth.backends.ModelBackend",
    )
    counts = []
    for session in (tools, texts):
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"/s/{session.uuid}/").status_code == 200
        counts.append(len(queries))
    return [
        Figure(name="queries with tools", value=counts[0], at_most=counts[1]),
        Figure(name="queries with texts", value=counts[1]),
    ]
