"""Lines of standard input, for commands that take one thing a line."""

import sys
from collections.abc import Iterator


def read_lines() -> Iterator[str]:
    """As they come, without their ends; what is not UTF-8 in them becomes U+FFFD."""
    if hasattr(sys.stdin, "buffer"):
        for line in sys.stdin.buffer:
            yield line.decode(errors="replace").rstrip("\r\n")
    else:
        for text in sys.stdin:
            yield text.rstrip("\r\n")
