"""Count the pages of a PDF.

This is a separate program because some files keep the PDF reader busy for minutes or fill the
memory. It reads the file from standard input and prints the number of pages, up to a limit, or
``encrypted`` for a protected file. It prints nothing if the file cannot be read. It imports nothing
of the product, so that it starts fast.
"""

import resource
import sys
from io import BytesIO
from typing import Any

MAX_CPU_SECONDS, MAX_MEMORY_BYTES = 5, 1_500_000_000

MAX_NODES = 5_000


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from pypdf import PdfReader

    reader = PdfReader(BytesIO(sys.stdin.buffer.read()))
    print("encrypted" if reader.is_encrypted else count_pages(reader, limit=int(sys.argv[1])))


def count_pages(reader: Any, *, limit: int) -> int:
    """Count the pages of the page tree, up to ``limit`` plus one.

    Each node is visited only once, because a tree that repeats nodes could have any number of
    pages.
    """
    from pypdf.generic import IndirectObject

    root: Any = reader.trailer["/Root"]
    waiting, pages = [root["/Pages"]], 0
    seen: set[int] = set()
    while waiting and pages <= limit and len(seen) < MAX_NODES:
        for kid in waiting.pop().get("/Kids", ()):
            if not isinstance(kid, IndirectObject) or kid.idnum in seen:
                continue
            seen.add(kid.idnum)
            child: Any = kid.get_object()
            if "/Kids" in child:
                waiting.append(child)
            else:
                pages += 1
    return pages


if __name__ == "__main__":
    main()
