"""Notifications and offline copies of pages in a browser."""

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import (
    NARROW,
    Chat,
    Server,
    add_person,
    take_both_pictures,
    take_picture,
    wait_until,
)

# A browser without Internet access has no push service. Tests give it an unused address and
# deliver pushes through DevTools.
SUBSCRIBE = """
if (Notification.permission === "denied") {
  Object.defineProperty(Notification, "permission", { get: () => "default" });
  Notification.requestPermission = async () => "granted";
}
PushManager.prototype.subscribe = async () => ({ toJSON: () => ({
  endpoint: "https://push.example.org/browser",
  keys: {
    p256dh: "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6S"
      + "RpkNtoIAiw4",
    auth: "BTBZMqHH6r4Tts7J_aSIgg",
  },
}) });
"""

# A headless shell shows no notifications and always denies the permission. In that case, store the
# notifications as they would be shown.
SHOW = """
() => {
  if (Notification.permission === "granted") return;
  const kept = new Map();
  registration.getNotifications = async () => [...kept.values()];
  registration.showNotification = async (title, options) => {
    kept.set(options.tag, { title, ...options, close: () => kept.delete(options.tag) });
  };
}
"""

SHOWN = """
async () => (await registration.getNotifications()).map(({ title, body, tag, actions }) =>
  ({ title, body, tag, actions: actions.map(({ action }) => action) }))
"""


# A notification for the page to close, because the stored notifications exist only in the worker.
NOTICE = """
ServiceWorkerRegistration.prototype.getNotifications = async () => [
  { data: { url: "/s/%s/" }, close() { document.documentElement.dataset.closed = ""; } },
];
"""

KEPT = """
async () => (await (await caches.open("loom-pages")).keys()).map(({ url }) => new URL(url).pathname)
"""


def open_notifications(
    open_context: Callable[..., BrowserContext], server: Server, *, subscribe: str
) -> Page:
    """Open the page of notifications in a browser that allows them, as a new person.

    Notifications add a script to the person's pages, so the person is not the one of other tests.
    """
    context = open_context(
        service_workers="allow",
        permissions=["notifications"],
        storage_state=None,
        timezone_id="Europe/Berlin",
    )
    context.add_init_script(subscribe)
    page = context.new_page()
    page.goto(add_person(server, f"person-{uuid4().hex[:8]}"))
    page.goto(f"{server.url}/account/notifications/")
    return page


@pytest.fixture
def person(open_context: Callable[..., BrowserContext], server: Server) -> Page:
    """Open a page in a browser with service workers and notifications turned on."""
    page = open_notifications(open_context, server, subscribe=SUBSCRIBE)
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.get_by_role("button", name="Turn on").click()
    expect(page.get_by_text("Notifications are on for this device.")).to_be_visible()
    expect(page.get_by_label("Time zone")).to_have_value("Europe/Berlin")
    return page


class Worker:
    """The service worker of a page's site."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._id = ""
        self._devtools = page.context.new_cdp_session(page)
        self._devtools.on("ServiceWorker.workerRegistrationUpdated", self._note)
        self._devtools.send("ServiceWorker.enable")
        while not self._id:
            page.wait_for_timeout(10)
        self.evaluate(SHOW)

    def _note(self, event: dict[str, Any]) -> None:
        for registration in event["registrations"]:
            self._id = registration["registrationId"]

    def evaluate(self, code: str) -> Any:
        [worker] = self._page.context.service_workers
        return worker.evaluate(code)

    @property
    def shown(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.evaluate(SHOWN)
        return found

    def push(self) -> None:
        origin = re.match(r"https?://[^/]+", self._page.url)
        assert origin
        message = {"origin": origin[0], "registrationId": self._id, "data": "{}"}
        self._devtools.send("ServiceWorker.deliverPushMessage", message)

    def push_until_shown(self) -> list[dict[str, Any]]:
        """Push until notifications are shown, and return them.

        Another push may still be on its way then, which has nothing left to show.
        """
        found: list[dict[str, Any]] = []

        def is_shown() -> bool:
            self.push()
            found[:] = self.shown
            return bool(found)

        wait_until(is_shown)
        return found


RUN = ToolCall(name="shell_execute", input={"command": "rm -f beans.txt"})


class Views:
    """The requests by which a page tells the server that it is in view."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._open = 0
        page.on("request", lambda request: self._count(request.url, 1))
        page.on("requestfinished", lambda request: self._count(request.url, -1))

    def _count(self, url: str, change: int) -> None:
        if url.endswith("/notifications/watch/"):
            self._open += change

    def until_heard(self) -> None:
        def is_heard() -> bool:
            self._page.wait_for_timeout(1)  # Playwright reports requests only during a wait
            return not self._open

        wait_until(is_heard)


def test_a_question_is_shown_once_and_answered_from_the_notice(
    person: Page, server: Server, wire: WireThread
) -> None:
    page, views = person, Views(person)
    wire.enqueue(Scenario(text="", tools=(RUN,)))
    wire.enqueue(Scenario(text="Done."))
    with wire.held():
        chat = Chat(page, server).new().send("Remove the beans")
        expect(chat.transcript).to_have_attribute("data-run-state", "running")
        uuid = chat.uuid
        views.until_heard()
        page.goto(f"{server.url}/account/notifications/")
        worker = Worker(page)
    wait_until(
        lambda: (
            'data-run-state="waiting_approval"'
            in page.request.get(f"{server.url}/s/{uuid}/").text()
        )
    )
    # There is nothing to show until the server knows that the person has left the page.
    worker.push_until_shown()
    worker.push()
    worker.push()
    [notice] = worker.shown
    assert notice["title"] == "Remove the beans"
    assert notice["body"].startswith("Needs your approval: Run rm -f beans.txt\n")
    assert notice["actions"] == ["approve", "deny"]
    worker.evaluate(
        "async () => { const [one] = await registration.getNotifications(); one.close();"
        " await decide(one, 'approve'); }"
    )
    page.goto(f"{server.url}/s/{uuid}/")
    expect(page.locator("#rows")).to_contain_text("Done.")
    assert worker.shown == []
    # The page of a turn also closes the session's notifications.
    page.add_init_script(NOTICE % uuid)
    page.goto(f"{server.url}/s/{uuid}/t/1/")
    page.locator("html[data-closed]").wait_for(state="attached")
    # A test notification is shown even if its page is in view.
    page.goto(f"{server.url}/account/notifications/")
    page.get_by_role("button", name="Send a test").click()
    page.wait_for_load_state()
    shown = worker.push_until_shown()
    assert [notice["body"] for notice in shown] == ["Notifications work on this device."]


@pytest.mark.noisy  # a refused request
def test_the_page_says_why_the_server_refuses_a_device(
    open_context: Callable[..., BrowserContext], server: Server
) -> None:
    subscribe = SUBSCRIBE.replace("push.example.org", "localhost")
    page = open_notifications(open_context, server, subscribe=subscribe)
    page.get_by_role("button", name="Turn on").click()
    expect(page.get_by_role("alert")).to_have_text("localhost is not on the public Internet.")


@pytest.mark.noisy  # without a network
def test_offline_copies_are_marked_and_are_deleted_at_sign_out(
    person: Page, server: Server, wire: WireThread
) -> None:
    """A copy in which a person has written is not reloaded when the network returns."""
    page = person
    page.goto(f"{server.url}/")
    worker = Worker(page)
    page.reload()
    wait_until(lambda: len(worker.evaluate(KEPT)) >= 1)
    page.context.set_offline(True)
    worker.evaluate(
        "() => { self.asked = self.fetch;"
        " self.fetch = () => Promise.reject(new TypeError('offline')); }"
    )
    page.goto(f"{server.url}/")
    expect(page.locator(".offline-bar")).to_be_visible()
    page.evaluate("window.isSame = true")
    page.evaluate(LOST_FILE)
    with page.expect_response("**/healthz"):
        page.context.set_offline(False)
    page.wait_for_timeout(500)
    page.locator("#tray").evaluate("(tray) => tray.remove()")
    page.context.set_offline(True)
    name = page.locator("main").get_by_label("Name")
    name.fill("My new workspace")
    with page.expect_response("**/healthz"):
        page.context.set_offline(False)
    page.wait_for_timeout(500)
    assert page.evaluate("window.isSame")
    expect(name).to_have_value("My new workspace")
    with page.expect_navigation():
        page.get_by_role("link", name="Try again").click()
    worker.evaluate("() => { self.fetch = self.asked; }")

    wire.enqueue(Scenario(text="Beans are kept."))
    chat = Chat(page, server).new().ask("Keep the beans")
    uuid = chat.uuid
    page.goto(f"{server.url}/")
    page.goto(f"{server.url}/s/{uuid}/")
    expect(page.locator("#rows")).to_contain_text("Beans are kept.")
    wait_until(lambda: len(worker.evaluate(KEPT)) >= 2)
    page.context.set_offline(True)
    worker.evaluate("() => { self.fetch = () => Promise.reject(new TypeError('offline')); }")
    page.goto(f"{server.url}/s/{uuid}/")
    # The time has the same format as the page's other times.
    as_of = re.compile(r"Offline, as of \d+/\d+/\d+, \d\d:\d\d\.")
    expect(page.locator(".offline-bar")).to_contain_text(as_of)
    expect(page.locator("#rows")).to_contain_text("Beans are kept.")
    take_both_pictures(page, "offline-copy")
    page.set_viewport_size(NARROW)
    take_both_pictures(page, "offline-copy-narrow")
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    page.goto(f"{server.url}/s/{uuid[:-4]}0000/")
    expect(page.get_by_role("heading", level=1)).to_have_text("You are offline")
    page.context.set_offline(False)
    worker.evaluate(ANSWERED % (403, uuid))  # as a proxy may answer
    assert f"/s/{uuid}/" in worker.evaluate(KEPT)
    server.manage("shell", "-c", MOVE.format(uuid))
    page.goto(f"{server.url}/s/{uuid}/")
    wait_until(lambda: f"/s/{uuid}/" not in worker.evaluate(KEPT))
    page.goto(f"{server.url}/account/notifications/")
    take_picture(page, "notifications-narrow")
    page.locator("form[action='/sign-out/'] button").first.evaluate("(one) => one.click()")
    expect(page).to_have_url(re.compile("/sign-in/"))
    wait_until(lambda: worker.evaluate(KEPT) == [])
    worker.evaluate("async () => { await caches.open(PAGES); settings.maxPages = 0; }")
    worker.evaluate("takeOver")
    worker.evaluate("readCopy(new URL(location.href))")
    worker.evaluate(ANSWERED % (404, uuid))
    assert "loom-pages" not in worker.evaluate("async () => caches.keys()")


# The markup of attach.js for a file that failed to upload and can be retried.
LOST_FILE = """
() => {
  const tray = document.createElement("ul");
  tray.id = "tray";
  tray.innerHTML = '<li class="failed"><button></button><button></button></li>';
  document.body.append(tray);
}
"""


# A response that does not come from the product.
ANSWERED = """
async () => {
  const done = [];
  const preloadResponse = new Response("<title>No</title>", { status: %d });
  const waitUntil = (one) => done.push(one);
  await readPage({ preloadResponse, waitUntil }, new URL("/s/%s/", location.href));
  await Promise.all(done);
}
"""

MOVE = """
from uuid import uuid4
from conversations.models import Session
Session.objects.filter(uuid="{}").update(uuid=uuid4())
"""
