"""Fixtures: a server in a process of its own, a provider over HTTP, and Chromium."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from shutil import copy, copytree
from typing import Any
from uuid import uuid4

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect
from xdist.scheduler import LoadScopeScheduling

from benchmarks.processes import WITHOUT_EXTRAS, clean_environment, free_port
from scripts.find_browser import find_browser
from tests.starting import Forked, Starts, forked_starts
from tests.wire.server import WireThread

ROOT = Path(__file__).resolve().parents[2]
ARTEFACTS = ROOT / "test-artefacts"
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
WIDE, NARROW = {"width": 1360, "height": 900}, {"width": 360, "height": 740}

NOTE_THE_CONNECTION = """
document.addEventListener(
  "loom:frame", () => { document.documentElement.dataset.connected = "" }, { once: true }
);
"""

NAME_OF_THE_MODEL_FITS = """
() => {
  const select = document.querySelector("#model"), { width } = select.getBoundingClientRect();
  select.style.cssText = "flex: none; max-width: none";
  const wanted = select.getBoundingClientRect().width;
  select.style.cssText = "";
  return width >= wanted;
}
"""

WORKER_BLOCKED = "Service Worker registration blocked by Playwright"

expect.set_options(timeout=30_000)


OWN_SERVER = ("test_both_servers.py", "test_full_disk.py", "test_tool_servers.py")
"""Modules whose tests share a server of their own."""

SMALL_SERVER = ("test_restarts.py", "test_window.py")
"""Modules that share a server with small limits."""


class ByServer(LoadScopeScheduling):  # type: ignore[misc]
    """A scheduler that gives each test to the first free worker.

    All tests that share another server than the ordinary one go to one worker, so this server is
    started only once. They come first.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if module.endswith(SMALL_SERVER):
            return "small server"
        return module if module.endswith(OWN_SERVER) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServer:
    return ByServer(config, log)


class Server:
    """A `manage.py serve` process with its own data folder, which can be killed and restarted."""

    def __init__(self, folder: Path, environment: dict[str, str], starts: Starts) -> None:
        self.folder = folder
        # Without extras, because tests count model requests and every message would be embedded.
        self.environment = clean_environment(
            WITHOUT_EXTRAS | {"LOOM_DATA_DIR": str(folder)} | environment
        )
        self.link = ""
        self.url = ""
        self.signed_in_state: Any = None
        self._resources = ExitStack()
        self._log = self._resources.enter_context((folder / "server.log").open("a"))
        self._all_starts = starts
        self._process: Forked | subprocess.Popen[str] | None = None

    @cached_property
    def _starts(self) -> Starts:
        return self._resources.enter_context(self._all_starts.loaded(self.environment))

    def start(self) -> None:
        self.environment.setdefault("LOOM_PORT", str(free_port()))
        self._process = self.launch("manage.py", "serve")
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"(http\S+?)/sign-in/link/\S+", line):
                self.link, self.url = found.group(0), found.group(1)
            if "Ctrl-C" in line:
                return
        raise AssertionError((self.folder / "server.log").read_text())

    def launch(self, *command: str) -> "Forked | subprocess.Popen[str]":
        return self._starts.popen(
            [sys.executable, *command],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def end(self) -> int | None:
        """Shut the server down with SIGTERM, and return its exit code."""
        return self._end(signal.SIGTERM)

    def stop(self) -> None:
        """Shut the server down and release its resources.

        The signal is SIGTERM, because processes ignore SIGINT if the tests that start them run in
        the background of a shell.
        """
        self._end(signal.SIGTERM)
        self._resources.close()

    def _end(self, how: signal.Signals) -> int | None:
        if self._process is None:
            return None
        self._process.send_signal(how)
        code = self._process.wait(20)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        return code

    def manage(self, *arguments: str) -> str:
        """Run a management command on the same data in another process, and return its output."""
        ended = self._starts.run("manage.py", *arguments, env=self.environment)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def sign_in_link(self) -> str:
        """Return a new sign-in link. Each link works once."""
        found = re.search(r"http\S+/sign-in/link/\S+", self.manage("sign_in_link"))
        assert found
        return found[0]

    def import_lines(self, lines: Iterable[Mapping[str, object]]) -> None:
        file = self.folder / "import.jsonl"
        file.write_text("\n".join(json.dumps(line) for line in lines))
        self.manage("import_sessions", str(file))


class Visitors:
    """A counter of connections to an address that nothing should reach."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.count = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                visitor, _ = self.socket.accept()
            except OSError:
                return
            self.count += 1
            visitor.close()


@pytest.fixture
def evil() -> Iterator[Visitors]:
    visitors = Visitors()
    yield visitors
    visitors.socket.close()


@pytest.fixture(scope="session")
def provider() -> Iterator[WireThread]:
    server = WireThread()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def wire(provider: WireThread) -> WireThread:
    provider.server.forget()
    return provider


# Create the tables from the models. tests/test_migrations.py checks that migrations match them.
PREPARE = """
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from conversations.management.commands._first_run import collect_static_files
settings.MIGRATION_MODULES = dict.fromkeys(one.label for one in apps.get_app_configs())
call_command("migrate", verbosity=0, run_syncdb=True)
settings.MIGRATION_MODULES = {}
call_command("migrate", verbosity=0, fake=True)
collect_static_files()
"""


@pytest.fixture(scope="session")
def starts() -> Iterator[Starts]:
    with forked_starts() as made:
        yield made


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, worker_id: str, starts: Starts) -> Path:
    """Return a data folder with a migrated database, the static files and axe.

    The folder is made once for all workers, because making it is most of a first start.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "prepared"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "static").exists():
            env = clean_environment({"LOOM_DATA_DIR": str(folder)})
            made = starts.run("manage.py", "shell", "-v", "0", "-c", PREPARE, env=env)
            assert made.returncode == 0, made.stderr
            copy(AXE, folder / "static")
    return folder


@pytest.fixture(scope="session")
def make_server(
    tmp_path_factory: pytest.TempPathFactory, prepared: Path, starts: Starts
) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def make(**environment: str) -> Server:
        server = Server(tmp_path_factory.mktemp("data"), environment, starts)
        started.append(server)
        copy(prepared / "loom.sqlite3", server.folder)
        copytree(prepared / "static", server.folder / "static")
        server.start()
        return server

    yield make
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(make_server: Callable[..., Server], provider: WireThread) -> Server:
    """Start a server with a provider and small limits for pages, rows, files and messages."""
    return start_ordinary(make_server, provider)


def start_ordinary(
    make_server: Callable[..., Server], provider: WireThread, **environment: str
) -> Server:
    return make_server(
        **environment,
        ANTHROPIC_API_KEY=provider.key,
        ANTHROPIC_BASE_URL=provider.url,
        LOOM_PAGE_SIZE="50",
        LOOM_OLDER_PAGE_SIZE="40",
        LOOM_RENDER_CAP="150",
        LOOM_MAX_ATTACHMENT_BYTES="1000000",
        LOOM_MAX_MESSAGE_CHARS="40000",
        LOOM_PROVIDER_RETRIES="1",
        LOOM_SHARE_LINKS="yes",
        LOOM_MODELS="claude-sonnet-5-5,claude-haiku-5-5",
    )


@pytest.fixture(scope="session")
def small_server(make_server: Callable[..., Server], provider: WireThread) -> Server:
    """Start a server with a small window, few rows on a page, small frames and few open pages.

    Tests may kill and restart it.
    """
    return make_server(
        ANTHROPIC_API_KEY=provider.key,
        ANTHROPIC_BASE_URL=provider.url,
        LOOM_MAX_INPUT_TOKENS="2500",
        LOOM_PAGE_SIZE="12",
        LOOM_OLDER_PAGE_SIZE="6",
        LOOM_MAX_FRAME_BYTES="20000",
        LOOM_MAX_SOCKETS="2",
    )


@pytest.fixture(scope="session")
def story(server: Server) -> str:
    """Import a session with every kind of row, readable or not, and return its uuid."""
    server.manage("import_sessions", str(Path(__file__).parent / "every_row.jsonl"))
    return "11111111-2222-4333-8444-555555555555"


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    return {
        **browser_type_launch_args,
        "executable_path": find_browser(),
        "args": [
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--disable-dev-shm-usage",
        ],
    }


@pytest.fixture
def signed_in_state(browser: Browser, server: Server) -> Any:
    """Return the storage state of a browser that has followed the server's sign-in link.

    Each server is asked only once.
    """
    if server.signed_in_state is None:
        context = browser.new_context()
        context.new_page().goto(server.link)
        server.signed_in_state = context.storage_state()
        context.close()
    return server.signed_in_state


@pytest.fixture
def open_context(
    browser: Browser, signed_in_state: Any, request: pytest.FixtureRequest
) -> Iterator[Callable[..., BrowserContext]]:
    """Yield a function that opens a browser context of the signed-in person.

    Errors and warnings on the console fail the test, unless it is marked ``noisy``.
    """
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_one(**options: Any) -> BrowserContext:
        options = {
            "viewport": WIDE,
            "storage_state": signed_in_state,
            "service_workers": "block",  # a worker would hide that a page is missing
            **options,
        }
        context = browser.new_context(**options)
        context.add_init_script(NOTE_THE_CONNECTION)
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        context.on(
            "console",
            lambda message: (
                complaints.append(message.text)
                if message.type in ("error", "warning") and message.text != WORKER_BLOCKED
                else None
            ),
        )
        contexts.append(context)
        return context

    yield open_one
    for context in contexts:
        context.close()
    if request.node.get_closest_marker("noisy") is None:
        assert complaints == []


@pytest.fixture
def tab(open_context: Callable[..., BrowserContext]) -> Page:
    return open_context().new_page()


class Chat:
    """The chat page, used by roles and names as a person uses it."""

    def __init__(self, page: Page, server: Server) -> None:
        self.page = page
        self.server = server

    @property
    def transcript(self) -> Locator:
        return self.page.locator("#transcript")

    @property
    def message(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message")

    @property
    def rows(self) -> Locator:
        return self.page.locator("#rows [data-seq]")

    def new(self) -> "Chat":
        """Create a session as the "New session" button does, and open it."""
        url = f"{self.server.url}/w/example/new/"
        [token] = [c["value"] for c in self.page.context.cookies(url) if "csrf" in c["name"]]
        form = {"csrfmiddlewaretoken": token}
        made = self.page.request.post(url, form=form, max_redirects=0)
        self.page.goto(self.server.url + made.headers["location"])
        return self.wait_connected()

    def wait_connected(self) -> "Chat":
        """Wait for the first frame from the server."""
        self.page.locator("html[data-connected]").wait_for(state="attached")
        return self

    def open(self, uuid: str, path: str = "") -> "Chat":
        self.page.goto(f"{self.server.url}/s/{uuid}/{path}")
        return self

    @property
    def uuid(self) -> str:
        return str(self.transcript.get_attribute("data-session"))

    def send(self, text: str) -> "Chat":
        self.message.fill(text)
        self.message.press("Enter")
        return self

    def wait_idle(self) -> "Chat":
        expect(self.transcript).to_have_attribute("data-run-state", "idle")
        return self

    def ask(self, text: str) -> "Chat":
        """Send a message and wait for the end of its answer."""
        before = self.page.locator('#rows [data-event-type="turn_separator"]').count()
        self.send(text)
        separators = self.page.locator('#rows [data-event-type="turn_separator"]')
        expect(separators).to_have_count(before + 1)
        return self.wait_idle()

    def load(self, name: str, until: Callable[[], bool]) -> None:
        """Press the link to older or newer rows until the condition is met.

        If the link is visible, it may also load rows by itself, and is then replaced.
        """
        self.wait_connected()  # before the page's scripts run, the link opens another page
        link = self.page.get_by_role("button", name=name)

        def has_come() -> bool:
            link.evaluate_all("all => all[0]?.click()")
            settle(0.1)
            return until()

        wait_until(has_come, seconds=30)

    def rows_html(self) -> str:
        return str(self.page.evaluate("document.querySelector('#rows').innerHTML"))


@pytest.fixture
def chat(tab: Page, server: Server) -> Chat:
    return Chat(tab, server).new()


@pytest.fixture
def open_chat(open_context: Callable[..., BrowserContext], server: Server) -> Callable[..., Chat]:
    return lambda **options: Chat(open_context(**options).new_page(), server)


def long_session(
    server: Server, *, turns: int, title: str = "A long one", words: str = "Row number"
) -> str:
    """Import a session of many short turns with their events, and return its uuid.

    Each turn is the words and its number.
    """
    uuid = str(uuid4())
    lines = [{"type": "session", "uuid": uuid, "workspace": "example", "title": title}]
    for number in range(1, turns + 1):
        role = "user" if number % 2 else "assistant"
        text = f"{words} {number}"
        lines.append({"type": "turn", "number": number, "role": role, "content": text})
        kind = "user_message" if role == "user" else "assistant_text"
        lines.append(
            {
                "type": "event",
                "seq": number,
                "event_type": kind,
                "payload": {"text": text},
                "turn": number,
            }
        )
    server.import_lines(lines)
    return uuid


ADD_PERSON = """
from django.contrib.auth.models import User
from conversations.archive.workspaces import add_member, create_sign_in_link, get_workspace
user = User.objects.create_user("{}")
add_member(get_workspace("example"), user_pk=user.pk, role="member")
print(create_sign_in_link(user))
"""


def add_person(server: Server, name: str) -> str:
    """Create a member of the workspace, and return the person's sign-in link."""
    token = server.manage("shell", "-v", "0", "-c", ADD_PERSON.format(name)).split()[-1]
    return f"{server.url}/sign-in/link/{token}/"


def drop_path(page: Page, path: Path) -> None:
    """Drop a file or folder of the disk onto the page, as a file manager does."""
    files = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    devtools = page.context.new_cdp_session(page)
    # Chromium drops only after the page has accepted the drag, which takes some time.
    for kind in ("dragEnter", "dragOver", "dragOver", "dragOver", "drop"):
        how = {"type": kind, "x": 700, "y": 400, "data": files}
        devtools.send("Input.dispatchDragEvent", how)
        page.wait_for_timeout(50)


def proxy_error(status: int) -> Callable[[Route], None]:
    """Return a handler of requests that answers like a proxy without its server."""
    page = f"<html><h1>{status}</h1></html>"
    return lambda route: route.fulfill(status=status, content_type="text/html", body=page)


def take_picture(page: Page, name: str) -> None:
    """Save a picture of the page in the tests' artefacts if ``PICTURES`` is set."""
    if not os.environ.get("PICTURES"):
        return
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"{name}.png")


def take_both_pictures(page: Page, name: str) -> None:
    """Save a picture of the page in each scheme."""
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        take_picture(page, f"{name}-{scheme}")


def wait_until(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Wait for a condition outside the browser."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def settle(seconds: float = 0.3) -> None:
    time.sleep(seconds)
