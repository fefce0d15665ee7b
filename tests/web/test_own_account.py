"""The pages of one's own account: preferences, signed-in devices and the data export."""

import io
import json
import re
import zipfile
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as BrowserSession
from django.db import connection
from django.forms.models import model_to_dict
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from conversations.accounts.devices import list_devices, name_of_agent, record_device_use
from conversations.accounts.people import read_preferences
from conversations.accounts.sign_in import SIGNED_OUT
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member, create_sign_in_link
from conversations.models import AuditEntry, Device, Preferences, Session, Workspace

from .conftest import browser_of, flat, say

pytestmark = pytest.mark.django_db

PREFERENCES, DEVICES = reverse("account_preferences"), reverse("account_devices")
CHOICE = {
    "page_language": "en",
    "theme": "dark",
    "keys": "none",
    "enter": "break",
    "language": "de",
    "clock": "h12",
    "times": "exact",
    "figures": "shown",
    "hears": "parts",
}
LINUX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def html_tag(page: Any) -> str:
    found = re.search(r"<html[^>]*>", page.text)
    assert found
    return found[0]


# --- preferences ---


def test_preferences_are_saved_and_set_on_every_page(owner: Client, session: Session) -> None:
    assert html_tag(owner.get(PREFERENCES)) == '<html lang="en" data-theme="auto">'
    response = owner.post(PREFERENCES, CHOICE)
    assert (response.status_code, response["Location"]) == (302, PREFERENCES)
    for page in (PREFERENCES, reverse("home"), reverse("session", args=[session.uuid])):
        assert html_tag(owner.get(page)) == (
            '<html lang="en" data-theme="dark" data-keys="none" data-enter="break"'
            ' data-dates="de" data-clock="h12" data-times="exact"'
            ' data-figures="shown" data-hears="parts">'
        )
    owner.post(PREFERENCES, CHOICE | {"theme": "auto", "keys": "all", "language": ""})
    assert "data-keys" not in html_tag(owner.get(PREFERENCES))


def test_error_page_has_the_theme(owner: Client) -> None:
    owner.post(PREFERENCES, CHOICE)
    assert 'data-theme="dark"' in html_tag(owner.get("/w/nowhere/"))


def test_stranger_has_no_preferences(client: Client) -> None:
    assert html_tag(client.get(reverse("sign_in"))) == '<html lang="en">'


@pytest.mark.parametrize("name", CHOICE)
def test_invalid_preference_is_refused(owner: Client, user: User, name: str) -> None:
    bad = CHOICE | {name: '"><script>'}
    assert owner.post(PREFERENCES, bad).status_code == 400
    assert owner.post(reverse("account_choose"), {name: "x"}).status_code == 400
    assert not Preferences.objects.exists()


def test_button_changes_one_preference_and_keeps_the_others(owner: Client, user: User) -> None:
    owner.post(PREFERENCES, CHOICE)
    response = owner.post(reverse("account_choose"), {"theme": "light", "nonsense": "x"})
    assert response.status_code == 204
    kept = model_to_dict(read_preferences(user.pk), fields=list(CHOICE))
    assert kept == CHOICE | {"theme": "light"}


def test_help_lists_the_keys_that_the_person_chose(owner: Client, user: User) -> None:
    usual = flat(owner.get(reverse("help")).text)
    assert "<kbd>Enter</kbd> </dt><dd>Send the message" in usual
    Preferences.objects.create(user=user, enter="break")
    assert "<kbd>Ctrl</kbd> <kbd>Enter</kbd> </dt><dd>Send the message" in (
        flat(owner.get(reverse("help")).text)
    )


def test_preferences_cost_one_query_per_page_or_part(
    owner: Client, session: Session, user: User
) -> None:
    def asked(**headers: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            owner.get(reverse("session", args=[session.uuid]), headers=headers)
        return sum("conversations_preferences" in query["sql"] for query in queries)

    assert (asked(), asked(**{"HX-Request": "true"})) == (1, 1)


# --- devices ---


def device_names(client: Client) -> list[str]:
    return re.findall(r"<b title=[^>]*>([^<]*)</b>", client.get(DEVICES).text)


def is_signed_in(client: Client) -> bool:
    return client.get(reverse("home")).status_code == 200


def sign_in(user: User, agent: str = LINUX, address: str = "192.0.2.7") -> Client:
    client = Client(headers={"User-Agent": agent}, REMOTE_ADDR=address)
    link = reverse("sign_in_link", args=[create_sign_in_link(user)])
    assert client.get(link).status_code == 302
    return client


def test_signed_in_devices_are_listed(user: User, other_user: User) -> None:
    sign_in(other_user)
    phone = sign_in(user, "Mozilla/5.0 (iPhone; like Mac OS X) Version/18 Mobile Safari/604", "::1")
    laptop = sign_in(user)
    assert device_names(laptop) == ["Firefox on Linux", "Safari on iPhone"]
    page = laptop.get(DEVICES).text
    assert page.count("this device") == 1
    assert "192.0.2.7" in page
    assert "::1" in page
    assert is_signed_in(phone)


def test_one_device_can_be_signed_out(user: User) -> None:
    phone, laptop = sign_in(user), sign_in(user)
    theirs = Device.objects.get(session_key=phone.session.session_key)
    response = laptop.post(reverse("device_sign_out", args=[theirs.pk]))
    assert response["Location"] == DEVICES
    assert SIGNED_OUT not in laptop.cookies
    assert is_signed_in(laptop)
    assert not is_signed_in(phone)
    assert len(device_names(laptop)) == 1
    theirs.refresh_from_db()
    assert theirs.ended_at is not None
    assert theirs.session_key is None
    assert laptop.post(reverse("device_sign_out", args=[theirs.pk])).status_code == 404
    own = Device.objects.get(session_key=laptop.session.session_key)
    laptop.post(reverse("device_sign_out", args=[own.pk]))
    assert SIGNED_OUT in laptop.cookies


def test_device_of_another_person_cannot_be_signed_out(user: User, other_user: User) -> None:
    theirs = sign_in(other_user)
    device = Device.objects.get(user=other_user)
    assert sign_in(user).post(reverse("device_sign_out", args=[device.pk])).status_code == 404
    assert is_signed_in(theirs)


def test_all_other_devices_can_be_signed_out(user: User, other_user: User) -> None:
    phone, laptop, stranger = sign_in(user), sign_in(user), sign_in(other_user)
    link = reverse("sign_in_link", args=[create_sign_in_link(user)])
    response = laptop.post(reverse("devices_sign_out"), {"others": "1"}, follow=True)
    assert "Signed out 1 device." in response.text
    assert is_signed_in(laptop)
    assert not is_signed_in(phone)
    assert is_signed_in(stranger)
    assert Client().get(link).status_code == 410, "a link that was not used yet"


def test_sign_out_everywhere_includes_this_device(user: User) -> None:
    phone, laptop = sign_in(user), sign_in(user)
    response = laptop.post(reverse("devices_sign_out"), follow=True)
    assert response.redirect_chain[-1][0].startswith(reverse("sign_in"))
    assert SIGNED_OUT in laptop.cookies, "by which the sign-in page lets the browser forget"
    assert not is_signed_in(phone)
    assert not BrowserSession.objects.exists()


def test_sign_out_removes_the_device_from_the_list(user: User) -> None:
    phone, laptop = sign_in(user), sign_in(user)
    phone.post(reverse("sign_out"))
    assert len(device_names(laptop)) == 1
    assert Device.objects.exclude(ended_at=None).count() == 1


def test_password_change_signs_out_all_other_devices(user: User) -> None:
    phone, laptop = sign_in(user), sign_in(user)
    data = {"old_password": "correct horse"}
    new = {"new_password1": "staple battery", "new_password2": "staple battery"}
    assert laptop.post(reverse("password_change"), data | new).status_code == 302
    assert len(device_names(laptop)) == 1
    assert "this device" in laptop.get(DEVICES).text
    assert not is_signed_in(phone)
    assert Device.objects.filter(session_key=None).count() == 1


def test_device_with_an_expired_session_is_not_listed(user: User) -> None:
    phone, laptop = sign_in(user), sign_in(user)
    gone = BrowserSession.objects.filter(session_key=phone.session.session_key)
    gone.update(expire_date=timezone.now() - timedelta(seconds=1))
    assert len(device_names(laptop)) == 1


def test_request_right_after_sign_in_makes_no_device_query(user: User) -> None:
    client = browser_of(user)
    with CaptureQueriesContext(connection) as queries:
        client.get(reverse("help"))
    assert not [query for query in queries if "conversations_device" in query["sql"]]


def test_user_agent_is_truncated_and_escaped(user: User) -> None:
    client = sign_in(user, "\x01" + "a" * 3000 + "<script>")
    device = Device.objects.get()
    assert len(device.agent) <= 400
    assert "<script>" not in client.get(DEVICES).text.replace("<script src", "").replace(
        "<script type", ""
    )


def test_two_requests_of_one_browser_create_one_device(user: User) -> None:
    for _ in range(2):
        record_device_use(user.pk, session_key="a" * 32, agent=LINUX, address="")
    assert Device.objects.count() == 1
    assert list_devices(user.pk) == [], "a session that does not exist signs nobody in"


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (LINUX, "Firefox on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (Linux; Android 15) Chrome/140.0 Mobile Safari/537", "Chrome on Android"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X) Version/18 Safari/605", "Safari on macOS"),
        ("", "A browser"),
    ],
)
def test_browser_is_named_from_its_user_agent(agent: str, name: str) -> None:
    assert name_of_agent(agent) == name


# --- one's own data ---


def export(client: Client) -> dict[str, str]:
    response = client.get(reverse("account_export"))
    assert response["Content-Type"] == "application/zip"
    assert "no-store" in response["Cache-Control"]

    async def body() -> bytes:
        return b"".join([piece async for piece in response.streaming_content])  # type: ignore[attr-defined]

    data = async_to_sync(body)()
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        assert whole.testzip() is None
        return {name: whole.read(name).decode() for name in whole.namelist()}


def test_export_contains_own_data_and_nothing_of_others(
    owner: Client, session: Session, workspace: Workspace, user: User, other_user: User
) -> None:
    say(session, "Plant the beans", "In May")
    add_member(workspace, user_pk=other_user.pk, role="member")
    theirs = create_session(workspace, owner=other_user)
    say(theirs, "A secret of bob")
    owner.post(PREFERENCES, CHOICE)
    files = export(owner)
    account = json.loads(files["account.json"])
    assert account["username"] == "ann"
    assert account["preferences"] == CHOICE
    assert account["workspaces"] == [{"workspace": "garden", "role": "owner"}]
    assert len(account["devices"]) == 1
    whole = "".join(files.values())
    assert "secret" not in whole
    assert (owner.session.session_key or "?") not in whole
    assert user.password not in whole


def test_head_request_for_the_export_is_not_recorded(owner: Client) -> None:
    response = owner.head(reverse("account_export"))
    assert response.status_code == 200
    assert not AuditEntry.objects.exists()
