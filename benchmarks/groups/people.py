"""Twenty people in one session: the delay of presence, and whether all pages show the same order.

Each person announces with a frame that they are typing, and then sends a message, again and again.
The age of a presence is the time from this frame to its arrival at each other page.
"""

import asyncio
import json
from collections.abc import Iterator
from random import Random
from time import monotonic_ns
from typing import Any

from django.contrib.auth.models import User

from benchmarks.bench import WORKSPACE, Bench
from benchmarks.figures import Figure, percentile
from benchmarks.pages import PageSocket
from benchmarks.processes import running_server
from conversations.archive.workspaces import add_member, create_sign_in_link, get_workspace
from conversations.models import Turn

PEOPLE = 20
SECONDS, QUICK_SECONDS = 300, 20
PAUSE_SECONDS = (5.0, 15.0)  # range of a person's pause between two messages
TYPING_SECONDS = 2.0
MAX_AGE_MS = 300


def measure(bench: Bench) -> list[Figure]:
    session = bench.new_session()
    seconds = QUICK_SECONDS if bench.is_quick else SECONDS
    names = [f"person-{number:02}" for number in range(PEOPLE)]
    links = []
    for name in names:
        user = User.objects.create_user(name)
        add_member(get_workspace(WORKSPACE), user_pk=user.pk, role="member")
        links.append(create_sign_in_link(user))
    settings = {"LOOM_DEMO_DELAY": "0", "LOOM_MAX_QUEUED": "100"}
    with running_server(bench.data_dir, settings=settings) as server:
        cookies = [server.sign_in(f"/sign-in/link/{link}/") for link in links]
        pages = [
            PageSocket(port=server.port, cookie=cookie, session=session.uuid) for cookie in cookies
        ]
        began = asyncio.run(_converse(pages, names, seconds))
    ages = [*_ages(pages, names, began)]
    orders = {json.dumps(_rows(page)) for page in pages}
    sent = sum(len(moments) for moments in began.values())
    texts = list(
        Turn.objects.filter(session=session, role="user").values_list("content", flat=True)
    )
    frames = max(sum('"people"' in text for _, text in page.received) for page in pages)
    return [
        Figure(name="20 people: age of a presence, median", value=percentile(ages, 0.5), unit="ms"),
        Figure(
            name="20 people: age of a presence, p95",
            value=percentile(ages, 0.95),
            unit="ms",
            at_most=MAX_AGE_MS,
        ),
        Figure(name="20 people: messages sent", value=sent),
        Figure(
            name="20 people: messages lost or doubled",
            value=abs(len(texts) - sent) + len(texts) - len(set(texts)),
            at_most=0,
        ),
        Figure(name="20 people: orders in which they read", value=len(orders), at_most=1),
        Figure(name="20 people: frames of presence to a page, each second", value=frames / seconds),
    ]


async def _converse(
    pages: list[PageSocket], names: list[str], seconds: float
) -> dict[str, list[int]]:
    """Let the people send messages, and return the times at which each started to type."""
    began: dict[str, list[int]] = {name: [] for name in names}
    for page in pages:
        await page.open()

    async def write(page: PageSocket, name: str) -> None:
        random = Random(name)
        end = monotonic_ns() + seconds * 1_000_000_000
        await asyncio.sleep(random.uniform(0, PAUSE_SECONDS[1]))
        while monotonic_ns() < end:
            began[name].append(monotonic_ns())
            await page.tell({"type": "typing", "is_writing": True})
            await asyncio.sleep(TYPING_SECONDS)
            await page.tell({"type": "typing", "is_writing": False})
            await page.send(f"{name} {len(began[name])}")
            await asyncio.sleep(random.uniform(*PAUSE_SECONDS))

    await asyncio.gather(*map(write, pages, names))
    for page in pages:
        await page.wait_until_idle(seconds=120)
    for page in pages:
        await page.close()
    return began


def _ages(
    pages: list[PageSocket], names: list[str], began: dict[str, list[int]]
) -> Iterator[float]:
    """Yield the milliseconds until each other page showed that somebody had started to type."""
    for page, own in zip(pages, names, strict=True):
        was: set[str] = set()
        told: dict[str, int] = dict.fromkeys(names, 0)
        for at, text in page.received:
            frame: dict[str, Any] = json.loads(text)
            if frame["type"] != "people":
                continue
            now = {one["name"] for one in frame["people"] if one["is_writing"]}
            for name in now - was - {own}:
                if told[name] < len(began[name]):
                    yield (at - began[name][told[name]]) / 1_000_000
                    told[name] += 1
            was = now


def _rows(page: PageSocket) -> list[int]:
    frames = (json.loads(text) for _, text in page.received if '"rows"' in text)
    return [row["seq"] for frame in frames if frame["type"] == "rows" for row in frame["rows"]]
