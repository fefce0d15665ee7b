"""The chat with a running server, by its API: a process of its own, which is killed once."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError

from benchmarks.processes import Server, clean_environment
from conversations.accounts.tokens import SCOPES, create_token
from conversations.models import Workspace
from tests.runtime.tool_stories import answers
from tests.serving import serve_copy
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import Piped
from .typist import Program

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
def server(token: Path, workspace: Workspace, wire: WireThread, tmp_path: Path) -> Iterator[Server]:
    with serve_copy(tmp_path / "data", wire) as server:
        yield server


def test_a_conversation_with_a_server_survives_its_end(
    server: Server, token: Path, wire: WireThread, tmp_path: Path
) -> None:
    environment = clean_environment(
        {
            "LOOM_DATA_DIR": str(tmp_path / "own"),
            "LOOM_SERVER": f"http://127.0.0.1:{server.port}",
            "LOOM_TOKEN_FILE": str(token),
            "TERM": "dumb",
        }
    )
    program = Program("chat", "--session", "garden", environment=environment)
    try:
        program.until(READY)
        wire.enqueue(*answers(("write_file", {"path": "beans.md", "content": "Beans\n"})))
        program.type("go")
        program.until("Write asks: Create beans.md")
        program.until(QUESTION)
        program.type("y")
        program.until("Done.")
        program.until(READY)
        wire.enqueue(Scenario(text="Peas, kale and leek. " * 40, rate=40))
        program.type("more")
        program.until("kale")
        server.kill()
        server.start()
        program.until("The server is not responding")
        program.until("The server stopped while this answer was being written")
        program.until(READY)
        wire.enqueue(Scenario(text="Here again."))
        program.type("And now?")
        program.until("Here again.")
        program.until(READY)
        for command, said in {
            "/model haiku-5": "Haiku 5.5 answers",
            "/rename Beans": "is called Beans now",
            "/history beans": r"1|2  ",
            "/new": "A new session",
            "/resume bean": "Beans: .* turns in the archive",
            "/stop": "",
        }.items():
            program.type(command)
            program.until(said)
            program.until(READY)
        program.type("/quit")
        assert program.wait() == 0
    finally:
        program.close()
    assert program.screen.count("Here again.") == 2  # live, and where the session stands


def test_without_a_token_or_a_server_it_says_so(
    piped: Piped, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--server", "http://127.0.0.1:9")
    for arguments, reason in (
        (at, "Set one token"),
        ((*at, "--token-file", f"{token}.gone"), "Cannot read the token"),
        ((*at, "--token-file", str(token)), "not responding"),
        (("--server", "chat.example.org", "--token-file", str(token)), "https://"),
    ):
        with pytest.raises(CommandError, match=reason) as refused:
            piped("hello", arguments=arguments)
        assert refused.value.returncode == 2
    monkeypatch.setattr(settings.LOOM, "chat_token", "a b")
    with pytest.raises(CommandError, match="Set one token"):
        piped("hello", arguments=at)
