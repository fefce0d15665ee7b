"""A process that runs only the provider's SDK: ``python -m benchmarks.sdk URL``

It reads lines with a JSON list of messages from its standard input. It sends all messages of a
line at once, reads the streams of the answers to their ends, and prints the processor time used.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import process_time

from .processes import ROOT, Wire, clean_environment
from .wire import KEY


class Sdk:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def cpu_seconds(self, texts: Sequence[str]) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(texts) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


@contextmanager
def running_sdk(wire: Wire) -> Iterator[Sdk]:
    process = subprocess.Popen(  # noqa: S603 (our own)
        [sys.executable, "-m", "benchmarks.sdk", wire.url],
        cwd=ROOT,
        env=clean_environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        sdk = Sdk(process)
        sdk.cpu_seconds(["Hello"])  # makes the process import the SDK and connect
        wire.take_answers()
        yield sdk
    finally:
        process.kill()
        process.communicate()


async def _serve(url: str) -> None:
    import anthropic

    client = anthropic.AsyncAnthropic(
        api_key=KEY, base_url=url, http_client=anthropic.DefaultAioHttpClient()
    )

    async def read(text: str) -> None:
        stream = await client.messages.create(
            model="claude-sonnet-5-5",
            max_tokens=9000,
            messages=[{"role": "user", "content": text}],
            stream=True,
        )
        async for _ in stream:
            pass

    while line := await asyncio.to_thread(sys.stdin.readline):
        began = process_time()
        await asyncio.gather(*(read(text) for text in json.loads(line)))
        print(process_time() - began, flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
