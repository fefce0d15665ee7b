"""Whether this server can run commands, and how: tried once, not guessed.

That ``bwrap`` is installed says little: containers and hardened kernels forbid the
namespaces that it needs. So a command is run in a sandbox when the question first comes.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from django.conf import settings

from .bubblewrap import Abilities, Inside, Protection, interpreter_paths, wrap
from .system_calls import open_filter

SANDBOXED, UNSANDBOXED, NO_COMMANDS = "sandboxed", "unsandboxed", "off"
PROBE_SECONDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """``bwrap`` is empty where there can be no sandbox; ``reason`` then says why.
    ``abilities`` are those that work here."""

    bwrap: str = ""
    abilities: Abilities = field(default_factory=Abilities)
    reason: str = ""


@cache
def find_support() -> Support:
    """What this machine can do. Runs ``bwrap`` the first time, some milliseconds."""
    if sys.platform != "linux":
        return Support(reason="sandboxes need Linux")
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return Support(reason="bubblewrap is not installed on this server")
    complaint = ""
    for sizes, no_nesting, filters, protects in product((True, False), repeat=4):
        abilities = Abilities(
            no_nesting=no_nesting, sizes=sizes, filters=filters, protects=protects
        )
        complaint = _try_sandbox(bwrap, abilities)
        if not complaint:
            return Support(bwrap=bwrap, abilities=abilities)
    return Support(reason=f"bubblewrap does not work on this server ({complaint})")


def _try_sandbox(bwrap: str, abilities: Abilities) -> str:
    """Run something in a sandbox; what is wrong, or nothing."""
    descriptor = open_filter() if abilities.filters else None
    if abilities.filters and descriptor is None:
        return "no filter"
    with TemporaryDirectory(prefix="loom-probe-") as name:
        folder = Path(name).resolve()
        kept = folder / "kept"
        kept.touch()
        inside = Inside(
            root=folder,
            folder=folder,
            readable=interpreter_paths(),
            hidden=hidden_places(),
            protection=Protection(read_only=[kept]),
        )
        probe = ["/bin/sh", "-c", "echo x > kept; echo made > here && test -d /proc/1"]
        try:
            done = subprocess.run(  # noqa: S603 (our own words)
                wrap(probe, inside, bwrap=bwrap, abilities=abilities, seccomp=descriptor),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROBE_SECONDS,
                env={},
                check=False,
                stdin=subprocess.DEVNULL,
                pass_fds=() if descriptor is None else (descriptor,),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return type(error).__name__
        finally:
            if descriptor is not None:
                os.close(descriptor)
        if abilities.protects and kept.read_text():
            return "no protection"
        if done.returncode == 0 and (folder / "here").exists():
            return ""
        return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200]


def hidden_places() -> list[Path]:
    """What no command may see: the data folder, and the database where it is a file."""
    database = str(settings.DATABASES["default"].get("NAME") or "")
    files = [Path(database + suffix) for suffix in ("", "-wal", "-shm", "-journal")]
    data_dir = settings.LOOM.data_dir.resolve()
    real = [path.resolve() for path in files if path.is_absolute() and path.exists()]
    return [data_dir, *(path for path in real if not path.is_relative_to(data_dir))]


@cache
def find_prlimit() -> str:
    """The program that sets the kernel's own limit of processes inside a sandbox, where
    that holds: not for root, and counted for each sandbox since Linux 5.14."""
    if os.geteuid() == 0 or _kernel() < (5, 14):
        return ""
    return shutil.which("prlimit", path="/usr/bin:/bin") or ""


def _kernel() -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return tuple(map(int, numbers.groups())) if numbers else (0,)


def find_mode() -> str:
    """``sandboxed``, ``unsandboxed`` (an administrator wants that) or ``off``."""
    if find_support().bwrap:
        return SANDBOXED
    return UNSANDBOXED if settings.LOOM.unsandboxed_shell else NO_COMMANDS


def can_run() -> bool:
    return find_mode() != NO_COMMANDS


def has_network(*, workspace_allows: bool) -> bool:
    """Whether commands of such a workspace reach other machines. Without a sandbox
    nothing keeps them from it."""
    if find_mode() == UNSANDBOXED:
        return True
    return workspace_allows and settings.LOOM.shell_network


def describe() -> str:
    """One sentence for people: whether commands can be run here, and how."""
    mode = find_mode()
    if mode == SANDBOXED:
        network = "as the workspace says" if settings.LOOM.shell_network else "none"
        return f"Shell: in a sandbox (bubblewrap); network: {network}."
    if mode == UNSANDBOXED:
        return (
            "Shell: without a sandbox, with all rights of the server "
            f"(LOOM_UNSANDBOXED_SHELL is set; {find_support().reason})."
        )
    return f"Shell: off; {find_support().reason}."
