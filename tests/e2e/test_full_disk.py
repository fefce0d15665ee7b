"""A message that does not fit on the server's disk, in a browser with and without scripts."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copy, copytree

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from conversations.agent.sandbox.supervise import children
from tests.crash.fill_disk import Ballast
from tests.starting import Starts

from .conftest import NARROW, ROOT, Chat, Server, take_picture

TEXT = "A message that is to be kept. " * 2000


class OnSmallDisk(Server):
    """A server whose data folder is a small file system that only its own process sees."""

    def launch(self, *command: str) -> subprocess.Popen[str]:
        small = self.folder / "data"
        copied = ["sh", "-c", 'cp -r "$1"/. "$2"; shift 2; exec "$@"', "sh"]
        return subprocess.Popen(
            [
                *("bwrap", "--dev-bind", "/", "/", "--size", str(40 * 2**20), "--tmpfs", small),
                *("--die-with-parent", *copied, self.folder / "seed", small),
                *(sys.executable, *command),
            ],
            cwd=ROOT,
            env=self.environment | {"LOOM_DATA_DIR": str(small)},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    @property
    def disk(self) -> Path:
        """Return the path of the file system as the server's process sees it."""
        [pid] = children(self.pid)
        return Path(f"/proc/{pid}/root{self.folder}/data")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, prepared: Path, starts: Starts
) -> Iterator[OnSmallDisk]:
    folder = tmp_path_factory.mktemp("small")
    (folder / "data").mkdir()
    (folder / "seed").mkdir()
    copy(prepared / "loom.sqlite3", folder / "seed")
    copytree(prepared / "static", folder / "seed" / "static")
    environment = {"LOOM_DEMO_DELAY": "0.005", "LOOM_MIN_FREE_MIB": "2"}
    server = OnSmallDisk(folder, environment, starts)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def full_disk(server: OnSmallDisk) -> Iterator[Ballast]:
    ballast = Ballast(server.disk / "ballast")
    ballast.leave(0)
    yield ballast
    ballast.path.unlink(missing_ok=True)


def test_a_refused_message_stays_in_the_composer(
    server: OnSmallDisk, tab: Page, request: pytest.FixtureRequest
) -> None:
    chat = Chat(tab, server).new()
    full: Ballast = request.getfixturevalue("full_disk")
    chat.message.fill(TEXT)
    tab.get_by_role("button", name="Send").click()
    refusal = tab.get_by_role("alert").filter(has_text="disk is full")
    expect(refusal).to_be_visible()
    expect(chat.message).to_have_value(TEXT.strip())
    expect(tab.locator("#pending > *")).to_have_count(0)
    take_picture(tab, "full-disk")
    tab.emulate_media(color_scheme="dark")
    tab.set_viewport_size(NARROW)
    take_picture(tab, "full-disk-narrow-dark")
    full.give_back()
    tab.get_by_role("button", name="Send").click()
    expect(tab.locator('#rows [data-event-type="user_message"]')).to_have_count(1)
    expect(chat.message).to_have_value("")
    expect(refusal).to_be_hidden()


@pytest.mark.noisy
def test_a_refused_message_stays_in_the_composer_without_javascript(
    server: OnSmallDisk,
    tab: Page,
    open_context: Callable[..., BrowserContext],
    request: pytest.FixtureRequest,
) -> None:
    uuid = Chat(tab, server).new().uuid
    plain = open_context(java_script_enabled=False).new_page()
    chat = Chat(plain, server).open(uuid)
    request.getfixturevalue("full_disk")
    chat.message.fill(TEXT)
    plain.get_by_role("button", name="Send").click()
    expect(plain.get_by_role("alert")).to_contain_text("disk is full")
    expect(chat.message).to_have_value(TEXT)
    take_picture(plain, "full-disk-plain")
