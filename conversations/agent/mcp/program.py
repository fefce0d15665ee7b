"""A server that runs on this machine: a program that exchanges messages as lines.

The program runs under the supervisor for commands of the sandbox. The supervisor ends the program
and all processes that it started on request, and when this process has ended for any reason. A
configured program is trusted with everything that this server's own user may do, unless the
configuration confines it in a sandbox like the commands of the model. It inherits only a few
environment variables.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from conversations.agent.sandbox import supervise
from conversations.agent.sandbox.command_run import (
    PreparedCommand,
    SupervisedProcess,
    default_limits,
    prepare_sandboxed,
    start_supervised,
)
from conversations.domain.errors import Rejected
from conversations.domain.messages import say
from conversations.domain.text import number_text, one_line

from .config import McpError, ServerConfig

MAX_LINE_BYTES = 16_000_000  # Maximum size of one message; a larger one ends the connection

# Maximum size of other output before the first message. Later output of this kind is skipped.
MAX_NOISE_BYTES = 2_000_000
NOISE_LINES_PER_PAUSE = 1000
FLOOD_PAUSE_SECONDS = 0.005

TAIL_CHARS = 4000
READ_BYTES = 256 * 1024
LEAVE_SECONDS = 1.0  # Time that the program has to end by itself
END_SECONDS = supervise.KILL_GRACE_SECONDS + 3
FOR_EVER_SECONDS = 1e9

_ENDINGS = {
    "memory": say("It was ended because it used too much memory."),
    "processes": say("It was ended because it had too many processes."),
}

_PASSED_ON = ("PATH", "HOME", "LANG", "LOGNAME", "USER", "SHELL", "TMPDIR", "TZ")


class ServerProcessError(McpError):
    """The program cannot be started, or sends invalid messages."""


class ServerProcess:
    """A running server. ``tail`` is the end of its error output."""

    def __init__(self, running: SupervisedProcess) -> None:
        self.tail = ""
        self._running = running
        self._end_report: dict[str, Any] | None = None
        self._buffer = bytearray()
        self._has_ended = False

    @classmethod
    async def start(cls, config: ServerConfig, *, folder: Path) -> "ServerProcess":
        """Start a program. Raise ServerProcessError if that fails."""
        try:
            prepared = await asyncio.to_thread(_prepare, config, folder)
            # The supervisor is not started in a thread, because the kernel would end it together
            # with that thread.
            limits = default_limits()
            running = start_supervised(
                prepared,
                folder=folder,
                options={
                    "seconds": FOR_EVER_SECONDS,
                    "processes": limits.processes,
                    "bytes": limits.memory_bytes,
                    "group": "",
                    "limits": {"RLIMIT_CORE": 0},
                },
                what=say("It"),
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except Rejected as error:
            raise ServerProcessError(error.message) from error
        program = cls(running)
        try:
            await program._attach()
        except BaseException:
            program._reap()
            raise
        return program

    async def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        process = self._running.process
        self._output = asyncio.StreamReader(limit=READ_BYTES)
        self._out, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._output), process.stdout
        )
        errors = asyncio.StreamReader(limit=TAIL_CHARS)
        self._err, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(errors), process.stderr
        )
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), process.stdin
        )
        self._input = asyncio.StreamWriter(transport, protocol, None, loop)

        async def collect_tail() -> None:
            while data := await errors.read(READ_BYTES):
                self.tail = (self.tail + data.decode("utf-8", "replace"))[-TAIL_CHARS:]
                await asyncio.sleep(FLOOD_PAUSE_SECONDS)  # Slow down, so a flood costs little

        self._listening = asyncio.create_task(collect_tail())

    async def read_line(self) -> bytes | None:
        """Return the next line, or None at the end. Raise ServerProcessError if it is too long."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > MAX_LINE_BYTES:
                raise ServerProcessError(
                    say(
                        "It sent a message of more than %(limit)s bytes.",
                        limit=number_text(MAX_LINE_BYTES),
                    )
                )
            data = await self._output.read(READ_BYTES)
            if not data:
                self._has_ended = True
                await asyncio.wait({self._listening}, timeout=LEAVE_SECONDS)
                self._reap()
                return None
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    async def write_line(self, line: bytes) -> None:
        """Write a line. Raise OSError if the program has ended."""
        if self._input.is_closing():
            raise BrokenPipeError
        self._input.write(line + b"\n")
        await self._input.drain()

    def describe_end(self) -> str:
        """Return why the program has ended, as far as that is known, with its last output."""
        report = self._end_report or {}
        ending = _ENDINGS.get(report.get("reason", ""))
        if ending is None:
            code = report.get("exit") or 0
            ending = (
                say("It ended with exit code %(code)s.", code=code)
                if code >= 0
                else say("It was ended by signal %(number)s.", number=-code)
            )
        lines = [line for line in self.tail.splitlines() if line.strip()]
        if not lines:
            return ending
        last = one_line(lines[-1], limit=300)
        return say("%(reason)s Last output: %(output)s", reason=ending, output=last)

    async def stop(self) -> None:
        """End the program and all processes that it started, by force if they take too long."""
        self._input.close()
        if not await self._drained(LEAVE_SECONDS):
            self._running.process.terminate()
            if not await self._drained(END_SECONDS):
                self._running.process.kill()
                await self._drained(supervise.KILL_GRACE_SECONDS)
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({self._listening})
        self._out.close()
        self._err.close()
        self._reap()

    async def _drained(self, seconds: float) -> bool:
        """Return whether the program has ended, that is, whether no process has its output open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._has_ended:
                    self._has_ended = not await self._output.read(READ_BYTES)
        return self._has_ended

    def _reap(self) -> None:
        if self._end_report is None:
            self._end_report = self._running.reap(kills=not self._has_ended)


def _prepare(config: ServerConfig, folder: Path) -> PreparedCommand:
    if sys.platform != "linux":
        raise ServerProcessError(say("Tool servers as programs need Linux."))
    if not config.sandbox:
        # The environment has the paths of programs and of a home folder, and the configured
        # variables. It has no secrets of this server.
        common = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment = {"LANG": "C.UTF-8", **common, **config.environment}
        return PreparedCommand(words=list(config.command), environment=environment)
    prepared = prepare_sandboxed(
        config.command,
        root=folder.resolve(),
        limits=default_limits(),
        allows_network=config.network,
    )
    return replace(prepared, environment={**prepared.environment, **config.environment})
