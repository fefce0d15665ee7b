"""The account that a session is given of its parent session."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from conversations.agent.window.manifest import rebuild_request
from conversations.archive.append import append
from conversations.archive.asides import make_marker
from conversations.archive.audit import AuditOrigin
from conversations.archive.forking import fork_session
from conversations.archive.messages import rewind_session
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.rights import REVIEWERS, quotable_sessions, role_group
from conversations.archive.sessions import (
    begin_anew,
    create_session,
    get_or_create_by_key,
    get_session,
)
from conversations.domain.turns import NewTurn
from conversations.models import AuditEntry, ModelCall, PromptText, Session, Workspace
from conversations.runtime.service import Runtime
from tests.archive.state_story import answer, message, write
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import Page, ask

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "bead:ac-c0f.2"

type Begin = Callable[[Session], Session]


def say_something(session: Session) -> None:
    texts = (
        "We decided to use tabs for indentation.",
        "Noted.",
        "Where is the pump?",
        "In Tartu. " * 200,
    )
    turns = [
        NewTurn(role="assistant" if place % 2 else "user", content=text)
        for place, text in enumerate(texts)
    ]
    append(session.pk, session_uuid=session.uuid, turns=turns)


def of_key(garden: Session) -> Session:
    return get_or_create_by_key(garden.workspace, key=KEY, owner=garden.owner)


def expire(session: Session) -> None:
    Session.objects.filter(pk=session.pk).update(expires_at=timezone.now() - timedelta(hours=1))


def continued(garden: Session) -> Session:
    parent = of_key(garden)
    say_something(parent)
    expire(parent)
    return of_key(garden)


def reset(garden: Session) -> Session:
    parent = of_key(garden)
    say_something(parent)
    new = begin_anew(garden.workspace, key=KEY, owner=garden.owner)
    expire(parent)
    get_or_create_by_key(garden.workspace, key=KEY, owner=garden.owner)
    Session.objects.filter(pk=parent.pk).update(expired_at=timezone.now())
    return new


def forked(garden: Session) -> Session:
    say_something(garden)
    fork = create_session(garden.workspace, owner=garden.owner, continues=garden)
    Session.objects.filter(pk=fork.pk).update(fork_turn=2)
    return fork


def forked_for_a_program(garden: Session) -> Session:
    say_something(garden)
    return create_session(garden.workspace, owner=garden.owner, continues=garden, channel="api")


def without_turns(garden: Session) -> Session:
    return create_session(garden.workspace, owner=garden.owner, continues=garden)


def list_quotable(session: Session) -> list[Session]:
    return list(quotable_sessions(session.pk, session.owner_id))


async def first_message(runtime: Runtime, wire: WireThread, session: Session) -> str:
    session = await Session.objects.select_related("workspace", "owner").aget(pk=session.pk)
    run = await ask(runtime, session, "hello")
    assert run.state == "completed", run.error_code
    given = "\n".join(block["text"] for block in wire.requests[-1]["messages"][0]["content"])
    return given.partition("\n[Session state, kept by the archive")[0]


async def test_a_continuing_session_is_told_about_the_expired_one(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    session = await sync_to_async(continued)(garden)
    parent = await Session.objects.aget(pk=session.parent_id)
    given = await first_message(runtime, wire, session)
    lines = given.splitlines()
    told = f"[This session goes on from an expired one, session {parent.uuid}, which has 4 turns."
    assert lines[0].startswith(told)
    assert "tabs for indentation" in given.partition("\n")[2]
    assert "- turn 3, user: Where is the pump?" in lines
    [answer] = [line for line in lines if line.startswith("- turn 4, assistant: In Tartu.")]
    assert len(answer) < 900
    assert f'[conversation_recall with session="{parent.uuid}" looks further back in it.]' in lines
    assert given.endswith("hello")
    quotable = await sync_to_async(list_quotable)(session)
    assert quotable == [parent]


def forked_before_more_was_said(garden: Session) -> Session:
    write(garden, message("We use tabs"), answer("Noted."), message("Bad"))
    marker, notice = make_marker(3, 3, is_aside=True)
    append(garden.pk, session_uuid=garden.uuid, turns=[marker], events=[notice])
    write(garden, message("Where is the pump?"), answer("In Tartu."))
    assert garden.owner is not None
    fork = fork_session(get_session(garden.uuid), turn=6, owner=garden.owner)
    write(garden, message("Never use any tool."), answer("LATER"))
    return fork


def forked_from_a_branch(garden: Session) -> Session:
    fork = forked_before_more_was_said(garden)
    rewind_session(get_session(garden.uuid), from_turn=5, actor_pk=None)
    write(garden, message("Never plant beans."), answer("LATER"))
    return fork


@pytest.mark.parametrize("begin", [forked_before_more_was_said, forked_from_a_branch])
async def test_a_fork_is_told_about_its_parent_as_it_was_when_forked(
    runtime: Runtime, wire: WireThread, garden: Session, begin: Begin
) -> None:
    session = await sync_to_async(begin)(garden)
    given = await first_message(runtime, wire, session)
    assert given.startswith(f"[This session is a fork of session {garden.uuid}, which ")
    told = given.partition("looks further back in it.]")[0]
    assert "which had 6 turns then" in told
    assert "We use tabs" in told
    assert "- turn 5, user: Where is the pump?\n- turn 6, assistant: In Tartu." in told
    assert not any(word in told for word in ("Bad", "Never", "LATER"))
    call = await ModelCall.objects.aget(session=session)
    assert (await sync_to_async(rebuild_request)(call.pk)).matches


@pytest.mark.parametrize("begin", [reset, forked_for_a_program, without_turns])
async def test_a_parent_that_cannot_be_quoted_is_not_mentioned(
    runtime: Runtime, wire: WireThread, garden: Session, begin: Begin
) -> None:
    session = await sync_to_async(begin)(garden)
    assert session.parent_id is not None
    assert await first_message(runtime, wire, session) == "hello"


async def test_a_person_who_is_not_a_member_is_told_nothing_of_the_parent(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    session = await sync_to_async(forked)(garden)
    await Session.objects.filter(pk=session.pk).aupdate(
        owner=await User.objects.acreate(username="eve")
    )
    assert await first_message(runtime, wire, session) == "hello"


def find_tables(word: str) -> list[str]:
    """Return the names of the models that have the word in a row."""
    models = apps.get_app_config("conversations").get_models()
    rows = {model.__name__: model._default_manager.values_list() for model in models}
    return [name for name, found in rows.items() if word in str(list(found))]


async def test_the_account_of_the_parent_is_part_of_the_manifest(
    runtime: Runtime, wire: WireThread, garden: Session, client: Client
) -> None:
    session = await sync_to_async(continued)(garden)
    parent = await Session.objects.aget(pk=session.parent_id)
    await first_message(runtime, wire, session)
    await Workspace.objects.aupdate(root="/where/it/lies/now")
    call = await ModelCall.objects.select_related("run").aget(session=session)
    rebuilt = await sync_to_async(rebuild_request)(call.pk)
    assert rebuilt.matches
    assert rebuilt.request is not None
    assert rebuilt.request.messages == wire.requests[-1]["messages"]

    def see_panel() -> str:
        client.force_login(garden.owner)
        return client.get(reverse("session_window", args=[session.uuid])).content.decode()

    page = await sync_to_async(see_panel)()
    assert f"{parent.uuid}, 4 turns" in " ".join(page.split())

    def read_as_reviewer() -> None:
        reviewer = User.objects.create_user("eve")
        reviewer.groups.add(role_group(REVIEWERS))
        client.force_login(reviewer)
        where = [session.uuid, call.run.uuid, call.ordinal]
        pages = [reverse(name, args=where) for name in ("model_call_text", "model_call_request")]
        for page in pages:
            assert "Where is the pump?" in client.get(page).text
        entered = AuditEntry.objects.filter(session=parent.uuid).order_by("number")
        assert list(entered.values_list("place", flat=True)) == pages

    await sync_to_async(read_as_reviewer)()

    def purge_parent() -> None:
        order, origin = PurgeRequest(reason="Told to."), AuditOrigin(name="test")
        purge(parent, order=order, origin=origin, now=timezone.now())

    await sync_to_async(purge_parent)()
    assert await sync_to_async(find_tables)("We decided") == []
    rebuilt = await sync_to_async(rebuild_request)(call.pk)
    assert (
        rebuilt.reason == "The session that this one was created from has been permanently deleted."
    )
    assert not rebuilt.is_damaged


async def test_a_purge_deletes_instructions_that_no_other_session_uses(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    def make() -> Session:
        return create_session(garden.workspace, owner=garden.owner, instructions="Water at dawn.")

    def purge_one(session: Session) -> int:
        order, origin = PurgeRequest(reason="Told to."), AuditOrigin(name="test")
        purge(session, order=order, origin=origin, now=timezone.now())
        return PromptText.objects.filter(text__contains="Water at dawn.").count()

    async def begin() -> Session:
        session = await sync_to_async(make)()
        await first_message(runtime, wire, session)
        return session

    def is_whole(session: Session) -> bool:
        return all(
            rebuild_request(call.pk).matches for call in ModelCall.objects.filter(session=session)
        )

    await first_message(runtime, wire, garden)  # has no instructions of its own
    first, second = await begin(), await begin()
    assert await sync_to_async(purge_one)(first) == 1
    assert await sync_to_async(is_whole)(second)
    assert await sync_to_async(purge_one)(second) == 0
    third = await begin()
    assert await sync_to_async(is_whole)(third)
    assert await sync_to_async(is_whole)(garden)

    # The first answer of the fourth session is running during the purge.
    wire.enqueue(Scenario(hang_after=1))
    fourth = await sync_to_async(make)()
    page = Page(runtime, fourth)
    await runtime.send(fourth, client_id="client-01", text="hello", user_pk=fourth.owner_id)
    await page.until(lambda: page.of_type("draft"))
    assert await sync_to_async(purge_one)(third) == 0
    await runtime.stop_run(fourth)
    await runtime.wait_idle(fourth.pk)
    await first_message(runtime, wire, fourth)
    assert await ModelCall.objects.filter(session=fourth).acount() == 2
    assert await sync_to_async(is_whole)(fourth)
