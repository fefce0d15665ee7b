"""Who is let in, how often, and how errors look."""

from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from conversations.accounts.tokens import Caller, create_token, list_tokens, revoke_token
from conversations.api import middleware
from conversations.models import ApiToken, Workspace
from tests.web.conftest import browser_of

from .conftest import caller_of, token_of

pytestmark = pytest.mark.django_db

WORKSPACES = "/api/v1/workspaces"


def test_a_token_opens_what_its_person_may_see(workspace: Workspace, owner: Client) -> None:
    answer = owner.get(WORKSPACES)
    assert answer.status_code == 200
    assert [one["slug"] for one in answer.json()["items"]] == [workspace.slug]
    stranger = caller_of(User.objects.create_user("stranger"))
    assert stranger.get(WORKSPACES).json()["items"] == []
    answer = stranger.get(f"{WORKSPACES}/{workspace.slug}")
    assert answer.status_code == 404
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "not_found"


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer loom_wrong", "Basic bG9vbTp4", "loom_x"])
def test_nobody_is_let_in_without_a_token_that_works(given: str) -> None:
    answer = Client(headers={"Authorization": given} if given else {}).get(WORKSPACES)
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"].startswith("Bearer")
    assert answer.json()["code"] == "signed_out"


def test_a_token_ends(user: User) -> None:
    expired = create_token(user, name="Old", scopes=["read"], lifetime=timedelta(days=1))
    ApiToken.objects.update(expires_at=timezone.now())
    revoked = token_of(user)
    revoke_token(user.pk, token_pk=list_tokens(user.pk)[0].pk)
    closed = token_of(person := User.objects.create_user("closed"))
    person.is_active = False
    person.save()
    for token in (expired, revoked, closed):
        answer = Client(headers={"Authorization": f"Bearer {token}"}).get(WORKSPACES)
        assert answer.status_code == 401


def test_a_token_is_kept_as_its_digest_and_says_when_it_was_used(user: User) -> None:
    token = token_of(user)
    kept = ApiToken.objects.get()
    assert token not in str(vars(kept))
    caller = Client(headers={"Authorization": f"Bearer {token}"})
    caller.get(WORKSPACES)
    used = list_tokens(user.pk)[0]
    assert used.last_used_at is not None
    assert used.last_address == "127.0.0.1"
    caller.get(WORKSPACES)
    assert list_tokens(user.pk)[0].last_used_at == used.last_used_at  # once a minute


def test_a_scope_that_the_token_has_not(user: User) -> None:
    answer = caller_of(user, scopes=["feed"]).get(WORKSPACES)
    assert answer.status_code == 403
    assert answer.json()["code"] == "insufficient_scope"


def test_a_browser_that_is_signed_in_calls_as_well(user: User) -> None:
    assert browser_of(user).get(WORKSPACES).status_code == 200


def test_what_is_not_there_and_what_is_not_possible_are_problems(owner: Client) -> None:
    for answer, status in (
        (owner.get("/api/v1/nowhere"), 404),
        (owner.get("/api/v1/workspaces/no%20slug"), 404),
        (owner.delete(WORKSPACES), 405),
    ):
        assert answer.status_code == status
        assert answer["Content-Type"] == "application/problem+json"
        assert answer.json()["status"] == status


def test_an_address_that_is_not_there_asks_for_no_form(user: User) -> None:
    strict = Client(enforce_csrf_checks=True, headers={"Authorization": f"Bearer {token_of(user)}"})
    assert strict.post("/api/v1/nowhere").status_code == 404


def test_calls_are_counted_for_each_token(
    user: User, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "api_rate", "2/hour")
    first, second, third = (owner.get(WORKSPACES) for _ in range(3))
    assert [first["X-RateLimit-Remaining"], second["X-RateLimit-Remaining"]] == ["1", "0"]
    assert third.status_code == 429
    assert third.json()["code"] == "too_many_requests"
    assert 0 < int(third["Retry-After"]) <= 3600
    assert caller_of(user).get(WORKSPACES).status_code == 200


def test_a_person_has_so_many_requests_at_a_time(
    workspace: Workspace, user: User, other_user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "MAX_REQUESTS_AT_ONCE", 2)
    own, other = caller_of(user), caller_of(other_user)
    mine = Caller(user=user, scopes=frozenset(), token_pk=None)
    with middleware.count_open(mine):
        assert own.get(WORKSPACES).status_code == 200
        with middleware.count_open(mine):
            refused = own.get(WORKSPACES)
            assert (refused.status_code, refused["Retry-After"]) == (429, "1")
            assert other.get(WORKSPACES).status_code == 200
    assert own.get(WORKSPACES).status_code == 200
    assert not middleware._requests


def test_calls_are_counted_by_the_process_while_redis_is_away(
    owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "redis_url", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(settings.LOOM, "api_rate", "1/hour")
    assert [owner.get(WORKSPACES).status_code for _ in range(2)] == [200, 429]
