"""What the C library keeps of the memory that is free again. Elsewhere than with glibc
nothing is changed."""

import ctypes

_LIBRARY = ctypes.CDLL(None)
M_ARENA_MAX = -8  # Of mallopt, as in glibc's malloc.h
MAX_ARENAS = 2


def share_arenas() -> None:
    """Let all threads have few arenas together, before they are made. Each thread would get one
    of its own, which keeps what was free in it; they run one at a time anyway."""
    if hasattr(_LIBRARY, "mallopt"):
        _LIBRARY.mallopt(M_ARENA_MAX, MAX_ARENAS)


def release_unused() -> None:
    """Give back what is free. Takes milliseconds, in which other threads wait for memory."""
    if hasattr(_LIBRARY, "malloc_trim"):
        _LIBRARY.malloc_trim(0)
