"""Files that other programs run by themselves: editors, shells, assistants and git's hook
managers do so when somebody opens or enters a folder, or commits in it.

Nobody types a command for it, so a change of such a file is easily overlooked. What runs only
when it is asked for (a Makefile, the scripts of ``package.json``, tests) does not count.
"""

import re

RUNS_ITSELF = "Other programs run this by themselves."
NAMES_SELF_RUNNING = "It names files that other programs run by themselves."

_FILES = frozenset(
    (
        # shells and what looks after their environment
        *(".envrc", ".mise.toml", "mise.toml", ".bashrc", ".bash_profile", ".bash_login"),
        *(".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin"),
        # editors and debuggers
        *(".vimrc", ".exrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".dir-locals.el"),
        *(".gdbinit", ".lldbinit", ".devcontainer.json"),
        # git, and what hangs on its hooks
        *(".gitconfig", ".pre-commit-config.yaml", ".pre-commit-config.yml", ".overcommit.yml"),
        *("lefthook.yml", ".lefthook.yml", "lefthook.yaml", ".lefthook.yaml", "lefthook.toml"),
        # assistants and their tool servers
        ".mcp.json",
    )
)
_ENDINGS = (".code-workspace",)
_FOLDERS = frozenset(
    (
        *(".vscode", ".idea", ".fleet", ".zed", ".devcontainer"),
        *(".husky", ".githooks"),
        *(".claude", ".cursor", ".codex", ".gemini"),
    )
)
_BETWEEN = re.compile(r"[\s'\"`;&|<>()=,{}\\]+")


def runs_itself(path: str) -> bool:
    """Whether some widespread program runs what is at the path, or does what it says there,
    without being told to."""
    *folders, name = path.casefold().strip("/").split("/")
    return name in _FILES or name.endswith(_ENDINGS) or not _FOLDERS.isdisjoint([*folders, name])


def names_self_running(command: str) -> bool:
    """Whether a command line has the path of such a file in it. It may write one without."""
    return any(runs_itself(word) for word in _BETWEEN.split(command))
