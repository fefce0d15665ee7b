"""A script that fills the file system of a running server's data folder and frees it again.

All checks come from outside: pages, plain forms, the API and a socket. The folder must be on a
small file system of its own (see ``test_full_disk``).
"""

import argparse
import asyncio
import http.client
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copy, copytree
from time import monotonic
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

from benchmarks.processes import WITHOUT_EXTRAS, Server, free_port
from scripts.without import list_features

MIN_FREE = 6
"""The server's LOOM_MIN_FREE_MIB."""
MIB = 2**20
LARGE = 300_000
"""Characters of a message that does not fit into the space that is left in SQLite's log."""
SETTINGS = {"name": "Example", "instructions": "x" * 99_000}
HEADERS = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    type: str
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(slots=True)
class Browser:
    """Requests of a person who is signed in, or of a program with ``token``."""

    port: int
    cookie: str
    token: str = ""

    def get(self, path: str) -> Answer:
        return self._ask("GET", path, b"", {})

    def post_form(self, path: str, values: dict[str, str]) -> Answer:
        return self._ask("POST", path, urlencode(values).encode(), HEADERS)

    def post_json(self, path: str, value: Any) -> Answer:
        return self._ask("POST", path, json.dumps(value).encode(), _OF_JSON)

    def post_file(self, path: str, field_name: str, data: bytes, **values: str) -> Answer:
        parts = [
            f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
            for name, value in values.items()
        ]
        head = f'--B\r\nContent-Disposition: form-data; name="{field_name}"; filename="a.txt"\r\n'
        body = b"".join([*parts, head.encode(), b"\r\n", data, b"\r\n--B--\r\n"])
        return self._ask("POST", path, body, {"Content-Type": "multipart/form-data; boundary=B"})

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        csrf = "c" * 32
        own = (
            {"Authorization": f"Bearer {self.token}"}
            if path.startswith("/api/")
            else {"Cookie": f"{self.cookie}; loom_csrf={csrf}", "X-CSRFToken": csrf}
        )
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            line.request(method, path, body, own | headers)
            response = line.getresponse()
            kind = response.headers.get("Content-Type", "").partition(";")[0]
            return Answer(response.status, kind, response.read().decode())
        finally:
            line.close()


_OF_JSON = {"Content-Type": "application/json"}


class LoggedElsewhere(Server):
    """A server whose log is on another file system, because the log is checked as well."""

    @property
    def log(self) -> Path:
        return self.data_dir.with_name("server.log")


@dataclass(slots=True)
class Ballast:
    """A file that takes up free space."""

    path: Path
    size: int = field(default=0, init=False)

    def leave(self, free: int) -> None:
        """Write until only ``free`` bytes are left."""
        with self.path.open("ab", buffering=0) as file:
            for piece in (64 * 1024, 4096, 1):
                with suppress(OSError):
                    while _free(self.path) - piece >= free:
                        file.write(bytes(piece))

    def give_back(self) -> None:
        self.path.unlink()


def _free(path: Path) -> int:
    found = os.statvfs(path.parent)
    return found.f_bavail * found.f_frsize


class Story:
    def __init__(self, server: Server, session: UUID, token: str) -> None:
        self.server, self.session = server, session
        self.browser = Browser(server.port, server.sign_in(), token)
        self.ballast = Ballast(server.data_dir / "ballast")
        self.acknowledged: list[str] = []
        self.refused: list[str] = []

    async def tell(self) -> None:
        from benchmarks.pages import PageSocket

        page = PageSocket(port=self.server.port, cookie=self.browser.cookie, session=self.session)
        await page.open()
        expect(self.browser.get("/readyz"), 200, {"status": "ready"})
        await self._say(page, "before")

        self.ballast.leave((MIN_FREE - 2) * MIB)
        self._check_that_large_things_stop_first()
        await self._say(page, "while room is short")

        assert (await page.send("long"))["type"] == "ack"
        self.acknowledged.append("long")
        await page.wait_until_busy(seconds=20)
        self.ballast.leave(0)
        assert page.is_busy  # the answer is still streaming
        await self._check_full(page)

        self.ballast.give_back()
        await self._check_again(page)
        await page.close()

    async def _say(self, page: Any, text: str) -> None:
        answer = await page.send(text)
        assert answer["type"] == "ack", answer
        self.acknowledged.append(text)
        await page.wait_until_idle(seconds=20)

    def _check_that_large_things_stop_first(self) -> None:
        ready = expect(self.browser.get("/readyz"), 200).json()
        assert ready["status"] == "ready", ready
        assert "low on disk space" in ready["warnings"][0], ready
        if "interchange" in list_features():
            imported = self.browser.post_file(
                "/import/", "file", b"{}", workspace="example", format="auto"
            )
            assert "The server&#x27;s disk is nearly full" in expect(imported, 507).text
        attached = self.browser.post_file(f"/s/{self.session}/attachments/", "files", b"text")
        assert expect(attached, 507).json()["files"][0]["code"] == "storage_full"
        attached = self.browser.post_file(
            f"/api/v1/sessions/{self.session}/attachments", "files", b"text"
        )
        assert expect(attached, 507).json()["code"] == "storage_full"

    async def _check_full(self, page: Any) -> None:
        text = "x" * LARGE
        ask = asyncio.to_thread
        assert await self._wait_until_ready_is(503) == {"status": "disk full"}
        expect(await ask(self.browser.get, "/healthz"), 200)
        client_id = uuid4().hex
        answer = await page.send(f"{text} by the socket", client_id=client_id)
        assert (answer["type"], answer["code"]) == ("error", "storage_full"), str(answer)[:300]
        assert answer["client_id"] == client_id
        self.refused.append(f"{text} by the socket")

        path = f"/s/{self.session}/"
        form = await ask(self.browser.post_form, f"{path}send/", {"text": f"{text} by a form"})
        assert f"{text} by a form</textarea>" in expect(form, 507).text
        self.refused.append(f"{text} by a form")

        sent = await ask(
            self.browser.post_json,
            f"/api/v1/sessions/{self.session}/messages",
            {"text": f"{text} by the API", "wait": "none"},
        )
        assert expect(sent, 507).json()["code"] == "storage_full", sent
        assert sent.type == "application/problem+json"
        self.refused.append(f"{text} by the API")

        instructions = await ask(self.browser.post_form, "/w/example/settings/", SETTINGS)
        expect(instructions, 507)
        # Reading still works.
        assert "before" in expect(await ask(self.browser.get, path), 200).text

    async def _check_again(self, page: Any) -> None:
        ready = await self._wait_until_ready_is(200)
        assert ready == {"status": "ready"}, ready
        await self._wait_until_answered()
        for text in self.refused:
            await self._say(page, text)

    async def _wait_until_answered(self) -> None:
        end, path = monotonic() + 60, f"/api/v1/sessions/{self.session}/runs"
        while '"running"' in (await asyncio.to_thread(self.browser.get, path)).text:
            assert monotonic() < end
            await asyncio.sleep(0.1)

    async def _wait_until_ready_is(self, status: int) -> Any:
        """Wait for the status of ``/readyz``, whose state of the disk may be a second old."""
        end = monotonic() + 10
        while (found := await asyncio.to_thread(self.browser.get, "/readyz")).status != status:
            assert monotonic() < end, found
            await asyncio.sleep(0.1)
        return found.json()


def expect(answer: Answer, status: int, value: Any = None) -> Answer:
    assert answer.status == status, (answer.status, answer.text[:2000])
    if value is not None:
        assert answer.json() == value, answer.text
    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    folder: Path = given.folder
    copy(given.database, folder / "loom.sqlite3")
    copytree(given.database.parent / "static", folder / "static")
    os.environ["LOOM_DATA_DIR"] = str(folder)

    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "loomweb.settings"
    django.setup()
    own = {"LOOM_MIN_FREE_MIB": str(MIN_FREE), "LOOM_DEMO_DELAY": "0.002"}
    settings = WITHOUT_EXTRAS | own
    server = LoggedElsewhere(
        data_dir=folder, port=free_port(), settings=settings, arguments=("--no-prepare",)
    )
    try:
        server.start()
        story = Story(server, *_prepare(folder))
        asyncio.run(story.tell())
        log = server.log.read_text()
        assert "Traceback" not in log, log
        assert log.count("disk_space_low") == log.count("write_probe_failed") == 1, log
    finally:
        server.stop()
    _check_archive(story, folder)
    print("done")


def _prepare(folder: Path) -> tuple[UUID, str]:
    from django.contrib.auth.models import User

    from benchmarks.bench import Bench
    from conversations.accounts.tokens import create_token

    owner = User.objects.get()
    token = create_token(owner, name="disk", scopes=["read", "write"], lifetime=None)
    return Bench(data_dir=folder, is_quick=True).new_session().uuid, token


def _check_archive(story: Story, folder: Path) -> None:
    from django.core.management import call_command

    from conversations.models import Run, Turn

    turns = Turn.objects.filter(session__uuid=story.session).order_by("number")
    said = [turn.content for turn in turns if turn.role == "user"]
    assert said == [*story.acknowledged], [text[:40] for text in said]
    states = list(Run.objects.order_by("pk").values_list("state", flat=True))
    assert set(states) == {"completed"}, states
    call_command("verify_archive")
    left = [path.name for path in (folder / "imports").glob("*")]
    left += [path.name for path in (folder / "blobs").rglob(".*")]
    assert not left, left


if __name__ == "__main__":
    main()
