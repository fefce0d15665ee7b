"""The first program of a sandbox, which mounts the protected paths and then runs the command.

It runs as process 1 (``python -I -S -c TEXT PINNED … -- READ_ONLY … -- COMMAND …``). Its source is
passed as text, because a sandbox holds none of Loom's files.

The mounts are made inside the sandbox because somebody may replace a folder by a link at any
moment. ``bwrap`` would follow the link outside, where the whole machine is still visible. In the
sandbox a link can only lead to what the sandbox holds anyway. Each path is opened without following
links, and the mount is placed over that descriptor. Mounting needs a capability, which this program
gives up before it starts the command. No other process runs here before that, and process 1 sees
the same mounts as the command.

Every command waits for the imports of this program; ``signal``, ``contextlib`` and ``typing`` would
double their time.
"""

import ctypes
import errno
import os
import stat
import struct
import sys

# System call numbers, which are the same on every architecture that Linux has gained since 2001
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
AT_EMPTY_PATH, AT_RECURSIVE = 0x1000, 0x8000
TREE_FLAGS = AT_EMPTY_PATH | AT_RECURSIVE | 1 | os.O_CLOEXEC  # 1: OPEN_TREE_CLONE
MOVE_BY_DESCRIPTORS = 0x44
READ_ONLY = struct.pack("=QQQQ", 1, 0, 0, 0)  # A ``struct mount_attr`` that sets MOUNT_ATTR_RDONLY
CAPBSET_DROP, CAP_AMBIENT, CLEAR_ALL = 24, 47, 4
CAPABILITY_VERSION = 0x20080522
SIGINT, SIGPIPE, SIGXFSZ = 2, 13, 25
FAILED = 126

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    words = sys.argv[1:]
    first = words.index("--")
    second = words.index("--", first + 1)
    command = words[second + 1 :]
    os.unshare(os.CLONE_NEWNS)
    for path in words[:first]:
        _mount(path)
    for path in words[first + 1 : second]:
        _mount(path, READ_ONLY)
    # Enter the working folder again, because it may lie below a new mount.
    os.chdir(os.getcwd())
    number = 0
    while _libc.prctl(CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    if (
        ctypes.get_errno() != errno.EINVAL  # EINVAL: there are no more capabilities
        or _libc.prctl(CAP_AMBIENT, CLEAR_ALL, 0, 0, 0)
        or _libc.capset(header, bytes(24))
    ):
        raise _error()
    # Python ignores or handles these signals. The kernel does not deliver a signal from inside to
    # process 1 if that has no handler for it.
    for number in (SIGINT, SIGPIPE, SIGXFSZ):
        _libc.signal(number, None)
    child = os.fork()
    if child == 0:
        try:
            os.execvp(command[0], command)  # noqa: S606 (that is its purpose)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
        finally:
            os._exit(127)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _mount(path: str, attributes: bytes = b"") -> None:
    """Mount a file or folder over itself, with all mounts below it.

    A path that is gone or has become a link needs no protection."""
    place = _open(path)
    if place is None:
        return
    opened = [place]
    try:
        opened.append(_call(OPEN_TREE, place, b"", TREE_FLAGS))
        if attributes:
            flags = AT_EMPTY_PATH | AT_RECURSIVE
            _call(MOUNT_SETATTR, opened[-1], b"", flags, attributes, len(attributes))
        _call(MOVE_MOUNT, opened[-1], b"", place, b"", MOVE_BY_DESCRIPTORS)
    except FileNotFoundError:
        pass
    finally:
        for descriptor in opened:  # the file could be written through one of them
            os.close(descriptor)


def _open(path: str) -> int | None:
    """Open a path by O_PATH without following links; return None for a missing path or a link."""
    place = os.open("/", os.O_PATH)
    for name in path.strip("/").split("/"):
        try:
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=place)
        except OSError:
            return None
        finally:
            os.close(place)
        place = below
    return None if stat.S_ISLNK(os.fstat(place).st_mode) else place


def _call(number: int, *arguments: int | bytes) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        raise _error()
    return result


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as problem:
        print(f"The sandbox cannot be protected: {problem.strerror}", file=sys.stderr)
        sys.exit(FAILED)
