"""Pages of a PDF as pictures."""

from typing import NamedTuple

from .programs import run_program

PAGE_PIXELS = 1200
"""The width of a drawn page: sharp on a screen of twice the density at most of a column."""


class DrawnPages(NamedTuple):
    """``total`` is how many the file has, ``pages`` those that were drawn: each the base64 of a
    WebP, empty for a damaged one."""

    total: int
    pages: list[str]


def draw_pages(data: bytes, *, first: int, count: int) -> DrawnPages | None:
    """The pages from ``first`` (the first is 1) on; a total of 0 for what cannot be read. None
    where it takes too long."""
    found = run_program("draw_pdf.py", first, count, PAGE_PIXELS, data=data)
    return None if found is None else DrawnPages(found.get("total", 0), found.get("pages", []))
