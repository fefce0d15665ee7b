"""Files that are marked because other programs run them by themselves."""

import pytest

from conversations.agent.files.executed_files import names_self_running, runs_itself

MARKED = (
    ".envrc",
    "sub/.envrc",
    ".vscode/tasks.json",
    ".vscode",
    "a/.VSCode/settings.json",
    ".idea/runConfigurations/x.xml",
    ".devcontainer/devcontainer.json",
    ".husky/_/pre-commit",
    ".pre-commit-config.yaml",
    ".claude/settings.local.json",
    ".mcp.json",
    "x.code-workspace",
)
PLAIN = ("Makefile", "package.json", "conftest.py", "vscode/tasks.json", "envrc", "src/claude/a")


@pytest.mark.parametrize("path", MARKED)
def test_files_that_run_by_themselves_are_marked(path: str) -> None:
    assert runs_itself(path)
    assert names_self_running(f"cat x >'{path}';ls")
    assert names_self_running(f"cp x {path[:2]}''{path[2:]}")
    assert names_self_running(f"sort x -uo{path}")


@pytest.mark.parametrize("path", PLAIN)
def test_files_that_run_on_request_are_not_marked(path: str) -> None:
    assert not runs_itself(path)
    assert not names_self_running(f"cat x > {path}")
