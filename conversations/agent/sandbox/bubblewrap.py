"""The contents of a sandbox, as arguments of ``bwrap``.

Later mounts cover earlier ones. The system comes first, read-only; then an empty folder over Loom's
data folder, wherever it lies; then the workspace. If the workspace contains the data folder, that
is covered after the workspace is mounted.

All these paths belong to the server, so nobody else can replace them by links. Protected paths
inside the workspace are mounted from inside the sandbox (``protect``).
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import protect

TMP_BYTES, SHM_BYTES = 512 * 2**20, 64 * 2**20  # Limits of /tmp and /dev/shm, which are in memory
HOME = "/tmp/home"  # noqa: S108 (in the sandbox, whose /tmp is its own)

# Folders beside /usr; on most systems they are links into /usr.
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

# A folder that also holds keys, such as ``ssl`` and ``pki``, must not be listed.
_ETC = (
    *("alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf"),
    *("crypto-policies", "debian_version", "fonts", "gai.conf", "group", "host.conf"),
    *("inputrc", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime"),
    *("locale.alias", "locale.conf", "lsb-release", "magic", "mime.types", "nsswitch.conf"),
    *("os-release", "passwd", "perl", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs"),
    *("pki/tls/openssl.cnf", "profile", "protocols", "python3", "services", "ssl/cert.pem"),
    *("ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone"),
)
_ETC_OF_NETWORK = ("hosts", "resolv.conf")

_ALONE = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
_NO_NESTING = ("--unshare-user", "--disable-userns")
# ``protect`` needs these capabilities and then gives them up.
_MAY_MOUNT = ("--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP", "--as-pid-1")
_PROTECT = Path(protect.__file__).read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxAbilities:
    """The abilities of bwrap and the kernel on a machine, beyond the required ones.

    ``no_nesting``: forbid further user namespaces, whose owner may do things that need rights
    (bubblewrap 0.8). ``sizes``: limit the size of a folder in memory (0.8, and not if bwrap is
    installed setuid). ``filters``: refuse system calls. ``protects``: mount from inside (Linux
    5.12, and not if bwrap is installed setuid or its programs get no capabilities)."""

    no_nesting: bool = False
    sizes: bool = False
    filters: bool = False
    protects: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteProtection:
    """Paths of the workspace that a writing command must not change.

    ``pinned`` folders keep their name; ``read_only`` files and folders keep their content."""

    pinned: Sequence[Path] = ()
    read_only: Sequence[Path] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The definition of one sandbox.

    ``root`` is the workspace's folder and ``folder`` the working folder. ``readable`` are further
    read-only paths. ``hidden`` are paths that the command must not see, wherever they lie. Without
    ``protection`` the workspace is read-only."""

    root: Path
    folder: Path
    readable: Sequence[Path]
    hidden: Sequence[Path]
    allows_network: bool = False
    protection: WriteProtection | None = None


def wrap(
    command: Sequence[str],
    spec: SandboxSpec,
    *,
    bwrap: str,
    abilities: SandboxAbilities,
    seccomp: int | None = None,
) -> list[str]:
    """Return the command line that runs the command in the sandbox.

    The command gets bwrap's environment. ``seccomp`` is the descriptor of a filter."""
    protector = _protector(spec) if abilities.protects else []
    readable = [str(path) for path in spec.readable]
    return [
        bwrap,
        *_ALONE,
        *(_MAY_MOUNT if protector else ()),
        *(_NO_NESTING if abilities.no_nesting else ()),
        *(() if seccomp is None else ("--seccomp", str(seccomp))),
        *(("--share-net",) if spec.allows_network else ()),
        *("--hostname", "sandbox"),
        *_system(allows_network=spec.allows_network, limits_sizes=abilities.sizes),
        *(word for path in readable for word in ("--ro-bind-try", path, path)),
        *_workspace(spec),
        # If the server runs as root, a command would otherwise own the files in /proc/sys.
        *("--remount-ro", "/proc", "--remount-ro", "/"),
        *("--chdir", str(spec.folder)),
        "--",
        *protector,
        *command,
    ]


def interpreter_paths() -> list[Path]:
    """Return where the running Python is installed, if outside the system's folders."""
    prefix = Path(sys.base_prefix)
    places = dict.fromkeys((prefix, prefix.resolve()))
    return [path for path in places if not path.is_relative_to("/usr")]


def _system(*, allows_network: bool, limits_sizes: bool) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), name)
        else:
            yield from ("--ro-bind-try", name, name)
    for name in (*_ETC, *(_ETC_OF_NETWORK if allows_network else ())):
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    yield from ("--proc", "/proc", "--dev", "/dev")
    sizes = {"/dev/shm": SHM_BYTES, "/tmp": TMP_BYTES, "/var/tmp": TMP_BYTES}  # noqa: S108 (its own)
    for name, size in sizes.items():
        if limits_sizes:
            yield from ("--size", str(size), "--perms", "1777")
        yield from ("--tmpfs", name)
    yield from ("--remount-ro", "/dev", "--dir", HOME)


def _workspace(spec: SandboxSpec) -> Iterator[str]:
    root = str(spec.root)
    # Hidden paths inside the workspace, and those inside a part of the system that is mounted
    within = [path for path in spec.hidden if path.is_relative_to(spec.root)]
    parts = [Path("/usr"), *(path.resolve() for path in spec.readable)]
    around = [
        path
        for path in spec.hidden
        if path not in within and any(path.is_relative_to(part) for part in parts)
    ]
    for path in around:
        yield from _cover(path)
    yield from ("--ro-bind" if spec.protection is None else "--bind", root, root)
    for path in within:
        yield from _cover(path)
    yield from (word for path in [*around, *within] for word in ("--remount-ro", str(path)))


def _protector(spec: SandboxSpec) -> list[str]:
    """Return the words that precede a writing command if paths have to be protected."""
    if spec.protection is None:
        return []
    # A mount point cannot be renamed, removed or replaced by a rename. So a whole repository cannot
    # be moved away and replaced by another one. The same is true for a folder that leads to a
    # hidden path; otherwise the next sandbox would not find the path that it has to cover.
    leading = {
        folder
        for path in spec.hidden
        for folder in path.parents
        if folder != spec.root and folder.is_relative_to(spec.root)
    }
    pinned = [*map(str, sorted(leading)), *map(str, spec.protection.pinned)]
    read_only = [str(path) for path in spec.protection.read_only]
    if not pinned and not read_only:
        return []
    python = str(Path(sys.executable).resolve())
    return [python, "-I", "-S", "-c", _PROTECT, *pinned, "--", *read_only, "--"]


def _cover(path: Path) -> tuple[str, ...]:
    return ("--tmpfs", str(path)) if path.is_dir() else ("--ro-bind", "/dev/null", str(path))
