"""Sign-in by password and by link, limits on attempts, sign-out and password changes."""

from datetime import timedelta
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as BrowserSession
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from conversations.archive.workspaces import LINK_LIFETIME, create_sign_in_link
from conversations.models import Session, SignInLink

from .conftest import browser_of

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse"


def sign_in(client: Client, username: str = "ann", password: str = PASSWORD, **more: Any) -> Any:
    data = {"username": username, "password": password} | more.pop("data", {})
    return client.post(reverse("sign_in"), data, **more)


def is_signed_in(client: Client) -> bool:
    return client.get(reverse("home")).status_code == 200


def link_of(user: User) -> str:
    return reverse("sign_in_link", args=[create_sign_in_link(user)])


def test_a_password_signs_in(client: Client, user: User) -> None:
    response = sign_in(client)
    assert (response.status_code, response["Location"]) == (302, reverse("home"))
    assert is_signed_in(client)


def test_wrong_password_shows_an_error_and_keeps_only_the_username(
    client: Client, user: User
) -> None:
    response = sign_in(client, password="wrong horse")
    assert response.status_code == 200
    assert "The username or the password is wrong." in response.text
    assert 'value="ann"' in response.text
    assert "wrong horse" not in response.text
    assert not is_signed_in(client)


def test_unknown_username_gets_the_same_error_as_a_wrong_password(
    client: Client, user: User
) -> None:
    """The error must not reveal which usernames exist."""
    known = sign_in(client, password="x").context["form"].non_field_errors()
    unknown = sign_in(client, username="nobody", password="x").context["form"].non_field_errors()
    assert known == unknown


def test_closed_account_cannot_sign_in(client: Client, user: User) -> None:
    link = link_of(user)
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert sign_in(client).status_code == 200
    assert client.get(link).status_code == 410
    assert not is_signed_in(client)


def use_up_attempts(client: Client, **more: Any) -> HttpResponse:
    for _ in range(settings.LOOM.sign_in_attempts - 1):
        assert sign_in(client, password="x", **more).status_code == 200
    return sign_in(client, password="x", **more)


def test_too_many_attempts_answer_429_with_the_time_to_wait(client: Client, user: User) -> None:
    response = use_up_attempts(client)
    assert response.status_code == 429
    assert "Too many attempts. Try again in 15 minutes." in response.text
    assert 'name="password"' in response.text
    assert 'value="ann"' in response.text


def test_attempt_log_stores_no_request_data(client: Client, user: User) -> None:
    for _ in range(3):
        sign_in(client, password="x", data={"note": "word " * 1000})
    attempt = AccessAttempt.objects.get()
    assert attempt.failures_since_start == 3
    assert (attempt.get_data, attempt.post_data) == ("", "")


def test_lockout_refuses_the_right_password_too(client: Client, user: User) -> None:
    use_up_attempts(client)
    assert sign_in(client).status_code == 429
    assert not is_signed_in(client)


def test_lockout_ends_after_the_configured_minutes(client: Client, user: User) -> None:
    use_up_attempts(client)
    lock = timedelta(minutes=settings.LOOM.sign_in_lock_minutes)
    AccessAttempt.objects.update(attempt_time=timezone.now() - lock)
    assert sign_in(client).status_code == 302


def test_successful_sign_in_resets_the_attempt_count(client: Client, user: User) -> None:
    for _ in range(3):
        for _ in range(settings.LOOM.sign_in_attempts - 1):
            assert sign_in(Client(), password="x").status_code == 200
        assert sign_in(Client()).status_code == 302


def test_lockout_applies_to_one_username_at_one_address(
    client: Client, user: User, other_user: User
) -> None:
    use_up_attempts(client)
    assert sign_in(Client(), username="bob", password="battery staple").status_code == 302
    assert sign_in(Client(), REMOTE_ADDR="192.0.2.7").status_code == 302


def spray(**more: Any) -> Any:
    """Try one wrong password for each of many usernames, and return the last response."""
    for number in range(settings.LOOM.sign_in_address_attempts - 1):
        answer = sign_in(Client(), username=f"name{number}", password="x", **more)
        assert answer.status_code == 200
    return sign_in(Client(), username="last", password="x", **more)


@pytest.fixture
def few_per_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "sign_in_address_attempts", 7)


@pytest.mark.usefixtures("few_per_address")
def test_attempts_from_an_address_are_counted_across_usernames(client: Client, user: User) -> None:
    answer = spray()
    assert answer.status_code == 429
    assert "Too many attempts from your network address." in answer.text
    assert sign_in(client).status_code == 429
    assert not is_signed_in(client)
    assert sign_in(Client(), REMOTE_ADDR="192.0.2.7").status_code == 302
    assert client.get(link_of(user)).status_code == 302, "a link works meanwhile"


@pytest.mark.usefixtures("few_per_address")
def test_address_lockout_exempts_people_who_signed_in_from_there(
    client: Client, user: User, other_user: User
) -> None:
    assert sign_in(Client()).status_code == 302
    assert spray().status_code == 429
    assert sign_in(Client(), password="wrong").status_code == 200, "the name's own limit holds"
    assert sign_in(client).status_code == 302
    assert sign_in(Client(), username="bob", password="battery staple").status_code == 429


@pytest.mark.usefixtures("few_per_address")
def test_successful_sign_in_does_not_reset_the_count_of_the_address(
    client: Client, user: User
) -> None:
    for number in range(settings.LOOM.sign_in_address_attempts):
        assert sign_in(Client()).status_code == 302
        answer = sign_in(Client(), username=f"name{number}", password="x")
    assert answer.status_code == 429


@pytest.mark.usefixtures("few_per_address")
def test_ipv6_addresses_of_one_network_count_as_one(client: Client, user: User) -> None:
    for number in range(settings.LOOM.sign_in_address_attempts):
        address = f"2001:db8:1:2::{number:x}"
        answer = sign_in(Client(), username=f"name{number}", password="x", REMOTE_ADDR=address)
    assert answer.status_code == 429
    assert sign_in(client, REMOTE_ADDR="2001:db8:1:3::1").status_code == 302


def test_sign_in_link_works_during_a_lockout(client: Client, user: User) -> None:
    use_up_attempts(client)
    assert client.get(link_of(user)).status_code == 302
    assert is_signed_in(client)


@pytest.fixture
def behind_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "behind_tls_proxy", True)


@pytest.mark.usefixtures("behind_proxy")
def test_behind_a_proxy_the_last_forwarded_address_is_counted(client: Client, user: User) -> None:
    def attempt(forwarded: str, password: str) -> int:
        headers = {"X-Forwarded-For": forwarded}
        return int(sign_in(Client(), password=password, headers=headers).status_code)

    for number in range(settings.LOOM.sign_in_attempts):
        # The client can invent the entries before the proxy's own entry.
        last = attempt(f"203.0.113.{number}, 192.0.2.66", "x")
    assert last == 429
    assert attempt("198.51.100.1, 192.0.2.66", PASSWORD) == 429
    assert attempt("192.0.2.66, 198.51.100.1", PASSWORD) == 302


@pytest.mark.parametrize("address", ["", "nonsense", "fe80::1%eth0", "1" * 5000, "[::1]:99"])
@pytest.mark.usefixtures("behind_proxy")
def test_malformed_forwarded_address_causes_no_error(
    client: Client, user: User, address: str
) -> None:
    headers = {"X-Forwarded-For": address, "User-Agent": "\x01" + "a" * 3000}
    assert sign_in(client, password="x", headers=headers).status_code == 200


def test_without_a_proxy_x_forwarded_for_is_ignored(client: Client, user: User) -> None:
    for number in range(settings.LOOM.sign_in_attempts):
        headers = {"X-Forwarded-For": f"203.0.113.{number}"}
        last = sign_in(client, password="x", headers=headers)
    assert last.status_code == 429


HOSTILE = [
    "https://evil.example/",
    "//evil.example/",
    "///evil.example/",
    "/\\evil.example/",
    "\\\\evil.example/",
    "http:evil.example",
    "http:///evil.example/",
    "javascript:alert(1)",
    "data:text/html,x",
    " //evil.example/",
    "\t//evil.example/",
    "//testserver@evil.example/",
    "https://testserver.evil.example/",
]


@pytest.mark.parametrize("wanted", HOSTILE)
def test_next_never_redirects_to_another_site(client: Client, user: User, wanted: str) -> None:
    response = sign_in(client, data={"next": wanted})
    assert (response.status_code, response["Location"]) == (302, reverse("home"))
    response = client.get(reverse("sign_in"), {"next": wanted})
    assert (response.status_code, response["Location"]) == (302, reverse("home"))


def test_next_cannot_add_a_header(client: Client, user: User) -> None:
    response = sign_in(client, data={"next": "/\r\nSet-Cookie: evil=1"})
    assert "evil" not in response.cookies
    assert "\n" not in response["Location"]


def test_sign_in_redirects_to_next(client: Client, user: User, session: Session) -> None:
    page = reverse("session", args=[session.uuid])
    form = client.get(page, follow=True)
    assert f'name="next" value="{page}"' in form.text
    assert sign_in(client, data={"next": page})["Location"] == page


def test_next_to_the_sign_in_page_causes_no_redirect_loop(owner: Client) -> None:
    page = reverse("sign_in")
    for wanted in (page, f"{page}?next={page}"):
        response = owner.get(page, {"next": wanted}, follow=True)
        assert response.status_code == 200
        assert response.redirect_chain[-1][0] == reverse("home")


@pytest.mark.parametrize("name", ["a\x00b", "a" * 300, "💥", "", "’ OR 1=1 --"])
def test_malformed_username_causes_no_error(client: Client, user: User, name: str) -> None:
    assert sign_in(client, username=name).status_code == 200
    assert not is_signed_in(client)


def test_sign_in_replaces_the_session_cookie(client: Client, user: User) -> None:
    """An attacker's session cookie from before the sign-in is of no use after it."""
    session = client.session
    session["planted"] = True
    session.save()
    planted = client.cookies[settings.SESSION_COOKIE_NAME].value
    client.get(link_of(user))
    assert client.cookies[settings.SESSION_COOKIE_NAME].value != planted
    assert not BrowserSession.objects.filter(session_key=planted).exists()


@pytest.mark.parametrize(
    "key", ["'abcdefgh\\000x'", '"abcdefgh\\000x"', "x" * 9000, "é" * 9, "%00" * 9]
)
def test_malformed_cookies_cause_no_server_error(client: Client, key: str) -> None:
    cookie = f"{settings.SESSION_COOKIE_NAME}={key}; {settings.CSRF_COOKIE_NAME}={key}"
    for page in (reverse("home"), reverse("sign_in")):
        assert client.get(page, headers={"Cookie": cookie}).status_code in (200, 302)


def test_cookies_are_httponly_and_samesite_lax(client: Client, user: User) -> None:
    client.get(reverse("sign_in"))
    sign_in(client)
    for name in (settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME):
        assert client.cookies[name]["httponly"]
        assert client.cookies[name]["samesite"] == "Lax"


def test_sign_out_requires_a_post(owner: Client) -> None:
    assert owner.get(reverse("sign_out")).status_code == 405
    assert is_signed_in(owner)
    response = owner.post(reverse("sign_out"))
    assert (response.status_code, response["Location"]) == (302, reverse("sign_in"))
    assert not is_signed_in(owner)


def change_password(client: Client, **data: str) -> Any:
    new = {"new_password1": "staple battery", "new_password2": "staple battery"}
    return client.post(reverse("password_change"), new | data)


def test_password_change_requires_the_old_password(owner: Client, user: User) -> None:
    elsewhere = browser_of(user)
    assert change_password(owner).status_code == 200
    assert change_password(owner, old_password="wrong").status_code == 200
    assert is_signed_in(elsewhere)
    response = change_password(owner, old_password=PASSWORD)
    assert (response.status_code, response["Location"]) == (302, reverse("password_change_done"))
    assert is_signed_in(owner)
    assert not is_signed_in(elsewhere)
    assert sign_in(Client(), password="staple battery").status_code == 302


def test_first_password_is_set_without_an_old_one(client: Client) -> None:
    newcomer = User.objects.create_user("eve")
    client.get(link_of(newcomer))
    form = client.get(reverse("password_change"))
    assert "old_password" not in form.text
    assert change_password(client).status_code == 302
    assert is_signed_in(client)
    assert sign_in(Client(), username="eve", password="staple battery").status_code == 302
    assert "old_password" in client.get(reverse("password_change")).text


@pytest.mark.parametrize("weak", ["short", "12345678901", "password", "eve-eve-eve", ""])
def test_a_weak_first_password_is_refused(client: Client, weak: str) -> None:
    newcomer = User.objects.create_user("eve-eve-eve")
    client.get(link_of(newcomer))
    response = change_password(client, new_password1=weak, new_password2=weak)
    assert response.status_code == 200
    assert response.context["form"].errors
    newcomer.refresh_from_db()
    assert not newcomer.has_usable_password()


def test_password_change_done_page_requires_sign_in(client: Client) -> None:
    assert client.get(reverse("password_change_done")).status_code == 302


def test_sign_in_link_works_once(client: Client, user: User) -> None:
    link = link_of(user)
    response = client.get(link)
    assert (response.status_code, response["Location"]) == (302, reverse("start"))
    assert is_signed_in(client)
    again = Client().get(link)
    assert again.status_code == 410
    assert "This link no longer works" in again.text


def test_expired_sign_in_link_answers_410(client: Client, user: User) -> None:
    link = link_of(user)
    SignInLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.get(link).status_code == 410
    assert not is_signed_in(client)


def test_sign_in_link_lasts_twelve_hours(user: User) -> None:
    create_sign_in_link(user)
    found = SignInLink.objects.get()
    assert found.expires_at - found.created_at == LINK_LIFETIME == timedelta(hours=12)


@pytest.mark.parametrize("token", ["x", "a" * 5000, "%00", "%ff%fe", "..%2f..", "💥"])
def test_unknown_sign_in_link_answers_404_or_410(client: Client, token: str) -> None:
    assert client.get(f"/sign-in/link/{token}/").status_code in (404, 410)


LOOKING = [
    {"Sec-Purpose": "prefetch"},
    {"Sec-Purpose": "prefetch;prerender"},
    {"Purpose": "prefetch"},
    {"X-Moz": "prefetch"},
    {"User-Agent": "Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)"},
    {"User-Agent": "Mozilla/5.0 (compatible; Discordbot/2.0; +https://discordapp.com)"},
    {"User-Agent": "WhatsApp/2.23.20.0"},
    {"User-Agent": "TelegramBot (like TwitterBot)"},
]


@pytest.mark.parametrize("headers", LOOKING)
def test_prefetch_or_preview_does_not_use_up_a_sign_in_link(
    client: Client, user: User, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    link = link_of(user)
    response = client.get(link, headers=headers)
    assert (response.status_code, response["Content-Type"]) == (200, "text/plain")
    assert client.head(link).status_code == 200
    assert not is_signed_in(client)
    assert link not in caplog.text
    assert client.get(link).status_code == 302


def test_sign_in_link_responses_are_not_cached(client: Client, user: User) -> None:
    link = link_of(user)
    for _ in range(2):
        assert "no-store" in client.get(link)["Cache-Control"]


def test_used_link_redirects_a_signed_in_person_to_home(owner: Client, user: User) -> None:
    link = link_of(user)
    owner.get(link)
    response = owner.get(link)
    assert (response.status_code, response["Location"]) == (302, reverse("home"))


def test_sign_in_link_replaces_the_person_who_is_signed_in(owner: Client, other_user: User) -> None:
    owner.get(link_of(other_user))
    assert "Account of bob" in owner.get(reverse("home")).text


def test_database_never_contains_a_sign_in_token(client: Client, user: User) -> None:
    token = create_sign_in_link(user)
    assert client.get(reverse("sign_in_link", args=[token])).status_code == 302
    for model in apps.get_models():
        for row in model._default_manager.values():
            assert token not in str(row), model
