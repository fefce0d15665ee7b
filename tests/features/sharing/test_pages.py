"""Share links for people without an account: the content that they show and hide."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core import signing
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from conversations.archive.append import NewEvent, append
from conversations.archive.attachments import save_attachment
from conversations.archive.audit import AuditOrigin
from conversations.archive.forking import fork_session
from conversations.archive.messages import edit_message
from conversations.archive.model_calls import save_title
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import get_session, rename_session
from conversations.domain.events import AssistantText, ToolCallCompleted, ToolCallStarted
from conversations.domain.runs import COMPACT, COMPLETED, CONTINUE, MESSAGE
from conversations.domain.turns import NewTurn
from conversations.features.sharing import service
from conversations.features.sharing.models import ShareLink
from conversations.models import AuditEntry, Run, Session
from tests.archive.files import image_bytes, send_file
from tests.features.sharing.matrix import SHARE
from tests.web.conftest import browser_of, say
from tests.web.test_storage_errors import lost_after

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "share_links", True)


@pytest.fixture(params=[True, False], ids=["journal", "turns"])
def talk(request: pytest.FixtureRequest, session: Session) -> Session:
    """Return a session of two exchanges; in the second one, the model thinks and calls a tool.

    The turns of the tool call have events only with the parameter ``journal``.
    """
    is_covered, path = request.param, {"path": "hidden/path.txt"}
    say(session, "Plant the beans", "In May", "And the peas?")
    blocks = [
        {"type": "thinking", "thinking": "secret thought", "signature": "x"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "read_file", "input": path},
    ]
    calls = [{"id": "c1", "name": "read_file", "input": path}]
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[
            NewTurn(
                role="assistant",
                content="I look.",
                blocks=json.dumps(blocks),
                tool_calls=json.dumps(calls),
            ),
            NewTurn(role="tool", content="secret output", tool_call_id="c1", tool_name="read_file"),
        ],
        events=[
            NewEvent(payload=AssistantText(text="I look.", thinking="secret thought"), new=0),
            NewEvent(
                payload=ToolCallStarted(call_id="c1", name="read_file", arguments=path), new=0
            ),
            NewEvent(
                payload=ToolCallCompleted(
                    call_id="c1", name="read_file", arguments=path, ok=True, output="secret output"
                ),
                new=1,
            ),
        ]
        if is_covered
        else [],
    )
    say(session, "Thanks")
    return get_session(session.uuid)


def share(session: Session, user: User, **what: Any) -> ShareLink:
    new = {"from_turn": 1, "to_turn": session.turn_count, "days": 1} | what
    return service.create_share_link(session, **new, origin=AuditOrigin(user=user))


def address(link: ShareLink) -> str:
    return reverse("shared", args=[service.share_token(link)])


def visit(link: ShareLink, **query: str) -> str:
    response = Client().get(address(link), query)
    assert response.status_code == 200
    return response.text


def test_a_link_shows_the_messages_to_a_person_without_an_account(
    talk: Session, user: User
) -> None:
    html = visit(share(talk, user))
    assert "Plant the beans" in html
    assert "I look." in html
    assert "shared by ann" in html
    for secret in ("secret thought", "secret output", "hidden/path.txt"):
        assert secret not in html


def test_thinking_and_tools_are_shown_only_if_chosen(talk: Session, user: User) -> None:
    html = visit(share(talk, user, with_tools=True))
    for text in ("secret thought", "secret output", "hidden/path.txt"):
        assert text in html


def test_a_call_whose_result_is_not_shared_is_not_called_waiting(talk: Session, user: User) -> None:
    html = visit(share(talk, user, to_turn=4, with_tools=True))
    assert "hidden/path.txt" in html
    assert "Waiting" not in html


@pytest.mark.parametrize("with_tools", [False, True])
def test_a_shared_page_has_no_links_into_the_product(
    talk: Session, user: User, with_tools: bool
) -> None:
    html = visit(share(talk, user, with_tools=with_tools))
    rows = html[html.index('aria-label="Transcript"') :]
    assert "/s/" not in rows
    assert str(talk.uuid) not in html
    assert "<form" not in rows


def test_a_title_from_a_replaced_message_is_no_longer_shown(session: Session, user: User) -> None:
    say(session, "The password is hunter2", "I see")
    link = share(session, user)
    assert "hunter2" in visit(link)
    append_rewind(session, from_turn=1, from_seq=1, reason="edit", actor_pk=None)
    say(session, "Plant the beans")
    assert "hunter2" not in visit(link)
    Session.objects.update(title="Beans", title_is_chosen=True)
    assert "Beans</h1>" in visit(link)


def test_a_title_from_an_answer_is_shown_only_with_the_answer(session: Session, user: User) -> None:
    say(session, "What is in the letter?", "It dismisses Bob.")
    save_title(session.pk, title="Dismissal of Bob")
    # Without a run of the first message, another program made the title, perhaps of other turns. It
    # may be continued or summarised here.
    for kind in (COMPACT, CONTINUE, MESSAGE):
        assert "Dismissal" not in visit(share(session, user))
        ended = {"state": COMPLETED, "created_at": timezone.now()}
        Run.objects.create(session=session, user_turn=1, client_id=kind, kind=kind, **ended)
    session = get_session(session.uuid)
    assert "Dismissal" not in visit(share(session, user, to_turn=1))
    link = share(session, user)
    assert "Dismissal of Bob</h1>" in visit(link)
    append_rewind(session, from_turn=2, from_seq=2, reason="regenerate", actor_pk=None)
    assert "Dismissal" not in visit(link)


def test_the_title_of_a_fork_from_a_replaced_message_is_not_shown(
    session: Session, user: User
) -> None:
    say(session, "The password is hunter2", "I see")
    fork = fork_session(get_session(session.uuid), turn=2, owner=user)
    assert fork.title == "The password is hunter2 (fork)"
    append_rewind(fork, from_turn=1, from_seq=1, reason="edit", actor_pk=None)
    say(fork, "Plant the beans")
    assert "hunter2" not in visit(share(get_session(fork.uuid), user))
    rename_session(session, title="Beans")
    named = fork_session(get_session(session.uuid), turn=2, owner=user)
    assert "Beans (fork)</h1>" in visit(share(named, user))


def test_a_title_from_a_later_message_is_shown_only_with_it(session: Session, user: User) -> None:
    say(session, "", "A picture of a bed.")
    say(session, "The password is hunter2", "I see")
    assert "hunter2" not in visit(share(session, user, from_turn=1, to_turn=2))
    link = share(session, user)
    assert "hunter2</h1>" in visit(link)
    append_rewind(get_session(session.uuid), from_turn=3, from_seq=3, reason="edit", actor_pk=None)
    assert "hunter2" not in visit(link)


def test_only_the_shared_range_and_a_title_from_it_are_shown(talk: Session, user: User) -> None:
    Session.objects.filter(pk=talk.pk).update(title="Plant the beans")
    html = visit(share(get_session(talk.uuid), user, from_turn=2, to_turn=3))
    assert "In May" in html
    assert "And the peas?" in html
    assert "Plant the beans" not in html
    assert "I look." not in html
    outside = visit(share(talk, user, from_turn=2, to_turn=3), **{"from": "1"})
    assert "Plant the beans" not in outside


def test_turns_that_are_added_or_replaced_later_are_not_shown(talk: Session, user: User) -> None:
    link = share(talk, user)
    say(talk, "Something private")
    append_rewind(get_session(talk.uuid), from_turn=6, from_seq=5, reason="edit", actor_pk=None)
    html = visit(link)
    assert "Something private" not in html
    assert "Thanks" not in html
    assert "Plant the beans" in html


def test_a_long_shared_session_is_split_into_pages(
    session: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.features.sharing.views.MAX_PAGE_TURNS", 3)
    say(session, *(f"message {number}." for number in range(8)))
    link = share(session, user)
    seen, query = [], dict[str, str]()
    for _ in range(3):
        html = visit(link, **query)
        seen += re.findall(r"message (\d)\.", html[html.index("<section") :])
        following = re.search(r"\?from=(\d+)", html)
        query = {"from": following[1]} if following else {}
    assert seen == [str(number) for number in range(8)]
    assert not query


def test_only_requests_for_the_first_page_count_as_openings(talk: Session, user: User) -> None:
    link = share(talk, user)
    visit(link)
    visit(link)
    visit(link, **{"from": "3"})
    Client().head(address(link))
    link.refresh_from_db()
    assert link.opened_count == 2
    assert not AuditEntry.objects.exclude(action="shared").exists()


def test_headers_forbid_indexing_referrers_and_caching(talk: Session, user: User) -> None:
    response = Client().get(address(share(talk, user)))
    assert "noindex" in response["X-Robots-Tag"]
    assert response["Referrer-Policy"] == "no-referrer"
    assert "no-store" in response["Cache-Control"]
    assert '<meta name="robots" content="noindex' in response.text


def ended(link: ShareLink) -> str:
    ShareLink.objects.filter(pk=link.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    return address(link)


def revoked(link: ShareLink) -> str:
    service.revoke_share_link(link.session, link.uuid, origin=AuditOrigin(user=link.created_by))
    return address(link)


def forged(link: ShareLink) -> str:
    return reverse("shared", args=[f"{link.uuid.hex}:{'x' * 43}"])


def signed_by_another_key(link: ShareLink) -> str:
    token = signing.Signer(key="other", salt=service.SALTS[ShareLink]).sign(link.uuid.hex)
    return reverse("shared", args=[token])


def signed_for_something_else(link: ShareLink) -> str:
    return reverse("shared", args=[signing.Signer(salt="other").sign(link.uuid.hex)])


@pytest.mark.parametrize(
    "make", [ended, revoked, forged, signed_by_another_key, signed_for_something_else]
)
def test_an_ended_or_forged_link_returns_404(talk: Session, user: User, make: Any) -> None:
    response = Client().get(make(share(talk, user)))
    assert response.status_code == 404
    assert "Plant the beans" not in response.text
    assert "Ask the person who sent it for a new one." in response.text
    assert "Go to the workspaces" not in response.text


def test_switching_sharing_off_ends_all_links(
    talk: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = share(talk, user)
    monkeypatch.setattr(settings.LOOM, "share_links", False)
    assert Client().get(address(link)).status_code == 404
    chat = browser_of(user)
    page = reverse("session_share", args=[talk.uuid])
    assert "LOOM_SHARE_LINKS=yes" in chat.get(page).text
    assert chat.post(page, SHARE).status_code == 404
    assert page in chat.get(reverse("session", args=[talk.uuid])).text


def test_only_files_of_the_shared_turns_can_be_opened(talk: Session, user: User) -> None:
    uuids = [
        save_attachment(
            talk.pk, data=image_bytes(), name=f"{turn}.png", user_pk=user.pk, turn=turn
        ).uuid
        for turn in (1, 5, 6, None)
    ]

    def opened(link: ShareLink) -> list[int]:
        return [
            Client().get(f"{address(link)}files/{uuid}/{end}").status_code
            for uuid in uuids
            for end in ("", "thumb/")
        ]

    assert opened(share(talk, user, to_turn=5)) == [200, 200, *[404] * 6]
    assert opened(share(talk, user, to_turn=5, with_tools=True)) == [*[200] * 4, *[404] * 4]


def test_the_file_of_an_edited_message_needs_that_turn_to_be_shared(
    session: Session, user: User
) -> None:
    file = save_attachment(session.pk, data=image_bytes(), name="a.png", user_pk=user.pk)
    send_file(session, file)
    edited = edit_message(
        get_session(session.uuid), client_id="edit-1", turn=1, text="Again", user_pk=user.pk
    )
    words = json.dumps([{"type": "text", "text": f"It is {file.uuid}"}])
    [named_in_words] = append(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(role="user", content="It is this", blocks=words)],
    ).turns
    session.refresh_from_db()
    edited_turn = edited.turn or 0

    def opened(first: int, last: int) -> int:
        link = share(session, user, from_turn=first, to_turn=last)
        return Client().get(f"{address(link)}files/{file.uuid}/").status_code

    assert opened(edited_turn, edited_turn) == 200
    assert opened(1, 1) == 404
    assert opened(named_in_words, named_in_words) == 404


def test_the_owner_creates_sees_and_revokes_links(talk: Session, user: User) -> None:
    chat = browser_of(user)
    page = reverse("session_share", args=[talk.uuid])
    assert "Only members of the workspace" in chat.get(page).text
    chat.post(page, {"from_turn": 1, "to_turn": 3, "days": 7})
    link = ShareLink.objects.get()
    visit(link)
    html = chat.get(page).text
    assert f"http://testserver{address(link)}" in html
    assert "opened 1 time," in html
    chat.post(reverse("session_share_revoke", args=[talk.uuid, link.uuid]))
    assert Client().get(address(link)).status_code == 404
    assert address(link) not in chat.get(page).text
    assert list(AuditEntry.objects.order_by("number").values_list("action", flat=True)) == [
        "shared",
        "unshared",
    ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"from_turn": 0, "to_turn": 3, "days": 7}, "greater than or equal to 1"),
        ({"from_turn": 3, "to_turn": 2, "days": 7}, "must not come after the last"),
        ({"from_turn": 1, "to_turn": 99, "days": 7}, "less than or equal to 6"),
        ({"from_turn": 1, "to_turn": 3, "days": 31}, "less than or equal to 30"),
    ],
)
def test_a_wrong_range_is_refused_with_its_reason(
    talk: Session, user: User, data: dict[str, int], says: str
) -> None:
    response = browser_of(user).post(reverse("session_share", args=[talk.uuid]), data)
    assert response.status_code == 400
    assert says in response.text
    assert not ShareLink.objects.exists()


def test_a_session_has_a_limited_number_of_links(
    talk: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_SHARE_LINKS", 2)
    share(talk, user)
    share(talk, user)
    data = {"from_turn": 1, "to_turn": 3, "days": 7}
    response = browser_of(user).post(reverse("session_share", args=[talk.uuid]), data)
    assert "has 2 links" in response.text


@pytest.mark.django_db(transaction=True)
def test_an_opening_is_counted_once_if_the_connection_is_lost(
    client: Client, session: Session, user: User
) -> None:
    say(session, "Plant the beans")
    origin = AuditOrigin(user=user)
    link = service.create_share_link(session, from_turn=1, to_turn=1, days=3, origin=origin)
    client.raise_request_exception = False
    with lost_after(lambda sql: sql.startswith("UPDATE") and "sharelink" in sql) as counted:
        assert client.get(reverse("shared", args=[service.share_token(link)])).status_code == 503
    assert len(counted) == 1
    assert ShareLink.objects.get(pk=link.pk).opened_count == 1
