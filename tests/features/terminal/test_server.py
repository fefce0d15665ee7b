"""The chat with a running server through its API. The server is a separate process."""

import json
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from benchmarks.processes import Server, clean_environment
from conversations.accounts.tokens import SCOPES, create_token
from conversations.domain.text import dump_json
from conversations.features.terminal.remote import ServerConnection
from conversations.models import Session
from tests.mcp_servers.running import plain
from tests.runtime.tool_stories import answers
from tests.serving import serve_copy
from tests.starting import Starts
from tests.typist import CTRL_C, Program, Typist, someone_reading
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import AtTerminal, Piped, decline_elsewhere

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own"),
]

QUESTION = r"Allow it\? y = yes, a = always .*, n = no .*: "
READY = r"\n> "


@pytest.fixture
def token(user: User, tmp_path: Path) -> Path:
    file = tmp_path / "token"
    secret = create_token(user, name="Terminal", scopes=tuple(SCOPES), lifetime=timedelta(days=1))
    file.write_text(f"{secret}\n")
    return file


@pytest.fixture
def server(
    token: Path, session: Session, wire: WireThread, tmp_path: Path, starts: Starts
) -> Iterator[Server]:
    asking = tmp_path / "mcp.json"
    asking.write_text(dump_json({"servers": {"plain": plain("asks")}}))
    own = {"LOOM_MCP_CONFIG": str(asking)}
    with serve_copy(tmp_path / "data", wire, popen=starts.popen, settings=own) as made:
        yield made


def converse(typist: Typist, server: Server, wire: WireThread) -> None:
    """Chat with the server, which is killed in the middle of an answer and started again."""
    typist.until(READY)
    wire.enqueue(*answers(("write_file", {"path": "beans.md", "content": "Beans\n"})))
    typist.type("go")
    typist.until("Write asks: Create beans.md")
    typist.until(QUESTION)
    typist.type("y")
    typist.until("Done.")
    typist.until(READY)
    wire.enqueue(Scenario(text="Peas, kale and leek. " * 40, rate=40))
    typist.type("more")
    typist.until("kale")
    server.kill()
    server.start()
    typist.until("The server is not responding")
    typist.until("The server stopped during this answer")
    typist.until(READY)
    wire.enqueue(Scenario(text="Here again."))
    typist.type("And now?")
    typist.until("Here again.")
    typist.until(READY)
    for command, said in {
        "/model haiku-5": "Model: Claude Haiku 5.5",
        "/rename Beans": "renamed to Beans",
        "/history beans": r"1|2  ",
        "/new": "New session",
        "/resume bean": r"Beans: .* turns in the archive[\s\S]*Here again\.",
        "/stop": "",
    }.items():
        typist.type(command)
        typist.until(said)
        typist.until(READY)
    typist.type("/quit")


def leave_while_it_hangs(program: Program, server: Server, wire: WireThread) -> None:
    """Leave the program with a second Ctrl-C while the server does not respond."""
    wire.enqueue(Scenario(text="Peas, kale and leek. " * 400, rate=40))
    program.until(READY)
    program.type("more")
    program.until("kale")
    os.kill(server.pid, signal.SIGSTOP)
    program.press(CTRL_C)
    program.until("Stopping")
    program.press(CTRL_C)
    assert program.wait() == 130


def test_a_chat_survives_a_restart_and_can_be_left_if_the_server_hangs(
    at_terminal: AtTerminal,
    server: Server,
    token: Path,
    wire: WireThread,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    starts: Starts,
) -> None:
    at = f"http://127.0.0.1:{server.port}"
    monkeypatch.setattr(settings.LOOM, "chat_server", at)
    monkeypatch.setattr(settings.LOOM, "chat_token_file", str(token))
    at_terminal(lambda typist: converse(typist, server, wire), "--session", "garden")

    own = {"LOOM_DATA_DIR": str(tmp_path), "LOOM_SERVER": at, "LOOM_TOKEN_FILE": str(token)}
    environment = clean_environment(own | {"TERM": "dumb"})
    program = Program("chat", "--session", "beds", environment=environment, starts=starts)
    try:
        leave_while_it_hangs(program, server, wire)
    finally:
        os.kill(server.pid, signal.SIGCONT)
        program.close()


def read_token(file: Path) -> str:
    return file.read_text().strip()


@pytest.mark.usefixtures("questions")
async def test_a_waiting_tool_server_question_is_found_and_declined(
    server: Server, token: Path, session: Session
) -> None:
    at, secret = f"http://127.0.0.1:{server.port}", read_token(token)
    both = ServerConnection(at, secret), ServerConnection(at, secret)
    try:
        await decline_elsewhere(*both, session.uuid)
    finally:
        for one in both:
            await one.close()


class Refusal(BaseHTTPRequestHandler):
    """Responds like a server that is not to be trusted."""

    def do_GET(self) -> None:
        body = json.dumps({"detail": "gone\x1b[2J"}).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_control_characters_of_an_error_are_escaped_at_a_terminal(
    piped: Piped, token: Path
) -> None:
    with HTTPServer(("127.0.0.1", 0), Refusal) as server, someone_reading() as (_, terminal):
        Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        arguments = "--server", at, "--token-file", str(token)
        with pytest.raises(CommandError, match=r"gone\x1b\[2J"):
            piped("hello", arguments=arguments)
        with pytest.raises(CommandError, match=r"gone␛\[2J"):
            call_command("chat", *arguments, stderr=terminal)
        server.shutdown()


def test_a_missing_token_or_server_is_reported(
    piped: Piped, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--server", "http://127.0.0.1:9")
    for arguments, reason in (
        (at, "No token"),
        ((*at, "--token-file", ""), "--token-file is empty"),
        ((*at, "--token-file", f"{token}.gone"), "Cannot read the token"),
        ((*at, "--token-file", str(token)), "not responding"),
        (("--server", "chat.example.org", "--token-file", str(token)), "https://"),
    ):
        with pytest.raises(CommandError, match=reason) as refused:
            piped("hello", arguments=arguments)
        assert refused.value.returncode == 2
    monkeypatch.setattr(settings.LOOM, "chat_token", "a b")
    with pytest.raises(CommandError, match="one word"):
        piped("hello", arguments=at)
