"""Two factors: setting up, signing in, losing, turning off and requiring the second factor."""

import logging
import time
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from asgiref.sync import sync_to_async
from axes.models import AccessAttempt, AccessFailureLog
from django.conf import settings
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from conversations.accounts.people import reset_password, sign_out_person
from conversations.archive.audit import AuditOrigin
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import create_sign_in_link
from conversations.models import AuditEntry, SignInLink, Workspace
from tests.web.conftest import browser_of
from tests.web.sockets import open_socket

from .authenticator import code_of
from .conftest import confirm, is_signed_in, set_up, sign_in, sign_in_there
from .provider import Provider

pytestmark = pytest.mark.django_db

STRICT = "conversations.accounts.sso.backends.SecondFactorBackend"


@pytest.fixture
def required(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "two_factor", "required")
    settings.AUTHENTICATION_BACKENDS = [settings.AUTHENTICATION_BACKENDS[0], STRICT]


@pytest.fixture
def secret(client: Client, user: User) -> str:
    """The secret of ann, who has set up a second factor and is signed in."""
    sign_in(client)
    return set_up(client)


def recovery_codes(client: Client) -> list[str]:
    return list(client.get(reverse("mfa_view_recovery_codes")).context["unused_codes"])


def answer(client: Client, code: str) -> Any:
    return client.post(reverse("mfa_authenticate"), {"code": code})


def test_password_is_enough_without_a_second_factor(client: Client, user: User) -> None:
    response = sign_in(client, next="/help/")
    assert (response.status_code, response["Location"]) == (302, "/help/")
    assert is_signed_in(client)


def test_setting_up_asks_for_the_password_again(client: Client, user: User) -> None:
    sign_in(client)
    asked = client.get(reverse("mfa_activate_totp"))
    assert asked["Location"].startswith(reverse("account_reauthenticate"))
    wrong = client.post(asked["Location"], {"password": "x"})
    assert wrong.status_code == 200
    assert client.get(reverse("mfa_activate_totp")).status_code == 302
    assert confirm(client, reverse("mfa_activate_totp")).status_code == 302
    page = client.get(reverse("mfa_activate_totp"))
    assert "QR code" in page.text
    assert page.context["secret"] in page.text


def test_recovery_codes_are_shown_right_after_the_set_up(
    client: Client, provider: Provider
) -> None:
    sign_in_there(client)  # this sign-in asks for no password
    secret = client.get(reverse("mfa_activate_totp")).context["secret"]
    done = client.post(reverse("mfa_activate_totp"), {"code": code_of(secret)}, follow=True)
    assert done.request["PATH_INFO"] == reverse("mfa_view_recovery_codes")
    assert len(done.context["unused_codes"]) == 10


def test_wrong_first_code_does_not_complete_the_set_up(client: Client, user: User) -> None:
    sign_in(client)
    confirm(client)
    before = client.get(reverse("mfa_activate_totp")).context["secret"]
    page = client.post(reverse("mfa_activate_totp"), {"code": "000000"})
    assert "Incorrect code" in page.text
    assert page.context["secret"] == before
    assert not Authenticator.objects.exists()


def test_sign_in_with_a_password_asks_for_the_code(secret: str) -> None:
    client = Client()
    response = sign_in(client, next="/help/")
    assert response["Location"] == reverse("mfa_authenticate")
    assert not is_signed_in(client)
    done = answer(client, code_of(secret))
    assert (done.status_code, done["Location"]) == (302, "/help/")
    assert is_signed_in(client)


def test_sign_in_by_link_asks_for_the_code(secret: str, user: User) -> None:
    client = Client()
    response = client.get(reverse("sign_in_link", args=[create_sign_in_link(user)]))
    assert response["Location"] == reverse("mfa_authenticate")
    assert answer(client, code_of(secret))["Location"] == reverse("start")


@pytest.mark.parametrize("code", ["000000", "", " ", "x" * 5000, "\x00"])
def test_a_wrong_code_does_not_sign_in(secret: str, code: str) -> None:
    client = Client()
    sign_in(client)
    assert answer(client, code).status_code == 200
    assert not is_signed_in(client)


def test_code_without_a_password_signs_nobody_in(secret: str) -> None:
    client = Client()
    for response in (answer(client, code_of(secret)), client.get(reverse("mfa_authenticate"))):
        assert response.status_code == 302
    assert not is_signed_in(client)


def test_code_can_be_used_only_once(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who saw the code being typed cannot use it while it is still valid."""
    now = 30 * (time.time() // 30)
    monkeypatch.setattr(time, "time", lambda: now)
    code = code_of(secret, steps=1)
    first, second = Client(), Client()
    sign_in(first)
    answer(first, code)
    assert is_signed_in(first)
    for later in (0, 59):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        sign_in(second)
        assert answer(second, f"{code[:3]} {code[3:]}").status_code == 200
        assert not is_signed_in(second)


def test_code_is_valid_one_step_before_and_after_its_own(secret: str) -> None:
    """A code may be typed when its time is nearly over, and two clocks may differ."""
    for steps in (-1, 0, 1):
        client = Client()
        sign_in(client)
        answer(client, code_of(secret, steps=steps))
        assert is_signed_in(client)
    client = Client()
    sign_in(client)
    answer(client, code_of(secret, steps=-3))
    assert not is_signed_in(client)


def test_number_of_attempts_at_a_code_is_limited(secret: str) -> None:
    client = Client()
    sign_in(client)
    for _ in range(settings.LOOM.sign_in_attempts - 1):
        assert "Incorrect code" in answer(client, "000000").text
    for code in ("000000", code_of(secret)):
        assert "Too many attempts. Try again in 15 minutes." in answer(client, code).text
    other = Client(REMOTE_ADDR="192.0.2.7")
    sign_in(other)
    assert "Too many" in answer(other, code_of(secret)).text
    assert not is_signed_in(other)


def test_wrong_codes_count_as_failed_sign_ins_and_can_be_unlocked(secret: str, user: User) -> None:
    office, other = browser_of(User.objects.create_superuser("root")), Client()
    sign_in(other)
    for _ in range(settings.LOOM.sign_in_attempts):
        answer(other, "000000")
    address = reverse("person", args=[user.pk])
    assert f"{settings.LOOM.sign_in_attempts} failed sign-in attempts" in office.get(address).text
    failures = AccessFailureLog.objects.filter(username="ann")
    assert failures.count() == settings.LOOM.sign_in_attempts
    assert not AccessAttempt.objects.filter(post_data__contains="000000").exists()
    office.post(reverse("person_unlock", args=[user.pk]))
    assert "failed sign-in" not in office.get(address).text
    sign_in(other)
    answer(other, code_of(secret))
    assert is_signed_in(other)


def test_password_without_a_code_does_not_reset_the_attempt_count(secret: str) -> None:
    """Only a complete sign-in resets the count of wrong passwords."""
    client = Client()
    for _ in range(settings.LOOM.sign_in_attempts - 1):
        sign_in(client, password="x")
    sign_in(client)
    assert sign_in(client, password="x").status_code == 429


def test_a_recovery_code_works_once(client: Client, secret: str) -> None:
    code = recovery_codes(client)[0]
    first, second = Client(), Client()
    sign_in(first)
    assert answer(first, code).status_code == 302
    assert is_signed_in(first)
    sign_in(second)
    assert answer(second, code).status_code == 200
    assert not is_signed_in(second)
    assert "9 recovery codes left" in " ".join(first.get(reverse("sign_in_ways")).text.split())


def test_new_recovery_codes_replace_the_old_ones(client: Client, secret: str) -> None:
    old = recovery_codes(client)
    client.post(reverse("mfa_generate_recovery_codes"))
    new = recovery_codes(client)
    assert len(new) == 10
    assert not set(old) & set(new)
    file = client.get(reverse("mfa_download_recovery_codes"))
    assert file["Content-Type"].startswith("text/plain")
    assert all(code in file.text for code in new)


def test_recovery_codes_require_a_fresh_confirmation_of_identity(secret: str) -> None:
    client = Client()
    sign_in(client)
    answer(client, code_of(secret))
    for name in ("mfa_view_recovery_codes", "mfa_download_recovery_codes"):
        asked = client.get(reverse(name))
        assert asked["Location"].startswith(reverse("account_reauthenticate"))


def test_second_factor_can_be_turned_off(client: Client, secret: str) -> None:
    client.post(reverse("mfa_deactivate_totp"))
    assert not Authenticator.objects.exists()
    other = Client()
    sign_in(other)
    assert is_signed_in(other)


def test_log_records_who_changed_which_factor(
    client: Client,
    user: User,
    caplog: pytest.LogCaptureFixture,
    django_capture_on_commit_callbacks: Any,
) -> None:
    caplog.set_level(logging.INFO)
    sign_in(client)
    with django_capture_on_commit_callbacks(execute=True):
        set_up(client)
    with django_capture_on_commit_callbacks(execute=True):
        client.post(reverse("mfa_generate_recovery_codes"))
        client.post(reverse("mfa_deactivate_totp"))
    noted = [one.fields for one in caplog.records if one.message == "sign_in_way_changed"]
    assert {one["user"] for one in noted} == {"ann"}
    assert {(one["change"].removeprefix("second_factor_"), one["kind"]) for one in noted} == {
        ("added", "totp"),
        ("added", "recovery_codes"),
        ("renewed", "recovery_codes"),
        ("removed", "totp"),
        ("removed", "recovery_codes"),
    }


def test_secrets_and_codes_are_not_readable_in_the_database(client: Client, secret: str) -> None:
    kept = repr(list(Authenticator.objects.values_list("data", flat=True)))
    assert secret.replace(" ", "") not in kept
    for code in recovery_codes(client):
        assert code not in kept


def test_pending_sign_in_expires(secret: str, settings: Any) -> None:
    client = Client()
    sign_in(client)
    settings.ACCOUNT_LOGIN_TIMEOUT = -1
    assert answer(client, code_of(secret)).status_code == 302
    assert not is_signed_in(client)


def test_provider_sign_in_asks_for_the_code_unless_it_vouches(
    client: Client, provider: Provider
) -> None:
    sign_in_there(client)
    page = client.get(reverse("mfa_activate_totp"))  # the person has no password to confirm
    secret = page.context["secret"]
    client.post(reverse("mfa_activate_totp"), {"code": code_of(secret)})
    cache.clear()
    other = Client()
    assert sign_in_there(other)["Location"] == reverse("mfa_authenticate")
    answer(other, code_of(secret))
    assert is_signed_in(other)
    provider.person["amr"] = ["pwd", "mfa"]
    vouched = Client()
    sign_in_there(vouched)
    assert is_signed_in(vouched)


def test_setting_a_first_password_asks_for_the_second_factor(
    client: Client, provider: Provider
) -> None:
    sign_in_there(client)
    password = reverse("password_change")
    assert client.get(password).status_code == 200  # the person has nothing to confirm
    secret = client.get(reverse("mfa_activate_totp")).context["secret"]
    client.post(reverse("mfa_activate_totp"), {"code": code_of(secret)})
    cache.clear()
    other = Client()
    sign_in_there(other)
    answer(other, code_of(secret))
    cache.clear()
    new = dict.fromkeys(("new_password1", "new_password2"), "a horse of theirs")
    for response in (other.get(password), other.post(password, new)):
        assert response["Location"] == f"{reverse('account_reauthenticate')}?next=%2Fpassword%2F"
    assert "a horse of theirs" not in str(dict(other.session))
    asked = other.get(response["Location"], follow=True)
    code = {"code": code_of(secret), "next": password}
    assert other.post(asked.request["PATH_INFO"], code)["Location"] == password
    assert other.post(password, new)["Location"] == reverse("password_change_done")
    assert User.objects.get().check_password("a horse of theirs")


def test_only_the_signed_token_vouches_for_a_second_factor(
    client: Client, provider: Provider, user: User
) -> None:
    sign_in_there(client)
    secret = client.get(reverse("mfa_activate_totp")).context["secret"]
    client.post(reverse("mfa_activate_totp"), {"code": code_of(secret)})
    provider.answers["/userinfo"] = (200, provider.person | {"amr": ["mfa"]})
    other = Client()
    assert sign_in_there(other)["Location"] == reverse("mfa_authenticate")


def test_admin_requires_the_password_and_the_code(secret: str, user: User) -> None:
    User.objects.update(is_staff=True, is_superuser=True)
    client = Client()
    data = {"username": "ann", "password": "correct horse", "next": "/admin/"}
    asked = client.post(reverse("admin:login") + "?next=/admin/", data)
    assert asked["Location"] == f"{reverse('sign_in')}?next=/admin/&unsaved=1"
    assert client.get("/admin/").status_code == 302
    sign_in(client, next="/admin/")
    assert client.get("/admin/").status_code == 302
    answer(client, code_of(secret))
    assert client.get("/admin/").status_code == 200


def test_admin_answers_403_to_people_who_are_not_staff(client: Client, user: User) -> None:
    sign_in(client)
    assert client.get("/admin/", follow=True).status_code == 403


def test_command_removes_a_lost_second_factor(secret: str, user: User) -> None:
    call_command("reset_two_factor", "ann")
    entry = AuditEntry.objects.get()
    assert (entry.actor_name, "second_factor" in entry.metadata) == ("reset_two_factor", True)
    client = Client()
    sign_in(client)
    assert is_signed_in(client)
    for name, code in (("ann", 1), ("nobody", 2)):
        with pytest.raises(CommandError) as refused:
            call_command("reset_two_factor", name)
        assert refused.value.returncode == code


@pytest.mark.usefixtures("required")
def test_required_second_factor_is_set_up_before_the_sign_in_ends(
    user: User, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = Client()
    assert sign_in(client, next="/help/")["Location"] == reverse("two_factor_set_up")
    page = client.get(reverse("two_factor_set_up"))
    assert not is_signed_in(client)
    wrong = client.post(reverse("two_factor_set_up"), {"code": "000000"})
    assert "Incorrect code" in wrong.text
    assert not is_signed_in(client)
    secret = client.get(reverse("two_factor_set_up")).context["secret"]
    assert secret != page.context["secret"]
    done = client.post(reverse("two_factor_set_up"), {"code": code_of(secret)})
    assert done["Location"] == f"{reverse('mfa_view_recovery_codes')}?next=%2Fhelp%2F"
    assert is_signed_in(client)
    codes = client.get(done["Location"])
    assert 'href="/help/"' in codes.text
    assert len(codes.context["unused_codes"]) == 10
    assert [one.fields["change"] for one in caplog.records if hasattr(one, "fields")] == [
        "second_factor_added",
        "second_factor_added",
    ]
    cache.clear()
    again = Client()
    assert sign_in(again)["Location"] == reverse("mfa_authenticate")
    answer(again, code_of(secret))
    assert is_signed_in(again)


@pytest.mark.usefixtures("required")
def test_password_reset_ends_a_sign_in_that_waits_for_a_set_up(user: User) -> None:
    client = Client()
    sign_in(client)
    secret = client.get(reverse("two_factor_set_up")).context["secret"]
    reset(user)
    done = client.post(reverse("two_factor_set_up"), {"code": code_of(secret)})
    assert done["Location"] == reverse("sign_in")
    assert not is_signed_in(client)
    assert not Authenticator.objects.filter(user=user).exists()


def test_password_reset_ends_a_sign_in_that_waits_for_a_code(client: Client, user: User) -> None:
    sign_in(client)
    secret = set_up(client)
    other = Client()
    sign_in(other)
    reset(user)
    assert answer(other, code_of(secret))["Location"] == reverse("sign_in")
    assert not is_signed_in(other)


def test_signing_out_everywhere_ends_a_sign_in_that_waits(client: Client, secret: str) -> None:
    other, later = Client(), Client()
    sign_in(other)
    client.post(reverse("devices_sign_out"), {"others": "1"})
    assert answer(other, code_of(secret))["Location"] == reverse("sign_in")
    assert not is_signed_in(other)
    assert is_signed_in(client)
    cache.clear()
    sign_in(later)
    answer(later, code_of(secret))
    assert is_signed_in(later)


@pytest.mark.parametrize(("mode", "links"), [("off", 0), ("optional", 1)])
def test_sign_in_creates_a_link_only_if_two_factors_are_on(
    client: Client, provider: Provider, monkeypatch: pytest.MonkeyPatch, mode: str, links: int
) -> None:
    monkeypatch.setattr(settings.LOOM, "two_factor", mode)
    sign_in_there(client)
    assert is_signed_in(client)
    assert SignInLink.objects.count() == links


@pytest.mark.usefixtures("required")
def test_administrator_ends_a_sign_in_that_waits_for_a_set_up(user: User) -> None:
    client = Client()
    sign_in(client)
    secret = client.get(reverse("two_factor_set_up")).context["secret"]
    sign_out_person(user.pk, origin=AuditOrigin(user=User.objects.create_superuser("root")))
    done = client.post(reverse("two_factor_set_up"), {"code": code_of(secret)})
    assert done["Location"] == reverse("sign_in")
    assert not Authenticator.objects.filter(user=user).exists()


def reset(user: User) -> None:
    root = User.objects.create_superuser("root")
    reset_password(user.pk, origin=AuditOrigin(user=root))


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize("wanted", ["https://evil.example/", "//evil.example", "javascript:x"])
def test_page_of_recovery_codes_never_links_to_another_site(user: User, wanted: str) -> None:
    client = Client()
    sign_in(client)
    secret = client.get(reverse("two_factor_set_up")).context["secret"]
    client.post(reverse("two_factor_set_up"), {"code": code_of(secret)})
    page = client.get(reverse("mfa_view_recovery_codes"), {"next": wanted})
    assert wanted not in page.text


@pytest.mark.usefixtures("required")
def test_moving_to_another_app_signs_out(user: User) -> None:
    client = Client()
    sign_in(client)
    secret = client.get(reverse("two_factor_set_up")).context["secret"]
    client.post(reverse("two_factor_set_up"), {"code": code_of(secret)})
    assert "Move to another app" in client.get(reverse("mfa_deactivate_totp")).text
    client.post(reverse("mfa_deactivate_totp"))
    assert not is_signed_in(client)
    assert sign_in(client)["Location"] == reverse("two_factor_set_up")


@pytest.mark.usefixtures("required")
def test_link_and_provider_require_the_set_up_too(user: User, provider: Provider) -> None:
    link = reverse("sign_in_link", args=[create_sign_in_link(user)])
    assert Client().get(link)["Location"] == reverse("two_factor_set_up")
    assert sign_in_there(Client())["Location"] == reverse("two_factor_set_up")
    provider.person["amr"] = ["mfa"]
    vouched = Client()
    sign_in_there(vouched)
    assert is_signed_in(vouched)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends")
async def test_requiring_a_second_factor_ends_earlier_sign_ins(
    request: pytest.FixtureRequest, user: User, workspace: Workspace
) -> None:
    """An earlier sign-in opens neither pages nor sockets."""
    session = await sync_to_async(create_session)(workspace, owner=user)
    socket = await open_socket(session, user)
    assert (await socket.next())["type"] == "hello"
    await socket.close()
    client = Client()
    await sync_to_async(sign_in)(client)
    assert await sync_to_async(is_signed_in)(client)
    request.getfixturevalue("required")
    assert not await sync_to_async(is_signed_in)(client)
    socket = await open_socket(session, user)
    assert await socket.close_code() == 4401
