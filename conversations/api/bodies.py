"""Bodies of requests, which are larger than those of forms: histories and images are in them."""

from django.conf import settings
from django.http import HttpRequest

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


def take_body(request: HttpRequest) -> bool:
    """Read the body, so that Django's limit for forms does not count for it. False: it is
    larger than the API takes. Forms are read by Django."""
    if request.content_type in FORMS:
        return True
    limit = settings.LOOM.max_api_bytes
    if int(request.META.get("CONTENT_LENGTH") or 0) > limit:
        return False
    body = request.read(limit + 1)
    request._body = body  # where ``request.body`` keeps it
    return len(body) <= limit
