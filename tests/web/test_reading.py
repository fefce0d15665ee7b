"""How far a person has read: marks in the session list, and the line in the transcript."""

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import Client

from conversations.models import ReadingPosition, Session, Workspace

from .conftest import browser_of, say
from .sockets import open_socket

UNREAD = "data-unread"


@sync_to_async
def unread_marks(browser: Client, *addresses: str) -> list[int]:
    return [browser.get(address).text.count(UNREAD) for address in addresses]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends")
async def test_session_is_unread_if_turns_came_after_its_page_was_closed(
    workspace: Workspace, session: Session, user: User, viewer: User
) -> None:
    owner, other = await sync_to_async(browser_of)(user), await sync_to_async(browser_of)(viewer)
    chat, lists = f"/s/{session.uuid}/", ("/w/garden/", "/w/garden/settings/")
    settings, read_through = lists[1], 'data-read="{}"'.format
    await sync_to_async(say)(session, "Plant the beans")
    assert await unread_marks(owner, *lists) == [0, 0]  # never opened

    socket = await open_socket(session, user)
    await socket.settle()
    await sync_to_async(say)(session, "When?")
    assert await unread_marks(owner, *lists) == [0, 0]  # its page is open
    await socket.close()
    assert await unread_marks(owner, *lists) == [0, 0]
    assert read_through("") in (await sync_to_async(owner.get)(chat)).text

    await sync_to_async(say)(session, "In May", "Good")
    assert await unread_marks(owner, *lists, chat) == [1, 1, 0]  # not on its own page
    assert await unread_marks(other, "/w/garden/") == [0]
    # A GET stores nothing, because the browser may have prefetched the page.
    for _ in range(2):
        page = (await sync_to_async(owner.get)(chat)).text
        assert read_through(2) in page
        assert "Go to the first" not in page

    socket = await open_socket(session, user)
    await socket.settle()
    await socket.close()
    assert await unread_marks(owner, settings) == [0]
    assert [p async for p in ReadingPosition.objects.values_list("user", "turn")] == [(user.pk, 4)]


def test_page_that_begins_later_links_to_the_first_new_turn(
    owner: Client, session: Session, user: User, settings: object
) -> None:
    say(session, *("text" for _ in range(settings.LOOM.page_size + 9)))  # type: ignore[attr-defined]
    ReadingPosition.objects.create(session=session, user=user, turn=3)
    assert f'<a href="/s/{session.uuid}/t/4/">Go to the first</a>' in (
        owner.get(f"/s/{session.uuid}/").text
    )
