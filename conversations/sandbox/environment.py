"""The environment of a command: made from nothing, so that no secret is in it."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .bubblewrap import HOME

_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_COMMON = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "SHELL": "/bin/sh",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
}
"""Nobody is there to answer a question or to turn a page."""


def sandboxed_environment(readable: Iterable[Path]) -> dict[str, str]:
    """For a command in a sandbox that holds these paths beside the system's."""
    folders = [str(path / "bin") for path in readable if (path / "bin").is_dir()]
    path = ":".join(dict.fromkeys([*folders, *_SYSTEM_PATH]))
    return {**_COMMON, "PATH": path, "HOME": HOME, "TMPDIR": "/tmp"}  # noqa: S108 (its own)


def plain_environment() -> dict[str, str]:
    """For a command without a sandbox: the server's way to programs, and no more."""
    temporary = tempfile.gettempdir()
    path = os.environ.get("PATH") or ":".join(_SYSTEM_PATH)
    return {**_COMMON, "PATH": path, "HOME": temporary, "TMPDIR": temporary}
