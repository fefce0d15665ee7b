"""Protects what a command must not change, then runs the command: the first program of a sandbox,
as its process 1 (``python -I -S -c TEXT PINNED … -- READ_ONLY … -- COMMAND …``; it is given as
text, since nothing of Loom is in a sandbox).

Why in the sandbox: somebody may exchange a folder for a link at any moment, and ``bwrap`` would
follow it outside, where all of the machine is still there. Here a link leads to what the sandbox
holds anyway; and each path is opened without following any, then mounted over by that descriptor.
It needs the right to mount, which it gives up before the command is started: nothing else runs here
yet, and process 1 sees the same mounts as the command.

Every command waits for its imports: ``signal``, ``contextlib`` and ``typing`` would double them.
"""

import ctypes
import errno
import os
import stat
import struct
import sys

# Numbers of system calls, the same on every architecture that Linux has gained since 2001.
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
    # The working folder was entered before, and may lie below what is now mounted over it.
    os.chdir(os.getcwd())
    number = 0
    while _libc.prctl(CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    if (
        ctypes.get_errno() != errno.EINVAL  # there are no more
        or _libc.prctl(CAP_AMBIENT, CLEAR_ALL, 0, 0, 0)
        or _libc.capset(header, bytes(24))
    ):
        raise _error()
    # Python ignores or handles these. Of process 1 the kernel keeps away from here what it
    # has no handler for.
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
        found, status = os.wait()
        if found == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _mount(path: str, attributes: bytes = b"") -> None:
    """Mount a file or folder over itself, with all that is mounted below it. What is gone
    meanwhile, or has become a link, needs no protection."""
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
        for descriptor in opened:  # through one of them it could be written
            os.close(descriptor)


def _open(path: str) -> int | None:
    """Only to name it; no link on the way is followed."""
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
