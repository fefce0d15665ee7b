"""Pages of reviewers in a large installation: the search in everybody's turns, and the queue.

Each page is requested with Django's test client, so a figure includes everything from the URL to
the last byte: permissions, search, audit entries and rendering. Words follow Zipf's law, and every
question has different words.
"""

import logging
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from random import Random
from time import perf_counter, process_time

from django.contrib.auth.models import User
from django.test import Client

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median, percentile
from benchmarks.installation import (
    DAYS,
    MODELS,
    QUICK,
    START,
    TOOLS,
    WHOLE,
    Size,
    write_installation,
)
from benchmarks.pages import Unexpected
from benchmarks.vocabulary import word
from conversations.archive.audit import AuditOrigin
from conversations.models import Session
from conversations.review.queue import QueueFilters
from conversations.review.remarks import set_flag

SEARCHES, QUICK_SEARCHES = 40, 10
MAX_MS, MAX_RATIO = 100, 1.5
SESSIONS_PER_FLAG = 100

QUEUE_REPEATS, FAR_SHARE = 30, 0.95
"""How often each page of the queue is read, and the share of the list before the far page."""

type Question = dict[str, str]


def measure(bench: Bench) -> list[Figure]:
    logging.getLogger("conversations").setLevel(logging.WARNING)
    size = QUICK if bench.is_quick else WHOLE
    began = perf_counter()
    write_installation(size)
    written = perf_counter()
    _flag_some()
    return [
        Figure(name="people", value=size.people),
        Figure(name="sessions", value=size.sessions),
        Figure(name="turns", value=size.turns),
        Figure(name="time to write and index them", value=written - began, unit="s"),
        *measure_search(size, QUICK_SEARCHES if bench.is_quick else SEARCHES),
        *measure_queue(),
    ]


def sign_in() -> Client:
    """Return a client that is signed in as a superuser, who may read everything."""
    client = Client(SERVER_NAME="localhost")
    client.force_login(User.objects.filter(is_superuser=True).order_by("pk")[0])
    return client


def _flag_some() -> None:
    origin = AuditOrigin(user=User.objects.filter(is_superuser=True).order_by("pk")[0])
    for session in Session.objects.filter(next_turn__gt=1).order_by("pk")[::SESSIONS_PER_FLAG]:
        set_flag(session, origin, label="quality", text="Look at this", turn=1)


def measure_search(size: Size, searches: int) -> list[Figure]:
    client, figures = sign_in(), []
    everything: list[float] = []
    processor: list[float] = []
    for name, questions in _kinds(size).items():
        times = []
        for _ in range(searches):
            before = process_time()
            times.append(_timed(client, "/review/search/", next(questions)))
            processor.append(1000 * (process_time() - before))
        everything += times
        figures += [
            Figure(name=f"{name}, median", value=median(times), unit="ms"),
            Figure(name=f"{name}, p95", value=percentile(times, 0.95), unit="ms", at_most=MAX_MS),
        ]
    return [
        *figures,
        Figure(name="all searches, median", value=median(everything), unit="ms"),
        Figure(
            name="all searches, p95",
            value=percentile(everything, 0.95),
            unit="ms",
            at_most=MAX_MS,
        ),
        Figure(name="all searches, p95 of processor", value=percentile(processor, 0.95), unit="ms"),
    ]


def _timed(client: Client, address: str, query: Question) -> float:
    began = perf_counter()
    response = client.get(address, query)
    took = 1000 * (perf_counter() - began)
    if response.status_code != 200:
        raise Unexpected(f"GET {address} {query}: status {response.status_code}")
    return took


def _kinds(size: Size) -> dict[str, Iterator[Question]]:
    """Return an endless iterator of questions for each kind."""
    random = Random(5)

    def one(low: int, high: int) -> str:
        return word(random.randint(low, high))

    words: dict[str, Callable[[], str]] = {
        "a rare word": lambda: one(20_000, 59_000),
        "a middling word": lambda: one(100, 1000),
        "a very common word": lambda: one(0, 5),
        "two middling words": lambda: f"{one(30, 300)} {one(30, 300)}",
        "three common words": lambda: f"{one(0, 3)} {one(4, 8)} {one(9, 20)}",
        "a question": lambda: " ".join(
            (one(0, 5), one(5, 50), one(50, 500), one(500, 5000), one(5000, 50_000), one(0, 90))
        ),
        "a common phrase": lambda: f'"{one(0, 9)} {one(0, 20)}"',
        "a rare phrase": lambda: f'"{one(20, 200)} {one(20, 200)}"',
    }
    filters: dict[str, Callable[[], Question]] = {
        "of a person": lambda: {"person": f"person-{random.randint(1, size.people):03}"},
        "of a workspace": lambda: {"workspace": f"team-{random.randint(1, size.people // 10):02}"},
        "of a tool": lambda: {"tool": random.choice(TOOLS)},
        "of a model": lambda: {"model": random.choice(MODELS)},
        "in errors": lambda: {"outcome": "error"},
        "of a day": lambda: _days(random, 1),
        "of a month": lambda: _days(random, 30),
        "until a day": lambda: {"before": _days(random, 1)["before"]},
        "in flagged sessions": lambda: {"queue": "flagged"},
        "in unreviewed sessions": lambda: {"queue": "unreviewed"},
        "of a person in a month": lambda: (
            _days(random, 30) | {"person": f"person-{random.randint(1, size.people):03}"}
        ),
    }
    kinds: dict[str, Iterator[Question]] = {}
    for order in ("best", "newest"):
        for name, make in words.items():
            kinds[f"{name}, {order} first"] = _ask(make, order)
        for name, make_filter in filters.items():
            kinds[f"a very common word {name}, {order} first"] = _ask(
                words["a very common word"], order, make_filter
            )
            kinds[f"a question {name}, {order} first"] = _ask(
                words["a question"], order, make_filter
            )
    for name, make_filter in filters.items():
        kinds[f"all turns {name}"] = _ask(str, "newest", make_filter)
    return kinds


def _days(random: Random, count: int) -> Question:
    first = START.date() + timedelta(days=random.randrange(DAYS - count))
    return {"after": _text(first), "before": _text(first + timedelta(days=count))}


def _text(day: date) -> str:
    return day.isoformat()


def _ask(
    make: Callable[[], str], order: str, make_filter: Callable[[], Question] = dict
) -> Iterator[Question]:
    while True:
        yield {"q": make(), "order": order, **make_filter()}


def measure_queue() -> list[Figure]:
    """Measure the first page of each list and one near its end, which must cost the same."""
    client, figures = sign_in(), []
    for queue in ("unreviewed", "all"):
        far = {"queue": queue, "before": _cursor(QueueFilters(queue=queue))}
        first_times, far_times = [], []
        for _ in range(QUEUE_REPEATS):  # alternating, because the machine's load varies
            first_times.append(_timed(client, "/review/", {"queue": queue}))
            far_times.append(_timed(client, "/review/", far))
        figures += [
            Figure(name=f"queue {queue}, first page, median", value=median(first_times), unit="ms"),
            Figure(name=f"queue {queue}, far page, median", value=median(far_times), unit="ms"),
            Figure(
                name=f"queue {queue}, far page against first",
                value=median(far_times) / median(first_times),
                at_most=MAX_RATIO,
            ),
        ]
    return figures


def _cursor(filters: QueueFilters) -> str:
    """Return the cursor after ``FAR_SHARE`` of the list."""
    rows = filters.sessions.order_by("-last_active_at", "-pk").values_list("pk", "last_active_at")
    pk, moment = rows[int(rows.count() * FAR_SHARE)]
    return f"{moment.isoformat()}~{pk}"
