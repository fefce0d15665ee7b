"""Whether and how this server can run commands, which is tried once and not guessed.

An installed ``bwrap`` proves little, because containers and hardened kernels forbid the namespaces
that it needs. So a command is tried in a sandbox when the support is first asked for.
"""

import errno
import os
import platform
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from django.conf import settings

from conversations.domain.messages import say
from loomweb.sqlite3.base import FILE_ENDS

from .bubblewrap import SandboxAbilities, SandboxSpec, WriteProtection, interpreter_paths, wrap

# A seccomp filter as bwrap takes it, which refuses some system calls
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_OF, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# The offsets of these in the kernel's ``struct seccomp_data``, and the size of each argument
_NUMBER, _ARCH, _FIRST_ARGUMENT, _ARGUMENT = 0, 4, 16, 8
_X32 = 0x40000000  # Numbers from here on belong to another ABI of the same kernel

_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_NETLINK", 16))

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Numbers of system calls on these architectures
_SOCKET = (41, 198)
_REFUSED = {
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "openat2": (437, 437),  # Its mode is in memory, where a filter cannot read it
}
# The numbers of each call, the position of its mode argument, and, if the call can make a file, the
# position of the argument that says so
_WITH_MODE = {
    "chmod": (90, None, 1, None),
    "fchmod": (91, 52, 1, None),
    "fchmodat": (268, 53, 2, None),
    "fchmodat2": (452, 452, 2, None),
    "mknod": (133, None, 1, None),
    "mknodat": (259, 33, 2, None),
    "creat": (85, None, 1, None),
    "open": (2, None, 2, 1),
    "openat": (257, 56, 3, 2),
}
# Memory of this call outlives the process that asked for it, and is in no list of the memory that
# processes hold. A small size stays allowed because PostgreSQL uses one for locks. The kernel
# allows some thousand segments.
_SHMGET, _MAX_SHARED_BYTES = (29, 194), 64 * 2**10
_MAKES_FILE = os.O_CREAT | 0o20000000  # The second bit tells O_TMPFILE from O_DIRECTORY


@cache
def make_filter() -> bytes:
    """Return the filter program, or empty bytes if this machine's numbers are not known."""
    machine = platform.machine()
    if machine not in _ARCHES:
        return b""
    arch = list(_ARCHES).index(machine)
    no_call = _step(_RETURN, _ERRNO | errno.ENOSYS)
    families = [
        *(_when(_EQUAL, family, _step(_RETURN, _ALLOW)) for family in _FAMILIES),
        _step(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
    ]
    steps = [
        _step(_LOAD, _ARCH),
        _step(_EQUAL, _ARCHES[machine], then=len(no_call) // 8) + no_call,
        _step(_LOAD, _NUMBER),
        _when(_AT_LEAST, _X32, no_call),
        *(_when(_EQUAL, numbers[arch], no_call) for numbers in _REFUSED.values()),
        _when(_EQUAL, _SOCKET[arch], _load_argument(0) + b"".join(families)),
        *_refuse_setuid(arch),
        _when(_EQUAL, _SHMGET[arch], _refuse_large()),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def _refuse_setuid(arch: int) -> Iterator[bytes]:
    """Yield steps that prevent files from becoming setuid.

    A setuid program would run as its owner, the server's user, whoever starts it."""
    # setgid stays allowed, because folders pass it on, and tar, cp and chmod set it again on the
    # files that they make.
    allow, refuse = _step(_RETURN, _ALLOW), _step(_RETURN, _ERRNO | errno.EPERM)
    for x86, arm, mode, flags in _WITH_MODE.values():
        number = (x86, arm)[arch]
        if number is None:
            continue
        look = _load_argument(mode) + _when(_ANY_OF, stat.S_ISUID, refuse) + allow
        if flags is not None:
            look = _load_argument(flags) + _when(_ANY_OF, _MAKES_FILE, look) + allow
        yield _when(_EQUAL, number, look)


def _refuse_large() -> bytes:
    refuse = _step(_RETURN, _ERRNO | errno.ENOMEM)
    upper = _load_argument(1, upper=True) + _when(_AT_LEAST, 1, refuse)
    lower = _load_argument(1) + _when(_AT_LEAST, _MAX_SHARED_BYTES + 1, refuse)
    return upper + lower + _step(_RETURN, _ALLOW)


def open_filter() -> int | None:
    """Return a descriptor from which the filter can be read once, or None if there is no filter.

    The caller has to close it."""
    program = make_filter()
    if not program:
        return None
    descriptor = os.memfd_create("seccomp")
    os.write(descriptor, program)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _load_argument(position: int, *, upper: bool = False) -> bytes:
    """Load the lower half of an argument, which comes first on these machines, or the upper."""
    half = _ARGUMENT // 2 if upper else 0
    return _step(_LOAD, _FIRST_ARGUMENT + position * _ARGUMENT + half)


def _when(code: int, value: int, block: bytes) -> bytes:
    """Execute the block if the comparison with the loaded value is true; otherwise skip it."""
    return _step(code, value, otherwise=len(block) // 8) + block


SANDBOXED, UNSANDBOXED, NO_COMMANDS = "sandboxed", "unsandboxed", "off"
PROBE_SECONDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSupport:
    """The sandbox that a machine supports.

    ``bwrap`` is empty if no sandbox is possible, and ``reason`` then says why. ``abilities`` are
    those that work here."""

    bwrap: str = ""
    abilities: SandboxAbilities = field(default_factory=SandboxAbilities)
    reason: str = ""


@cache
def find_support() -> SandboxSupport:
    """Return what this machine supports. The first call runs ``bwrap``, for some milliseconds."""
    if sys.platform != "linux":
        return SandboxSupport(reason=say("sandboxes need Linux"))
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return SandboxSupport(reason=say("bubblewrap is not installed on this server"))
    complaint = ""
    for sizes, no_nesting, filters, protects in product((True, False), repeat=4):
        abilities = SandboxAbilities(
            no_nesting=no_nesting, sizes=sizes, filters=filters, protects=protects
        )
        complaint = _try_sandbox(bwrap, abilities)
        if not complaint:
            return SandboxSupport(bwrap=bwrap, abilities=abilities)
    return SandboxSupport(
        reason=say("bubblewrap does not work on this server (%(reason)s)", reason=complaint)
    )


def _try_sandbox(bwrap: str, abilities: SandboxAbilities) -> str:
    descriptor = open_filter() if abilities.filters else None
    if abilities.filters and descriptor is None:
        return say("no filter")
    with TemporaryDirectory(prefix="loom-probe-") as name:
        folder = Path(name).resolve()
        protected = folder / "kept"
        protected.touch()
        inside = SandboxSpec(
            root=folder,
            folder=folder,
            readable=interpreter_paths(),
            hidden=hidden_places(),
            protection=WriteProtection(read_only=[protected]),
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
        if abilities.protects and protected.read_text():
            return say("no protection")
        if done.returncode == 0 and (folder / "here").exists():
            return ""
        return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200]


def hidden_places() -> list[Path]:
    """Return the paths that no command may see: the data folder, and a database that is a file."""
    database = str(settings.DATABASES["default"].get("NAME") or "")
    files = [Path(database + end) for end in FILE_ENDS]
    data_dir = settings.LOOM.data_dir.resolve()
    real = [path.resolve() for path in files if path.is_absolute() and path.exists()]
    return [data_dir, *(path for path in real if not path.is_relative_to(data_dir))]


@cache
def find_prlimit() -> str:
    """Return the program that sets the kernel's limit of processes inside a sandbox.

    Return an empty string if that limit does not work: it does not apply to root, and only since
    Linux 5.14 is it counted for each sandbox."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    kernel = (int(version[1]), int(version[2])) if version else (0, 0)
    if os.geteuid() == 0 or kernel < (5, 14):
        return ""
    return shutil.which("prlimit", path="/usr/bin:/bin") or ""


def find_mode() -> str:
    """Return ``sandboxed``, ``unsandboxed`` (if the administrator allows that) or ``off``."""
    if find_support().bwrap:
        return SANDBOXED
    return UNSANDBOXED if settings.LOOM.unsandboxed_shell else NO_COMMANDS


def can_run() -> bool:
    return find_mode() != NO_COMMANDS


def has_network(*, workspace_allows: bool) -> bool:
    """Return whether commands of such a workspace can reach other machines.

    Without a sandbox they always can."""
    if find_mode() == UNSANDBOXED:
        return True
    return workspace_allows and settings.LOOM.shell_network


def describe() -> str:
    """Return a sentence for people that says whether and how commands are run here."""
    mode = find_mode()
    if mode == SANDBOXED:
        if settings.LOOM.shell_network:
            return say("Shell: in a sandbox (bubblewrap); network: if the workspace allows it.")
        return say("Shell: in a sandbox (bubblewrap); network: none.")
    if mode == UNSANDBOXED:
        return say(
            "Shell: without a sandbox, with all rights of the server (LOOM_UNSANDBOXED_SHELL "
            "is set; %(reason)s).",
            reason=find_support().reason,
        )
    return say("Shell: off; %(reason)s.", reason=find_support().reason)
