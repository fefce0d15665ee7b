"""Lists that are paged by the key of their last row."""

from django.http import HttpRequest

MAX_NUMBER = 2**63 - 1


def read_cursor(request: HttpRequest) -> int | None:
    """The key before which a page begins; None for the first page, and for nonsense."""
    text = request.GET.get("before", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) <= MAX_NUMBER else None
