"""A program that renders pages of a PDF as pictures.

It is a separate process because the reader is native code, and some files keep it busy for minutes
or fill the memory.

It reads the file from standard input. Its arguments are the first page (from 1), the number of
pages, and their width in pixels. It writes one JSON object: ``total`` is the number of pages of the
file, and ``pages`` holds each page as a WebP in base64, or an empty string for a damaged page. If
the file cannot be read, the object is ``{}``. The program imports no module of the product, so that
it starts fast.
"""

import json
import resource
import sys
import time
from base64 import b64encode
from io import BytesIO
from typing import Any

MAX_CPU_SECONDS, MAX_MEMORY_BYTES = 20, 1_500_000_000
# Then it stops after the current page, because the caller waits for at most 30 seconds.
MAX_DRAWING_SECONDS = 12.0
MAX_HEIGHT_RATIO = 4
"""A page taller than this many widths is scaled down, so that it fits into the memory."""


def main() -> None:
    started_at = time.monotonic()
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
        if time.monotonic() - started_at > MAX_DRAWING_SECONDS:
            break
    print(json.dumps({"total": len(document), "pages": pages}))


def draw(page: Any, width: int) -> str:
    page_width, height = page.get_size()
    scale = width / max(page_width, height / MAX_HEIGHT_RATIO, 1)
    file = BytesIO()
    page.render(scale=scale).to_pil().convert("RGB").save(file, "WEBP", quality=80, method=2)
    return b64encode(file.getvalue()).decode("ascii")


if __name__ == "__main__":
    main()
