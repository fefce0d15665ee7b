"""What a command cannot ask of the kernel: a seccomp filter, as bwrap takes it.

Namespaces do not cover everything. Sockets to the hypervisor (AF_VSOCK) belong to no
network namespace, keyrings are inherited, and some interfaces that no ordinary program
needs have had more holes than others. io_uring is among them because it opens sockets
past any filter. Programs are told that the kernel has no such call.
"""

import errno
import os
import platform
import socket
import struct
from functools import cache

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
"""Where these lie in the kernel's ``struct seccomp_data``."""
_X32 = 0x40000000
"""From here on, numbers are those of another way to call the same kernel."""

_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_NETLINK", 16))

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_REFUSED = {
    "x86_64": {
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "perf_event_open": 298,
        "open_by_handle_at": 304,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
    },
    "aarch64": {
        "kexec_load": 104,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "perf_event_open": 241,
        "open_by_handle_at": 265,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
    },
}


@cache
def make_filter() -> bytes:
    """The program for this machine; empty where its numbers are not known here."""
    machine = platform.machine()
    if machine not in _ARCHES:
        return b""
    no_call = _step(_RETURN, _ERRNO | errno.ENOSYS)
    families = [
        *(_when(_EQUAL, family, _step(_RETURN, _ALLOW)) for family in _FAMILIES),
        _step(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
    ]
    steps = [
        _step(_LOAD, _ARCH),
        _unless(_ARCHES[machine], no_call),
        _step(_LOAD, _NUMBER),
        _when(_AT_LEAST, _X32, no_call),
        *(_when(_EQUAL, number, no_call) for number in _REFUSED[machine].values()),
        _when(_EQUAL, _SOCKET[machine], _step(_LOAD, _FIRST_ARGUMENT) + b"".join(families)),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def open_filter() -> int | None:
    """A descriptor from which the program can be read once, to be closed by whoever
    asked; None where there is none."""
    program = make_filter()
    if not program:
        return None
    descriptor = os.memfd_create("seccomp")
    os.write(descriptor, program)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """One ``struct sock_filter``."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def _when(code: int, value: int, block: bytes) -> bytes:
    """Go through the block if what is loaded compares so, else behind it."""
    return _step(code, value, otherwise=len(block) // 8) + block


def _unless(value: int, block: bytes) -> bytes:
    return _step(_EQUAL, value, then=len(block) // 8) + block
