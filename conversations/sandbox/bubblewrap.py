"""What a sandbox holds, as arguments of ``bwrap``.

Later mounts cover earlier ones: first the system, read-only; then an empty folder over
Loom's data folder, wherever that may lie; then the workspace. A workspace that holds the
data folder has it covered after the workspace.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TMP_BYTES, SHM_BYTES = 512 * 2**20, 64 * 2**20
"""What /tmp and /dev/shm may hold; both are memory."""

HOME = "/tmp/home"  # noqa: S108 (in the sandbox, whose /tmp is its own)

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Beside /usr; on most systems links into it."""

_ETC = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "group",
    "host.conf",
    "inputrc",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "locale.alias",
    "locale.conf",
    "lsb-release",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "perl",
    "pki",
    "profile",
    "protocols",
    "python3",
    "services",
    "ssl",
    "terminfo",
    "timezone",
)
_ETC_OF_NETWORK = ("hosts", "resolv.conf")

_ALONE = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
NO_NESTING = ("--unshare-user", "--disable-userns")
"""In the sandbox nobody can make another user namespace, whose owner may do things that
need rights. Not every version and kernel can do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What one sandbox is made of. ``root`` is the workspace's folder, writable;
    ``folder`` the working folder; ``readable`` further paths, read-only; ``hidden`` what
    must not be seen wherever it lies; ``options``: what this version of bwrap can do."""

    root: Path
    folder: Path
    readable: Sequence[Path]
    hidden: Path
    allows_network: bool
    options: Sequence[str] = ()


def wrap(command: Sequence[str], inside: Inside, *, bwrap: str) -> list[str]:
    """The command as one that runs in such a sandbox. Its environment is bwrap's."""
    return [
        bwrap,
        *_ALONE,
        *inside.options,
        *(("--share-net",) if inside.allows_network else ("--hostname", "sandbox")),
        *_system(inside),
        *_workspace(inside),
        # What runs here as the server's root would be the owner of what is in /proc/sys.
        *("--remount-ro", "/proc", "--remount-ro", "/"),
        *("--chdir", str(inside.folder)),
        "--",
        *command,
    ]


def interpreter_paths() -> list[Path]:
    """Where the running Python is installed, if beside the system's own folders."""
    prefix = Path(sys.base_prefix)
    return [path for path in dict.fromkeys((prefix, prefix.resolve())) if not _is_system(path)]


def _is_system(path: Path) -> bool:
    return path.is_relative_to("/usr")


def _system(inside: Inside) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), name)
        else:
            yield from ("--ro-bind-try", name, name)
    for name in (*_ETC, *(_ETC_OF_NETWORK if inside.allows_network else ())):
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from ("--size", str(SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")  # noqa: S108
    for name in ("/tmp", "/var/tmp"):  # noqa: S108 (its own)
        yield from ("--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs", name)
    yield from ("--dir", HOME)
    for path in inside.readable:
        yield from ("--ro-bind-try", str(path), str(path))


def _workspace(inside: Inside) -> Iterator[str]:
    covered = _covers([Path("/usr"), *inside.readable], inside.hidden)
    root, hidden = str(inside.root), str(inside.hidden)
    if inside.hidden.is_relative_to(inside.root):
        yield from ("--bind", root, root, "--tmpfs", hidden, "--remount-ro", hidden)
    elif covered:
        yield from ("--tmpfs", hidden, "--bind", root, root, "--remount-ro", hidden)
    else:
        yield from ("--bind", root, root)


def _covers(paths: Iterable[Path], hidden: Path) -> bool:
    return any(hidden.is_relative_to(path.resolve()) for path in paths)
