"""Polling for writes of other processes costs the same for any number of pages."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import create_session
from conversations.models import Session, Workspace
from conversations.runtime.service import Runtime
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import Page, ask, fresh

pytestmark = pytest.mark.django_db(transaction=True)


async def test_the_number_of_queries_does_not_grow_with_the_pages(
    runtime: Runtime, garden: Session
) -> None:
    def count(sessions: list[int]) -> int:
        with CaptureQueriesContext(connection) as captured:
            runtime.watcher._read_changes(sessions, sessions)
        return len(captured)

    def more() -> list[int]:
        made = [create_session(garden.workspace, owner=garden.owner) for _ in range(20)]
        return [garden.pk, *(session.pk for session in made)]

    one = await sync_to_async(count)([garden.pk])
    many = await sync_to_async(count)(await sync_to_async(more)())
    assert one == many == 3


async def test_a_session_that_is_no_longer_watched_is_forgotten(
    runtime: Runtime, garden: Session
) -> None:
    runtime.watcher._rewinds[garden.pk] = 1
    async with asyncio.timeout(20):
        while runtime.watcher._rewinds:
            await asyncio.sleep(0.01)


async def test_a_purged_session_does_not_stop_the_check_of_the_others(
    runtime: Runtime, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    other = await sync_to_async(create_session)(garden.workspace, owner=garden.owner)
    pages = open_page(runtime), Page(runtime, other)
    await ask(runtime, garden, "hello")
    await runtime.watcher._check([garden.pk, other.pk])

    def change_both() -> None:
        order, origin = PurgeRequest(reason="Told to."), AuditOrigin(name="test")
        purge(garden, order=order, origin=origin, now=timezone.now())
        Session.objects.filter(pk=other.pk).update(title="Beans")

    await sync_to_async(change_both)()
    await runtime.watcher._check([garden.pk, other.pk])
    assert [frame["title"] for frame in pages[1].of_type("title")] == ["Beans"]


async def test_a_rewind_in_this_process_does_not_reload_the_page(
    runtime: Runtime, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    """The page was told which rows to replace, and a reload would lose its scroll position."""
    await ask(runtime, garden, "hello")
    page = open_page(runtime)
    await runtime.watcher._check([garden.pk])
    await runtime.regenerate(garden, client_id="retry-01", turn=None, user_pk=None)
    await runtime.wait_idle(garden.pk)
    await runtime.watcher._check([garden.pk])
    assert page.of_type("rewound")
    assert page.of_type("reload") == []


async def test_a_rewind_in_another_process_reloads_the_page(
    runtime: Runtime, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    await ask(runtime, garden, "hello")
    page = open_page(runtime)
    await runtime.watcher._check([garden.pk])
    rewind = sync_to_async(append_rewind)
    await rewind(await fresh(garden), from_turn=2, from_seq=2, reason="reset", actor_pk=None)
    await runtime.watcher._check([garden.pk])
    await runtime.watcher._check([garden.pk])
    assert len(page.of_type("reload")) == 1


async def test_a_title_or_model_set_in_another_process_is_sent_to_pages(
    runtime: Runtime, garden: Session, open_page: Callable[[Runtime], Page], wire: WireThread
) -> None:
    """Each change is sent once, even while this process answers and right after a greeting."""
    page = open_page(runtime)
    wire.enqueue(Scenario(words=2000, rate=50))
    await runtime.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    await page.until(lambda: bool(page.of_type("draft")))
    await runtime.catch_up(garden.uuid, cursor=None, rewinds=None, hello=True)
    sessions, workspaces = Session.objects.filter(pk=garden.pk), Workspace.objects

    def models() -> list[str]:
        return [frame["model"] for frame in page.of_type("model")]

    await sessions.aupdate(title="Beans", model="claude-opus-5")
    await page.until(lambda: models() == ["claude-opus-5"])
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)
    await sessions.aupdate(model="")
    await page.until(lambda: models()[1:] == [runtime.models.model_for("")])
    await workspaces.filter(pk=garden.workspace_id).aupdate(default_model="claude-haiku-4-5")
    await page.until(lambda: models()[2:] == ["claude-haiku-4-5"])
    assert [frame["title"] for frame in page.of_type("title")].count("Beans") == 1


async def test_messages_queued_by_another_process_are_sent_to_pages(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    """The page is in the process that answers, and gets each process's changes once."""
    wire.enqueue(Scenario(words=2000, rate=50))
    here, there = await start_runtime(watch_interval=600), await start_runtime()
    page = open_page(here)
    await here.send(garden, client_id="client-1", text="go", user_pk=None)

    def queues() -> list[list[str]]:
        return [[item["text"] for item in frame["items"]] for frame in page.of_type("queue")]

    queued = await there.send(garden, client_id="client-2", text="from there", user_pk=None)
    await here.watcher._check([garden.pk])
    await here.send(garden, client_id="client-3", text="from here", user_pk=None)
    await there.withdraw(garden, run=queued.run, user_pk=garden.owner_id)
    for _ in range(2):
        await here.watcher._check([garden.pk])
    assert queues() == [["from there"], ["from there", "from here"], ["from here"]]
    await here.stop_run(garden)


async def test_a_withdrawn_messages_row_is_sent_before_the_new_queue(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    other_user: User,
    open_page: Callable[[Runtime], Page],
) -> None:
    """The author's page takes the message back from the queue that it still shows.

    The order is the same in the process that executes the run.
    """
    wire.enqueue(Scenario(words=2000, rate=50))
    here, there = await start_runtime(watch_interval=600), await start_runtime()
    page = open_page(here)
    await here.send(garden, client_id="client-1", text="go", user_pk=garden.owner_id)
    queued = await here.send(garden, client_id="client-2", text="beans", user_pk=other_user.pk)
    await there.withdraw(garden, run=queued.run, user_pk=garden.owner_id)
    page.frames.clear()
    await here.watcher._check([garden.pk])
    told = [frame for frame in page.frames if frame["type"] in ("rows", "queue")]
    assert [frame["type"] for frame in told] == ["rows", "queue"]
    assert f'data-withdrawn="{queued.run}"' in told[0]["rows"][-1]["html"]
    await here.stop_run(garden)
