"""The page of notices, the requests of the service worker, and the manifest of the app."""

import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import AsyncClient, Client
from PIL import Image

from conversations.archive.workspaces import add_member
from conversations.features.notices import deliveries, service, vapid
from conversations.features.notices.models import (
    MutedSession,
    NoticeChoice,
    PushSubscription,
    SessionView,
)
from conversations.models import Membership, Session, ToolCall
from tests.waiting_calls import leave_question
from tests.web.conftest import browser_of, flat

from .making import subscribe_browser
from .push_service import PushService

pytestmark = pytest.mark.django_db

PAGE = "/account/notifications/"
CHOICE = {"asks": "on", "zone": "Europe/Berlin", "quiet_from": "22:00", "quiet_until": "07:00"}


def post_json(client: Client, path: str, data: Any) -> Any:
    return client.post(path, json.dumps(data), content_type="application/json")


def waiting(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"{PAGE}waiting/").json()
    return found


def test_a_person_chooses_which_notices_to_get(owner: Client, user: User) -> None:
    assert owner.post(PAGE, CHOICE).status_code == 302
    chosen = NoticeChoice.objects.get(user=user)
    assert (chosen.asks, chosen.failed, chosen.finished) == (True, False, False)
    assert (str(chosen.quiet_from), chosen.zone) == ("22:00:00", "Europe/Berlin")
    assert chosen.site == "http://testserver"
    for bad in ({"zone": "../etc/passwd"}, {"zone": "Mars"}, {"quiet_until": ""}):
        assert owner.post(PAGE, CHOICE | bad).status_code == 400
    assert "Also send e-mail" not in owner.get(PAGE).text


def test_e_mail_needs_a_mail_server_and_an_address(
    owner: Client, user: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "mailer", {"host": "mail.example.org"})
    assert "Also send e-mail" not in owner.get(PAGE).text, "the person has no address"
    User.objects.filter(pk=user.pk).update(email="ann@example.org")
    assert "Also send e-mail" in owner.get(PAGE).text
    owner.post(PAGE, CHOICE | {"by_email": "on"})
    assert NoticeChoice.objects.get().by_email


def test_a_browser_subscribes_only_with_a_valid_public_endpoint(
    owner: Client, user: User, push_service: PushService
) -> None:
    good = push_service.make_browser().subscription | {"endpoint": "https://push.example.org/x"}
    owner.get(PAGE)
    for bad in (
        {"endpoint": push_service.url},
        {"endpoint": "https://localhost/x"},
        {"endpoint": ""},
        {"keys": {"p256dh": good["keys"]["p256dh"], "auth": "short"}},
        {"keys": {"p256dh": "AAAA", "auth": good["keys"]["auth"]}},
        {"keys": None},
    ):
        assert post_json(owner, f"{PAGE}subscribe/", good | bad).status_code == 400, bad
    assert post_json(owner, f"{PAGE}subscribe/", ["no", "object"]).status_code == 400
    assert not NoticeChoice.objects.exists()
    assert "data-saved" not in owner.get(PAGE).text
    for zone in ("Europe/Berlin", "Asia/Tokyo"):  # the first zone is chosen
        answer = post_json(owner, f"{PAGE}subscribe/", good | {"zone": zone})
        assert answer.status_code == 201
    assert NoticeChoice.objects.get().zone == "Europe/Berlin"
    assert "data-saved" in owner.get(PAGE).text
    found = PushSubscription.objects.get()
    assert found.endpoint not in owner.get(PAGE).text
    assert "Turn off" in owner.get(PAGE).text
    # Another person signs in with the same browser.
    ben = User.objects.create_user("ben")
    other = browser_of(ben)
    other.get(PAGE)
    assert post_json(other, f"{PAGE}subscribe/", good | {"zone": "Mars"}).status_code == 201
    assert PushSubscription.objects.get().device.user == ben
    assert NoticeChoice.objects.get(user=ben).zone == "UTC"
    other.post(f"{PAGE}devices/{found.uuid}/remove/")
    assert PushSubscription.objects.exists(), "that is another subscription"
    other.post(f"{PAGE}devices/{PushSubscription.objects.get().uuid}/remove/")
    assert not PushSubscription.objects.exists()


def test_the_service_worker_gets_each_notice_once(
    owner: Client, session: Session, subscription: PushSubscription
) -> None:
    leave_question(session)
    found = waiting(owner)
    [notice] = found["new"]
    assert notice["title"] == "Plant them"
    assert notice["body"] == "Needs your approval: Add to done.txt"
    assert notice["url"] == f"/s/{session.uuid}/"
    assert "beans" not in json.dumps(found), "what was said is on the page"
    assert found["still"] == [notice["id"], str(subscription.uuid)]
    assert owner.get(f"{PAGE}waiting/")["Cache-Control"] == "no-store"
    assert post_json(owner, f"{PAGE}shown/", {"notices": [notice["id"]]}).status_code == 200
    assert waiting(owner)["new"] == []
    assert waiting(owner)["still"] == found["still"]
    assert post_json(owner, f"{PAGE}shown/", {"notices": ["x"]}).status_code == 400


def test_a_shown_test_stays_when_the_browser_is_woken_again(
    owner: Client, user: User, subscription: PushSubscription
) -> None:
    service.begin_test(user.pk, uuid=subscription.uuid)
    [test] = waiting(owner)["new"]
    post_json(owner, f"{PAGE}shown/", {"notices": [test["id"]]})
    found = waiting(owner)
    assert found["new"] == []
    assert test["id"] in found["still"], "the service worker closes all others"


def test_only_the_subscribed_browser_gets_a_notice(
    owner: Client, user: User, session: Session, subscription: PushSubscription
) -> None:
    leave_question(session)
    assert waiting(browser_of(user))["new"] == []
    member = User.objects.create_user("ben")
    add_member(session.workspace, user_pk=member.pk, role="member")
    assert waiting(browser_of(member))["new"] == []
    assert len(waiting(owner)["new"]) == 1


def ask_as(call: ToolCall, **asked: str) -> None:
    call.refresh_from_db()
    known = json.loads(call.asked) | {"diff": ""} | asked
    ToolCall.objects.filter(pk=call.pk).update(asked=json.dumps(known))


@pytest.mark.parametrize(
    ("asked", "actions"),
    [
        ({"summary": "Run make in sub", "command": "make"}, ["approve", "deny"]),
        ({"summary": "cancel_all of shop", "command": "{}"}, ["approve", "deny"]),
        ({"summary": "cancel_all of shop", "command": '{\n  "id": 7\n}'}, ["deny"]),
        ({"summary": "Fetch https://example.org"}, ["approve", "deny"]),
        ({"diff": "+beans"}, ["deny"]),
        ({"command": "make test", "note": "It reaches the network."}, ["approve", "deny"]),
        ({"command": "make test", "note": "It reaches the network. " * 9}, ["deny"]),
        ({"summary": "Run ls rm -r .", "command": "ls\nrm -r ."}, ["deny"]),
        ({"command": "ls \u202e.r- mr"}, ["deny"]),
        ({"summary": "Run ls \u202e.r- mr"}, ["deny"]),
        ({"summary": "Delete aaa…"}, ["deny"]),
        ({"command": "true; " * 40}, ["deny"]),
    ],
)
def test_approve_is_offered_only_if_the_whole_call_is_shown(
    owner: Client,
    session: Session,
    subscription: PushSubscription,
    asked: dict[str, str],
    actions: list[str],
) -> None:
    call = leave_question(session)
    ask_as(call, **asked)
    [notice] = waiting(owner)["new"]
    assert notice["actions"] == actions
    assert notice["body"].replace("\n", "").isprintable()
    said = [asked.get(name, "") for name in ("summary", "command", "note")]
    assert all(one in notice["body"] for one in said) or "approve" not in actions
    assert "shop" in notice["body"] or "shop" not in str(asked), "the tool and its server"
    NoticeChoice.objects.update(has_buttons=False)
    assert "actions" not in waiting(owner)["new"][0]


def test_a_viewer_gets_a_notice_without_buttons(
    session: Session, subscription: PushSubscription, push_service: PushService
) -> None:
    call = leave_question(session)
    ask_as(call, command="make")
    viewer = User.objects.create_user("vera")
    add_member(session.workspace, user_pk=viewer.pk, role="viewer")
    client = browser_of(viewer)
    subscribe_browser(client, viewer, push_service.make_browser())
    Session.objects.filter(pk=session.pk).update(owner=viewer)
    deliveries.enqueue_question(call.pk)
    [notice] = waiting(client)["new"]
    assert "actions" not in notice


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime_ends")
async def test_a_call_is_decided_from_a_notice_only_once(session: Session) -> None:
    call = await sync_to_async(leave_question)(session)
    path = f"/s/{session.uuid}/notifications/decide/"
    client = AsyncClient()
    await sync_to_async(client.force_login)(
        session.owner, backend="django.contrib.auth.backends.ModelBackend"
    )
    answers = [
        await client.post(path, {"call": str(call.uuid), "act": act})
        for act in ("wave", "deny", "approve")
    ]
    assert [answer.status_code for answer in answers] == [400, 200, 409]
    assert "denied" in answers[2].json()["error"]
    await Membership.objects.aupdate(role="viewer")
    refused = await client.post(path, {"call": str(call.uuid), "act": "approve"})
    assert (refused.status_code, "not" in refused.json()["error"]) == (403, True)
    await call.arefresh_from_db()
    assert call.decision == "deny"


def test_a_session_is_muted_in_its_menu_and_unmuted_in_the_account(
    owner: Client, user: User, session: Session, subscription: PushSubscription
) -> None:
    address = f"/s/{session.uuid}/"
    assert "<button>Mute notifications</button>" in flat(owner.get(address).text)
    assert owner.post(f"{address}notifications/mute/")["Location"] == address
    assert MutedSession.objects.get().user == user
    page = owner.get(address).text
    assert "Unmute notifications" in page
    assert "data-watch" not in page
    assert "Muted sessions" in owner.get(PAGE).text
    membership = Membership.objects.get(user=user)
    Membership.objects.all().delete()
    Session.objects.update(title="Layoffs in May")
    assert "Layoffs in May" not in owner.get(PAGE).text
    assert owner.post(f"{address}notifications/mute/").status_code == 404
    back = owner.post(f"{address}notifications/mute/", {"unmute": "1", "next": "notifications"})
    assert back["Location"] == PAGE
    assert not MutedSession.objects.exists()
    membership.save(force_insert=True)
    assert "Mute notifications" in owner.get(address).text


def test_pages_do_not_mention_notices_to_people_who_chose_none(
    owner: Client, user: User, session: Session
) -> None:
    page = owner.get(f"/s/{session.uuid}/").text
    assert "Mute" not in page
    assert "data-watch" not in page
    assert service.read_notice_status(user.pk, session.uuid).anything is False


def test_an_open_page_reports_that_it_is_viewed_and_left(owner: Client, session: Session) -> None:
    owner.post(f"/s/{session.uuid}/notifications/watch/", {"open": "1"})
    view = SessionView.objects.get()
    assert view.watched_until - view.seen_at == service.VIEW_LIFETIME
    owner.post(f"/s/{session.uuid}/notifications/watch/")
    view.refresh_from_db()
    assert view.watched_until - view.seen_at < service.VIEW_LIFETIME


def test_the_vapid_key_depends_only_on_the_secret_key(
    settings: Any,
) -> None:
    key = vapid.public_key()
    vapid._derive_key.cache_clear()
    assert vapid.public_key() == key
    assert len(vapid.decode(key)) == 65
    settings.SECRET_KEY = "another"
    assert vapid.public_key() != key


# --- the installable app ---


def test_the_manifest_makes_the_pages_installable(owner: Client) -> None:
    """The checks follow the rules of Lighthouse and Chromium."""
    page = owner.get("/").text
    link = re.search(r'<link rel="manifest" href="([^"]+)"', page)
    assert link
    response = Client().get(link[1])
    assert response["Content-Type"] == "application/manifest+json"
    manifest = response.json()
    assert manifest["name"]
    assert len(manifest["short_name"]) <= 12
    assert manifest["display"] == "standalone"
    assert manifest["start_url"].startswith(manifest["scope"])
    sizes = {(icon["sizes"], icon["purpose"]) for icon in manifest["icons"]}
    assert sizes == {("192x192", "any"), ("512x512", "any"), ("512x512", "maskable")}
    for icon in manifest["icons"]:
        path = finders.find(icon["src"].removeprefix("/static/"))
        assert path
        image = Image.open(BytesIO(Path(path).read_bytes()))
        assert "x".join(map(str, image.size)) == icon["sizes"]
    assert 'name="theme-color"' in page
    assert 'name="viewport"' in page


def test_the_service_worker_is_public_and_revalidated_each_time() -> None:
    response = Client().get("/service-worker.js")
    assert response["Content-Type"].startswith("text/javascript")
    assert response["Cache-Control"] == "no-cache"
    assert "importScripts(" in response.text
    offline = Client().get("/offline/")
    assert "You are offline" in offline.text
    assert "loom-person" not in offline.text


def test_a_page_has_an_opaque_mark_of_its_person(owner: Client) -> None:
    mark = re.search(r'name="loom-person" content="(\w+)"', owner.get("/").text)
    other = browser_of(User.objects.create_user("ben"))
    found = re.search(r'name="loom-person" content="(\w+)"', other.get("/").text)
    assert mark
    assert found
    assert mark[1] != found[1]
    assert "loom-person" not in Client().get("/sign-in/").text


def test_signing_out_clears_the_browser_cache(owner: Client) -> None:
    assert owner.post("/sign-out/")["Clear-Site-Data"] == '"cache"'
