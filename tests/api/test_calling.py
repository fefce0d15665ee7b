"""Authentication, rate limits and error responses of the API."""

from datetime import timedelta
from typing import Any, Never

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


def test_a_token_gives_access_to_its_owners_workspaces_only(
    workspace: Workspace, owner: Client
) -> None:
    answer = owner.get(WORKSPACES)
    assert answer.status_code == 200
    assert [one["slug"] for one in answer.json()["items"]] == [workspace.slug]
    stranger = caller_of(User.objects.create_user("stranger"))
    assert stranger.get(WORKSPACES).json()["items"] == []
    answer = stranger.get(f"{WORKSPACES}/{workspace.slug}")
    assert answer.status_code == 404
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "not_found"


def test_a_missing_or_invalid_token_is_answered_with_401() -> None:
    for header in ("", "Bearer", "Bearer loom_wrong", "Basic bG9vbTp4", "loom_x"):
        answer = Client(headers={"Authorization": header} if header else {}).get(WORKSPACES)
        assert answer.status_code == 401, header
        assert answer["WWW-Authenticate"].startswith("Bearer")
        assert answer.json()["code"] == "signed_out"


def test_expired_revoked_and_closed_account_tokens_are_refused(user: User) -> None:
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


def test_a_token_is_stored_as_a_digest_with_its_last_use(user: User) -> None:
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


def test_a_signed_in_browser_may_call_the_api(user: User) -> None:
    assert browser_of(user).get(WORKSPACES).status_code == 200


def test_errors_404_and_405_are_answered_as_problem_json(owner: Client) -> None:
    for answer, status in (
        (owner.get("/api/v1/nowhere"), 404),
        (owner.get("/api/v1/workspaces/no%20slug"), 404),
        (owner.delete(WORKSPACES), 405),
    ):
        assert answer.status_code == status
        assert answer["Content-Type"] == "application/problem+json"
        assert answer.json()["status"] == status


def test_a_server_fault_is_logged_once(
    owner: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> Never:
        raise ZeroDivisionError

    owner.raise_request_exception = False
    monkeypatch.setattr(middleware, "read_body", fail)
    assert owner.get(WORKSPACES).json()["status"] == 500
    [record] = caplog.records
    assert record.exc_info


def test_posting_to_an_unknown_address_is_404_despite_csrf_checks(user: User) -> None:
    strict = Client(enforce_csrf_checks=True, headers={"Authorization": f"Bearer {token_of(user)}"})
    assert strict.post("/api/v1/nowhere").status_code == 404


def test_the_rate_limit_counts_each_token_separately(
    user: User, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "api_rate", "2/hour")
    first, second, third = (owner.get(WORKSPACES) for _ in range(3))
    assert [first["X-RateLimit-Remaining"], second["X-RateLimit-Remaining"]] == ["1", "0"]
    assert third.status_code == 429
    assert third.json()["code"] == "too_many_requests"
    assert 0 < int(third["Retry-After"]) <= 3600
    assert caller_of(user).get(WORKSPACES).status_code == 200


def test_concurrent_requests_of_a_person_are_limited(
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


def test_the_process_enforces_the_rate_limit_when_redis_is_down(
    owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "redis_url", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(settings.LOOM, "api_rate", "1/hour")
    assert [owner.get(WORKSPACES).status_code for _ in range(2)] == [200, 429]
