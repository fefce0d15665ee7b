"""Draws pages of a PDF: a program of its own, since the reader is native code, and some files
keep it busy for minutes or fill the memory.

It reads the file from its input. Its arguments are the first page (from 1), how many pages, and
their width in pixels. It writes one JSON object: ``total``, the number of pages, and ``pages``,
each as base64 of a WebP, empty for a damaged one; ``{}`` for what cannot be read. It knows nothing
of the product, so that it starts fast.
"""

import json
import resource
import sys
import time
from base64 import b64encode
from io import BytesIO
from typing import Any

MAX_CPU_SECONDS, MAX_MEMORY_BYTES = 20, 1_500_000_000
MAX_DRAWING_SECONDS = 12.0  # Then the pages so far are all: who asked waits for no more than 30.
MAX_HEIGHT_RATIO = 4
"""Of a page, in its widths: a scroll of any length would not fit into the memory."""


def main() -> None:
    began = time.monotonic()
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pypdfium2

    first, count, width = map(int, sys.argv[1:4])
    try:
        document = pypdfium2.PdfDocument(sys.stdin.buffer.read())
        document.init_forms()
    except pypdfium2.PdfiumError:
        print("{}")
        return
    pages = []
    for index in range(first - 1, min(first - 1 + count, len(document))):
        try:
            pages.append(draw(document[index], width))
        except (pypdfium2.PdfiumError, MemoryError, OSError, ValueError):
            pages.append("")
        if time.monotonic() - began > MAX_DRAWING_SECONDS:
            break
    print(json.dumps({"total": len(document), "pages": pages}))


def draw(page: Any, width: int) -> str:
    breadth, height = page.get_size()
    scale = width / max(breadth, height / MAX_HEIGHT_RATIO, 1)
    drawn = BytesIO()
    page.render(scale=scale).to_pil().convert("RGB").save(drawn, "WEBP", quality=80, method=2)
    return b64encode(drawn.getvalue()).decode("ascii")


if __name__ == "__main__":
    main()
