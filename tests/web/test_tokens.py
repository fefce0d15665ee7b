"""One's own API tokens: creating and revoking them on the page, and the command."""

import re
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from conversations.accounts.tokens import create_token, list_tokens
from conversations.models import ApiToken

from .conftest import browser_of

pytestmark = pytest.mark.django_db

PAGE = "/account/tokens/"


def make(client: Client, **values: Any) -> Any:
    return client.post(PAGE, {"name": "Deploys", "scopes": ["read"], "days": "7"} | values)


def works(token: str) -> bool:
    headers = {"Authorization": f"Bearer {token}"}
    return Client().get("/api/v1/workspaces", headers=headers).status_code == 200


def test_a_token_is_shown_once_and_works_until_it_is_revoked(user: User) -> None:
    browser = browser_of(user)
    shown = make(browser)
    [token] = re.findall(r'value="(loom_[\w-]{43})"', shown.text)
    assert shown["Cache-Control"] == "no-store"
    assert works(token)
    page = browser.get(PAGE).text
    assert token not in page
    assert "Deploys" in page
    assert re.search(r"expires <time data-relative datetime", page)  # not only a time of day
    [kept] = list_tokens(user.pk)
    assert kept.expires_at is not None
    assert 6 <= (kept.expires_at - timezone.now()).days <= 7
    assert browser.post(f"{PAGE}{kept.pk}/revoke/")["Location"] == PAGE
    assert not works(token)
    page = browser.get(PAGE).text
    assert "Deploys" not in page
    assert "Token revoked." in page


@pytest.mark.parametrize(
    "values",
    [{"name": " "}, {"scopes": []}, {"scopes": ["all"]}, {"days": "91"}, {"days": ""}],
)
def test_invalid_token_shows_an_error_beside_its_field(user: User, values: dict[str, Any]) -> None:
    answer = make(browser_of(user), **values)
    assert answer.status_code == 400
    assert 'class="error"' in answer.text
    assert not ApiToken.objects.exists()


def test_token_may_have_no_expiry_if_the_setting_allows_it(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "token_days", 0)
    assert make(browser_of(user), days="").status_code == 200
    assert list_tokens(user.pk)[0].expires_at is None


def test_token_of_another_person_is_not_found(user: User, other_user: User) -> None:
    create_token(user, name="x", scopes=["read"], lifetime=None)
    pk = list_tokens(user.pk)[0].pk
    assert browser_of(other_user).post(f"{PAGE}{pk}/revoke/").status_code == 404
    assert list_tokens(user.pk)


def test_the_command_prints_a_token_that_works(
    user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("create_token", "ann", "--name", "Deploys", "--scope", "read", "--days", "3")
    assert works(capsys.readouterr().out.strip())
    assert list_tokens(user.pk)[0].scopes == "read"
    call_command("create_token", "ann", "--name", "Others")
    assert list_tokens(user.pk)[0].scopes == "read write"


@pytest.mark.parametrize(
    "options", [("nobody", "--name", "x"), ("ann", "--name", "x", "--days", "91")]
)
def test_command_refuses_an_unknown_person_or_too_many_days(
    user: User, options: tuple[str, ...]
) -> None:
    with pytest.raises(CommandError):
        call_command("create_token", *options)
    assert not ApiToken.objects.exists()
