"""A Firefox, driven by WebDriver BiDi (https://w3c.github.io/webdriver-bidi/)."""

import asyncio
import itertools
import json
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect


class Firefox:
    """A browser with one tab, with its profile in a folder of the test."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("firefox-esr") or shutil.which("firefox")
        assert program, "make test-firefox installs it"
        self._program = program
        self._profile = profile
        self._numbers = itertools.count(1)
        self._process: asyncio.subprocess.Process
        self._socket: ClientConnection
        self._tab = ""

    async def __aenter__(self) -> Self:
        options = ("--headless", "--no-remote", "--remote-debugging-port", "0", "--profile")
        self._process = await asyncio.create_subprocess_exec(
            *(self._program, *options, str(self._profile)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        told = self._profile / "WebDriverBiDiServer.json"
        async with asyncio.timeout(60):
            while not told.exists():
                await asyncio.sleep(0.1)
        at = json.loads(told.read_text())
        url = f"ws://{at['ws_host']}:{at['ws_port']}/session"
        self._socket = await connect(url, max_size=None)
        await self.do("session.new", capabilities={})
        self._tab = (await self.do("browsingContext.getTree"))["contexts"][0]["context"]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._socket.close()
        self._process.terminate()
        await self._process.wait()

    async def do(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(await self._socket.recv())
            if answer.get("id") == number:
                assert answer["type"] == "success", answer
                return answer["result"]

    async def open(self, url: str) -> None:
        await self.do("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    async def call(self, function: str, argument: Any = None) -> Any:
        """Call a function in the page, given its source. Return its result, converted by JSON."""
        source = f"async () => JSON.stringify(await ({function})({json.dumps(argument)}) ?? null)"
        answer = await self.do(
            "script.callFunction",
            functionDeclaration=source,
            awaitPromise=True,
            target={"context": self._tab},
        )
        assert answer["type"] == "success", answer
        return json.loads(answer["result"]["value"])
