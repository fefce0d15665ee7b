"""Sessions by the API: listed, begun, read, changed and rewound."""

import os
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from conversations.archive.session_records import SessionFilter
from conversations.archive.sessions import create_session, get_session, release_expired_key
from conversations.archive.workspaces import create_workspace
from conversations.domain.session_keys import MEMBER_CHANNELS
from conversations.models import Rewind, Run, Session, Turn, Workspace
from tests.web.conftest import runtime_ends, say  # noqa: F401 (a fixture)

from .conftest import caller_of, token_of

pytestmark = pytest.mark.django_db

SESSIONS = "/api/v1/sessions"
OF_GARDEN = "/api/v1/workspaces/garden/sessions"


def address_of(session: Session, part: str = "") -> str:
    return f"{SESSIONS}/{session.uuid}{part}"


def titles(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [one["title"] for one in answer.json()["items"]]


def patch(client: Client, session: Session, **values: Any) -> Any:
    return client.patch(address_of(session), values, content_type="application/json")


def begin(client: Client, **values: Any) -> Any:
    return client.post(OF_GARDEN, values, content_type="application/json")


def several(workspace: Workspace, owner: User, count: int) -> list[Session]:
    now = timezone.now()
    return [
        create_session(
            workspace, owner=owner, title=f"{number}", created_at=now + timedelta(seconds=number)
        )
        for number in range(count)
    ]


def test_a_new_session_is_found_at_its_location(workspace: Workspace, owner: Client) -> None:
    answer = begin(owner, title="Beans", key="cli:beans", metadata={"row": 3})
    assert answer.status_code == 201, answer.content
    found = owner.get(answer["Location"]).json()
    assert found == answer.json()
    assert (found["title"], found["key"], found["channel"]) == ("Beans", "cli:beans", "cli")
    assert (found["metadata"], found["state"], found["turns"]) == ({"row": 3}, "idle", 0)
    again = begin(owner, key="cli:beans")
    assert (again.status_code, again.json()["code"]) == (409, "key_taken")


def test_invalid_values_are_refused(workspace: Workspace, owner: Client) -> None:
    for values, status, code in (
        ({"title": "a\x00b"}, 422, "invalid"),
        ({"title": "x" * 121}, 422, "invalid"),
        ({"title": " "}, 422, "invalid"),
        ({"model": "unheard-of"}, 400, "unknown_model"),
        ({"channel": "Über"}, 422, "invalid"),
        ({"key": "no channel"}, 400, "key_invalid"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, 400, "bad_expiry"),
        ({"expires_at": "2120-01-01T00:00:00"}, 422, "invalid"),
        ({"metadata": {"x": "y" * 70_000}}, 413, "metadata_too_large"),
        ({"metadata": {"a\ud800": 1}}, 422, "invalid"),
    ):
        answer = begin(owner, **values)
        assert (answer.status_code, answer.json()["code"]) == (status, code), values
    assert not Session.objects.exists()


@pytest.mark.parametrize("channel", sorted(MEMBER_CHANNELS))
def test_a_program_cannot_claim_a_members_only_channel(
    workspace: Workspace, owner: Client, channel: str
) -> None:
    answer = begin(owner, channel=channel)
    assert answer.status_code == 422
    assert "only members of the workspace read" in answer.text
    assert not Session.objects.exists()


NO_OBJECTS = (
    *(b"[" * 20_000, b'{"metadata": {"x": NaN}}', b'{"metadata": {"x": -1e999}}'),
    *(b"", b"null", b"\x80"),
)


def test_a_body_that_is_no_json_object_is_refused(workspace: Workspace, owner: Client) -> None:
    for body in NO_OBJECTS:
        answer = owner.post(OF_GARDEN, body, content_type="application/json")
        assert answer.status_code in (400, 422), body[:50]
        assert answer["Content-Type"] == "application/problem+json", body[:50]


def test_the_list_is_paged_to_the_end_and_back(
    workspace: Workspace, user: User, owner: Client
) -> None:
    several(workspace, user, 7)
    pages = [owner.get(f"{SESSIONS}?limit=3").json()]
    assert pages[0]["previous"] is None
    while pages[-1]["next"]:
        pages.append(owner.get(f"{SESSIONS}?limit=3&cursor={pages[-1]['next']}").json())
    shown = [[one["title"] for one in page["items"]] for page in pages]
    assert shown == [["6", "5", "4"], ["3", "2", "1"], ["0"]]
    back = [pages[-1]]
    while back[-1]["previous"]:
        back.append(owner.get(f"{SESSIONS}?limit=3&cursor={back[-1]['previous']}").json())
    assert [[one["title"] for one in page["items"]] for page in back] == shown[::-1]


def test_the_list_holds_readable_sessions_only(
    workspace: Workspace, user: User, other_user: User, owner: Client, tmp_path: Any
) -> None:
    create_session(workspace, owner=user, title="Beans")
    shed = create_workspace(root=tmp_path, name="Shed", slug="shed", owner=user)
    create_session(shed, owner=user, title="Rake")
    assert titles(owner.get(SESSIONS)) == ["Rake", "Beans"]
    assert titles(owner.get(f"{SESSIONS}?workspace=shed")) == ["Rake"]
    assert titles(owner.get(OF_GARDEN)) == ["Beans"]
    stranger = caller_of(other_user)
    assert titles(stranger.get(SESSIONS)) == []
    assert stranger.get(OF_GARDEN).status_code == 404
    assert stranger.get(f"{SESSIONS}?workspace=shed").status_code == 404


def test_the_list_is_filtered(workspace: Workspace, user: User, owner: Client) -> None:
    now = timezone.now()
    create_session(workspace, owner=user, title="Green beans", channel="cli", key="cli:a")
    old = create_session(
        workspace,
        owner=user,
        title="Old beans",
        key="bead:1",
        created_at=now,
        expires_at=now + timedelta(hours=1),
    )
    Session.objects.filter(pk=old.pk).update(expires_at=now)
    release_expired_key(old.uuid, now=timezone.now())
    create_session(workspace, owner=user, title="Peas")
    Session.objects.filter(title="Peas").update(archived_at=now)
    for query, expected in {
        "q=BEANS": {"Green beans", "Old beans"},
        "q=beans+green": {"Green beans"},
        "channel=cli": {"Green beans"},
        "key=cli:a": {"Green beans"},
        "key=bead:1": {"Old beans"},
        "archived=true": {"Peas"},
        "archived=false": {"Green beans", "Old beans"},
        "expired=true": {"Old beans"},
        "expired=false": {"Green beans", "Peas"},
    }.items():
        assert set(titles(owner.get(f"{SESSIONS}?{query}"))) == expected, query


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="PostgreSQL plans by what there is")
def test_a_channel_filter_uses_an_index(workspace: Workspace) -> None:
    """The query reads no sessions of other channels and sorts nothing."""
    wanted = SessionFilter(workspaces=(workspace.pk,), channel="discord").choose()
    found = wanted.filter(workspace__in=(workspace.pk,)).order_by("-last_active_at", "-pk")
    for page in (found, found.reverse()):
        plan = page[:20].explain()
        assert "session_of_channel (workspace_id=? AND channel=?)" in plan
        assert "TEMP B-TREE" not in plan


def test_forks_of_a_session_are_listed_to_its_readers(
    workspace: Workspace, session: Session, user: User, owner: Client, other_user: User
) -> None:
    fork = create_session(workspace, owner=user, title="Beans (branch 2)")
    Session.objects.filter(pk=fork.pk).update(parent=session, fork_turn=2)
    create_session(workspace, owner=user, title="Peas")
    address = f"{SESSIONS}?parent={session.uuid}"
    [found] = owner.get(address).json()["items"]
    assert (found["uuid"], found["parent"]) == (str(fork.uuid), str(session.uuid))
    assert titles(owner.get(f"{OF_GARDEN}?parent={fork.uuid}")) == []
    assert titles(caller_of(other_user).get(address)) == []
    assert owner.get(f"{SESSIONS}?parent=x").status_code == 422


def test_an_invalid_cursor_is_refused(workspace: Workspace, owner: Client) -> None:
    for cursor in ("x", "bmV4dCB4", "bmV4dCA0", "%00", "bmV4dCAyMDI2fjE"):
        answer = owner.get(f"{SESSIONS}?cursor={cursor}")
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_cursor"), cursor


def test_query_count_is_independent_of_the_number_of_sessions(
    workspace: Workspace, user: User, owner: Client, tmp_path: Any
) -> None:
    create_workspace(root=tmp_path, name="Shed", slug="shed", owner=user)
    several(workspace, user, 2)
    owner.get(SESSIONS)
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert owner.get(f"{SESSIONS}?limit=40").status_code == 200
        counts.append(len(queries))
        several(workspace, user, 30)
    assert counts[0] == counts[1] <= 3


def test_a_reviewers_list_shows_titles_only(session: Session, make_person: Any) -> None:
    say(session, "Plant the beans", "In May")
    told = {"instructions": "The key is 4711.", "metadata": '{"key":4711}'}
    Session.objects.filter(pk=session.pk).update(**told)
    reviewer = caller_of(make_person("reviewer"))
    assert titles(reviewer.get(SESSIONS)) == []
    listed = reviewer.get(OF_GARDEN)
    [shown] = listed.json()["items"]
    assert shown["preview"] is None
    assert "4711" not in listed.text
    [own] = caller_of(session.owner).get(OF_GARDEN).json()["items"]
    assert own["preview"] == "In May"


def test_a_patch_changes_only_the_given_fields(session: Session, owner: Client) -> None:
    soon = (timezone.now() + timedelta(days=1)).isoformat()
    patch(owner, session, metadata={"a": 1, "b": 2})
    answer = patch(
        owner, session, title="Beans", pinned=True, metadata={"a": None, "c": 3}, expires_at=soon
    )
    assert answer.status_code == 200, answer.content
    found = owner.get(address_of(session)).json()
    assert found == answer.json()
    assert (found["title"], found["metadata"]) == ("Beans", {"b": 2, "c": 3})
    assert found["pinned_at"]
    assert found["expires_at"]
    assert patch(owner, session, archived=True).json()["archived_at"]
    last = patch(owner, session, archived=False, expires_at=None).json()
    assert (last["archived_at"], last["expires_at"], last["title"]) == (None, None, "Beans")


def test_a_patch_with_one_refused_value_changes_nothing(session: Session, owner: Client) -> None:
    Session.objects.filter(pk=session.pk).update(expires_at=timezone.now())
    answer = patch(owner, session, title="Beans", expires_at=None)
    assert (answer.status_code, answer.json()["code"]) == (409, "session_expired")
    assert get_session(session.uuid).title == ""


def test_an_expired_archived_session_cannot_be_restored(session: Session, owner: Client) -> None:
    now = timezone.now()
    Session.objects.filter(pk=session.pk).update(expires_at=now, archived_at=now)
    answer = patch(owner, session, archived=False, expires_at=None)
    assert (answer.status_code, answer.json()["code"]) == (409, "session_expired")
    assert get_session(session.uuid).archived_at == now


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends")
async def test_a_rewind_marks_the_following_turns_and_deletes_none(
    session: Session, user: User
) -> None:
    await sync_to_async(say)(session, "Plant the beans", "In May", "And peas?", "In March")
    token = await sync_to_async(token_of)(user)

    async def rewind(from_turn: int) -> Any:
        return await AsyncClient().post(
            address_of(session, "/rewind"),
            {"from_turn": from_turn},
            content_type="application/json",
            headers={"Authorization": f"Bearer {token}"},
        )

    answers = [await rewind(from_turn) for from_turn in (3, 3, 1, 5, 2)]
    assert [answer.status_code for answer in answers] == [200, 400, 200, 400, 400]
    assert answers[0].json()["rewinds"] == 1
    marks = [(mark.from_turn, mark.to_turn, mark.reason) async for mark in Rewind.objects.all()]
    assert marks == [(3, 4, "reset"), (1, 4, "reset")]
    assert await Turn.objects.acount() == 4
    await Run.objects.acreate(
        session=session, client_id="x" * 8, state="queued", created_at=timezone.now()
    )
    busy = await rewind(1)
    assert (busy.status_code, busy.json()["code"]) == (409, "session_busy")


def test_a_listed_model_can_be_chosen_for_a_session(owner: Client, session: Session) -> None:
    offered = owner.get("/api/v1/models").json()["items"]
    assert {"id", "name", "max_input_tokens", "max_output_tokens"} == offered[0].keys()
    changed = owner.patch(
        f"/api/v1/sessions/{session.uuid}",
        {"model": offered[0]["id"]},
        content_type="application/json",
    )
    assert changed.json()["model"] == offered[0]["id"]
