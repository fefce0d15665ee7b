"""Coding agents, each in a scripted task.

The agent creates a file with one of its own tools. The server crashes in the middle of an answer.
After the next start the agent continues.
"""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, sleep

import pytest

from benchmarks.processes import clean_environment
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import INSTALLED, MODEL, Installation, find_node

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own"),
]

PACKAGES = INSTALLED / "node_modules"
FILE, TEXT = "hello.txt", "hello world\n"
SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A coding agent and its configuration.

    ``program`` is a path below the folder of the clients. ``start`` and ``resume`` are arguments
    before the person's message. ``settings`` are files of the agent's home, by path. In these files
    and in ``environment``, ``{address}`` and ``{token}`` stand for those of the server. ``call`` is
    the tool call that creates a file, and ``{folder}`` in it stands for the working folder.
    ``begun`` is the number of turns before the person's first message. ``asides`` are the
    beginnings of messages that the agent sends on its own.
    """

    program: str
    start: Sequence[str]
    resume: Sequence[str]
    call: ToolCall | None
    settings: dict[str, str]
    environment: dict[str, str]
    begun: int = 0
    asides: tuple[str, ...] = ()


TURNS = "SELECT session_id, role, content FROM conversations_turn ORDER BY session_id, number"
CHUNKS = "SELECT id FROM conversations_draftchunk LIMIT 1 OFFSET 4"
MAKING = [("assistant", "I make it."), ("tool", ""), ("assistant", "It is there.")]


def api(protocol: str) -> str:
    return "{address}/api/v1/" + protocol + "/garden"


WRITING = f"printf 'hello world\\n' > {FILE}"

CLAUDE_CODE = Agent(
    program="node_modules/@anthropic-ai/claude-code-linux-x64/claude",
    start=["--dangerously-skip-permissions", "-p"],
    resume=["--dangerously-skip-permissions", "--continue", "-p"],
    call=ToolCall(name="Write", input={"file_path": "{folder}/" + FILE, "content": TEXT}),
    settings={},
    environment={
        "ANTHROPIC_BASE_URL": api("anthropic"),
        "ANTHROPIC_AUTH_TOKEN": "{token}",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    },
)


def opencode(package: str, protocol: str) -> Agent:
    options = {"baseURL": api(protocol) + "/v1", "apiKey": "{token}"}
    provider = {"npm": package, "name": "Loom", "options": options, "models": {MODEL: {}}}
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"loom/{MODEL}",
        "small_model": f"loom/{MODEL}",
        "provider": {"loom": provider},
    }
    return Agent(
        program="node_modules/opencode-linux-x64/bin/opencode",
        start=["run"],
        resume=["run", "--continue"],
        call=ToolCall(name="write", input={"filePath": "{folder}/" + FILE, "content": TEXT}),
        settings={".config/opencode/opencode.json": json.dumps(settings)},
        asides=("Generate a title",),
        environment={
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
    )


CODEX_SETTINGS = f"""\
model = "{MODEL}"
model_provider = "loom"
check_for_update_on_startup = false
web_search = "disabled"
[analytics]
enabled = false
[agents]
enabled = false
[model_providers.loom]
name = "Loom"
base_url = "{api("openai")}/v1"
env_key = "LOOM_TOKEN"
wire_api = "responses"
"""
CODEX_FREE = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
CODEX = Agent(
    program="node_modules/@openai/codex/bin/codex.js",
    start=["exec", *CODEX_FREE],
    resume=["exec", "resume", "--last", *CODEX_FREE],
    call=ToolCall(name="exec_command", input={"cmd": WRITING}),
    settings={".codex/config.toml": CODEX_SETTINGS},
    environment={"LOOM_TOKEN": "{token}"},
)

QWEN_SETTINGS = {
    "general": {"enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "security": {"auth": {"selectedType": "openai"}},
}
QWEN = Agent(
    program="node_modules/@qwen-code/qwen-code/cli.js",
    start=["--yolo", "-p"],
    resume=["--yolo", "--continue", "-p"],
    call=ToolCall(name="write_file", input={"file_path": "{folder}/" + FILE, "content": TEXT}),
    settings={".qwen/settings.json": json.dumps(QWEN_SETTINGS)},
    begun=2,  # A message about the working folder, and its answer.
    asides=("Managed memory directory",),
    environment={
        "OPENAI_API_KEY": "{token}",
        "OPENAI_BASE_URL": api("openai") + "/v1",
        "OPENAI_MODEL": MODEL,
    },
)

AIDER_OPTIONS = [
    *("--model", f"openai/{MODEL}", "--yes-always", "--no-git"),
    *("--max-chat-history-tokens", "1000000"),
    *("--no-analytics", "--no-check-update", "--no-show-model-warnings", "--no-detect-urls"),
]
AIDER_SETTINGS = f"""\
- name: openai/{MODEL}
  extra_params:
    extra_headers:
      Loom-Session-Key: aider:hello
"""
AIDER = Agent(
    program="aider/bin/aider",
    start=[*AIDER_OPTIONS, "--message"],
    resume=[*AIDER_OPTIONS, "--restore-chat-history", "--message"],
    call=None,  # It has no tools. The text of the answer contains the file.
    begun=6,  # An example, and messages that there are no files yet.
    settings={".aider.model.settings.yml": AIDER_SETTINGS},
    environment={
        "OPENAI_API_KEY": "{token}",
        "OPENAI_API_BASE": api("openai") + "/v1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
)

AGENTS = {
    "claude-code": CLAUDE_CODE,
    "opencode": opencode("@ai-sdk/openai-compatible", "openai"),
    "opencode-anthropic": opencode("@ai-sdk/anthropic", "anthropic"),
    "codex": CODEX,
    "qwen-code": QWEN,
    "aider": AIDER,
}


class Person:
    """A person who works with the agent in a folder."""

    def __init__(self, agent: Agent, installation: Installation) -> None:
        self.agent, self.installation = agent, installation
        self.program = INSTALLED / agent.program
        if not self.program.exists():
            pytest.skip(f"{agent.program} is not installed: make test-clients")
        self.folder = installation.folder / "work"
        self.folder.mkdir()
        for name, text in agent.settings.items():
            path = installation.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._fill(text))

    def _fill(self, text: str) -> str:
        known = {"address": self.installation.address, "token": self.installation.token}
        for name, value in (known | {"folder": str(self.folder)}).items():
            text = text.replace("{" + name + "}", value)
        return text

    def make_calls(self) -> tuple[ToolCall, ...]:
        call = self.agent.call
        if call is None:
            return ()
        given = {name: self._fill(value) for name, value in call.input.items()}
        return (ToolCall(name=call.name, input=given),)

    def say(self, text: str, *, again: bool = False) -> subprocess.Popen[str]:
        """Start the agent with a message. Return its process."""
        node = find_node()
        own = {name: self._fill(value) for name, value in self.agent.environment.items()}
        own |= {
            "HOME": str(self.installation.folder),
            "PWD": str(self.folder),
            "NO_PROXY": "127.0.0.1",
            "PATH": f"{node.parent}:{os.environ['PATH']}",
        }
        command = [self.program, *(self.agent.resume if again else self.agent.start), text]
        if self.program.suffix == ".js":
            command.insert(0, node)
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=self.folder,
            env=clean_environment({}) | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ask(self, text: str, *, again: bool = False) -> str:
        """Run the agent with a message. Return its output."""
        process = self.say(text, again=again)
        try:
            said, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert process.returncode == 0, said[-4000:]
        return said


def wait_until(is_so: Callable[[], object]) -> None:
    end = monotonic() + SECONDS
    while not is_so():
        assert monotonic() < end
        sleep(0.05)


def read_sessions(installation: Installation) -> list[list[tuple[str, str]]]:
    """Return the role and text of each turn, by session."""
    return [
        [(role, text) for pk, role, text in installation.read(TURNS) if pk == session]
        for (session,) in installation.read("SELECT id FROM conversations_session ORDER BY id")
    ]


@pytest.mark.parametrize("name", AGENTS)
def test_a_task_with_a_server_crash_is_one_session(
    name: str, installation: Installation, wire: WireThread
) -> None:
    agent = AGENTS[name]
    person = Person(agent, installation)
    tool = agent.call.name if agent.call else ""
    making = [
        Scenario(text="I make it.", tools=person.make_calls(), needs_tool=tool),
        Scenario(text="It is there.", needs_tool=tool),
    ]
    wire.enqueue(
        *(making if agent.call else [Scenario(text=f"{FILE}\n```\n{TEXT}```\n")]),
        Scenario(words=1_000, rate=40, needs_tool=tool),
        Scenario(text="Welcome.", needs_tool=tool),
    )
    person.ask(f"Create {FILE}")
    assert (person.folder / FILE).read_text() == TEXT
    process = person.say("Tell me a story.", again=True)
    wait_until(lambda: installation.read(CHUNKS))
    installation.server.kill()
    process.kill()
    process.communicate()
    installation.server.start()
    person.ask("Thank you.", again=True)
    sessions = read_sessions(installation)
    # Some agents have more sessions for messages of their own, such as requests for titles.
    talks = [one for one in sessions if any(said.startswith(agent.asides) for _, said in one)]
    assert len(sessions) == 1 + len(talks)
    (session,) = [one for one in sessions if one not in talks]
    expected = [
        ("user", f"Create {FILE}"),
        *(MAKING if agent.call else [("assistant", TEXT)]),
        ("user", "Tell me a story."),
        ("assistant", "The archive keeps every word"),
        ("user", "Thank you."),
        ("assistant", "Welcome."),
    ]
    assert len(session) == len(expected) + agent.begun
    for (role, text), (told_role, told) in zip(session[agent.begun :], expected, strict=True):
        assert role == told_role
        assert told in text
    if agent.call:
        given = wire.requests[-1]["messages"]
        results = [b for m in given for b in m["content"] if b["type"] == "tool_result"]
        assert [result["content"] for result in results] == [session[agent.begun + 2][1]]


def test_a_tool_call_survives_a_server_crash(installation: Installation, wire: WireThread) -> None:
    person = Person(CLAUDE_CODE, installation)
    waiting = {"command": "touch begun; sleep 4; echo finished", "description": "Wait"}
    wire.enqueue(
        Scenario(text="I wait.", tools=(ToolCall(name="Bash", input=waiting),), needs_tool="Bash"),
        Scenario(text="It has finished.", needs_tool="Bash"),
        Scenario(text="Welcome.", needs_tool="Bash"),
    )
    process = person.say("Wait a little.")
    wait_until((person.folder / "begun").exists)
    installation.server.kill()
    installation.server.start()
    said, _ = process.communicate(timeout=SECONDS)
    assert said.strip() == "It has finished."
    person.ask("Thank you.", again=True)
    (session,) = read_sessions(installation)
    assert session[3:] == [
        ("user", "[Result of Bash]\nfinished"),
        ("assistant", "It has finished."),
        ("user", "Thank you."),
        ("assistant", "Welcome."),
    ]


@pytest.mark.parametrize("name", ["opencode", "codex"])
def test_an_agent_that_retries_after_a_crash_gets_its_answer(
    name: str, installation: Installation, wire: WireThread
) -> None:
    agent = AGENTS[name]
    assert agent.call is not None
    person, tool = Person(agent, installation), agent.call.name
    wire.enqueue(
        Scenario(words=1_000, rate=40, needs_tool=tool),
        Scenario(text="That is all.", needs_tool=tool),
        Scenario(text="Welcome.", needs_tool=tool),
    )
    process = person.say("Tell me a story.")
    wait_until(lambda: installation.read(CHUNKS))
    installation.server.kill()
    installation.server.start()
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    person.ask("Thank you.", again=True)
    sessions = read_sessions(installation)
    (session,) = [one for one in sessions if not one[0][1].startswith(agent.asides)]
    said, broken, whole, thanks, answer = session
    assert "Tell me a story." in said[1]
    assert broken[1].startswith("The archive keeps")
    assert whole == ("assistant", "That is all.")
    assert "Thank you." in thanks[1]
    assert answer == ("assistant", "Welcome.")


def test_a_subagent_has_a_session_of_its_own(installation: Installation, wire: WireThread) -> None:
    person = Person(CLAUDE_CODE, installation)
    asked = {"description": "Look", "prompt": "List.", "subagent_type": "general-purpose"}
    looking = {"command": "echo beans", "description": "List"}
    wire.enqueue(
        Scenario(text="I ask.", tools=(ToolCall(name="Agent", input=asked),), needs_tool="Agent"),
        Scenario(text="I look.", tools=(ToolCall(name="Bash", input=looking),), needs_tool="Bash"),
        Scenario(text="There are beans.", needs_tool="Bash"),
        Scenario(text="It has looked.", needs_tool="Agent"),
    )
    assert person.ask("Have an agent look.").strip() == "It has looked."
    own, other = read_sessions(installation)
    assert [role for role, _ in own] == ["user", "assistant", "tool", "assistant"]
    assert "There are beans." in own[2][1]
    assert other[1:] == [
        ("assistant", "I look."),
        ("tool", "beans"),
        ("assistant", "There are beans."),
    ]
