"""The middleware of ``/api/v1/``: the caller, limits on requests, and the format of errors.

The caller is identified here, on a thread, so that asynchronous operations need no database
access for that. Each operation decides whether the caller is let in (see ``auth``).
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest, HttpResponse

from conversations.access import AccessContext, read_signed_in
from conversations.accounts.tokens import SCOPES, Caller, find_caller, find_token
from conversations.domain.audit import API
from conversations.review.reasons import MAX_REASON_CHARS, save_reason
from conversations.web.addresses import client_address

from .problems import ROOT, format_error, problem

if TYPE_CHECKING:
    from limits import RateLimitItem
    from limits.strategies import FixedWindowRateLimiter

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


def read_body(request: HttpRequest) -> bool:
    """Read the body. Return False if it is larger than the API accepts."""
    if request.content_type in FORMS:
        return True  # Django reads these itself
    limit = settings.LOOM.max_api_bytes
    if int(request.META.get("CONTENT_LENGTH") or 0) > limit:
        return False
    # The body is read here so that Django's limit, which is meant for forms, does not apply.
    # Histories and images are larger.
    body = request.read(limit + 1)
    request._body = body  # where ``request.body`` keeps it
    return len(body) <= limit


REDIS_SECONDS = 1.0  # how long a request waits for Redis to count it

# Requests of a person in this process. Each occupies a thread until it is answered, and memory for
# its body.
MAX_REQUESTS_AT_ONCE = 100

_LOCK = Lock()
_requests: Counter[int] = Counter()  # person's primary key → number of requests in progress


class ApiMiddleware:
    """The middleware that sets ``request.api_caller``, or None, and ``request.loom_access``."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path.startswith(ROOT):
            return self._get_response(request)
        caller = identify(request)
        request.api_caller = caller  # type: ignore[attr-defined]
        if caller is not None:
            # A browser's session keeps a stated reason. A token has to state it with each request.
            browser = request.session if caller.token_pk is None else SessionBase()
            if reason := request.headers.get("Loom-Reason", "").strip():
                save_reason(browser, None, reason[:MAX_REASON_CHARS])
            request.loom_access = AccessContext(  # type: ignore[attr-defined]
                user=caller.user,
                action=API,
                place=request.get_full_path(),
                address=client_address(request) or "",
                agent=request.headers.get("User-Agent", ""),
                browser=browser,
            )
        is_within_rate, rate_headers = count_request(request, caller)
        with count_open(caller) as is_within:
            if not is_within_rate:
                response = problem(429, f"At most {settings.LOOM.api_rate} requests are allowed.")
                response["Retry-After"] = rate_headers["X-RateLimit-Reset"]
            elif not is_within:
                detail = f"At most {MAX_REQUESTS_AT_ONCE} requests may run at a time."
                response = problem(429, detail)
                response["Retry-After"] = "1"
            elif caller is not None and not read_body(request):
                detail = f"A request may have at most {settings.LOOM.max_api_bytes} bytes."
                response = problem(413, detail)
            else:
                response = self._get_response(request)
        response = format_error(request, response)
        for name, value in rate_headers.items():
            response[name] = value
        response.setdefault("Cache-Control", "no-store")
        return response


def identify(request: HttpRequest) -> Caller | None:
    """Return the caller, or None if the request has no valid token or sign-in."""
    token = read_token(request.headers)
    if token is not None:
        return find_caller(token, address=client_address(request) or "")
    # Without the cookie, nobody is signed in, and no database query is needed.
    if settings.SESSION_COOKIE_NAME in request.COOKIES and isinstance(request.user, User):
        return Caller(user=request.user, scopes=frozenset(SCOPES), token_pk=None)
    return None


def read_token(headers: Mapping[str, str]) -> str | None:
    """Return the token of a request.

    Return an empty string for any other authorization, and None if there is no authorization.
    """
    authorization = headers.get("Authorization", "")
    if not authorization:
        key = headers.get("X-Api-Key", "")
        return key.strip() if key else None
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_known(session_key: str, token: str) -> bool:
    """Return whether the session signs in a person or the token works."""
    return read_signed_in(session_key).is_authenticated or find_token(token) is not None


@contextmanager
def count_open(caller: Caller | None) -> Iterator[bool]:
    """Count a request of a person while it is processed. Yield False if there are too many.

    A stream counts only until it begins.
    """
    if caller is None:
        yield True
        return
    with _LOCK:
        _requests[caller.user.pk] += 1
        is_within = _requests[caller.user.pk] <= MAX_REQUESTS_AT_ONCE
    try:
        yield is_within
    finally:
        with _LOCK:
            _requests[caller.user.pk] -= 1
            # Without this, the counter would keep an entry for every person who ever called.
            if not _requests[caller.user.pk]:
                del _requests[caller.user.pk]


def count_request(request: HttpRequest, caller: Caller | None) -> tuple[bool, dict[str, str]]:
    """Return whether the request is within the rate limit, and the headers about the limit."""
    # 2 MB, because it imports all its kinds of storage; pages do not need it.
    from limits.errors import StorageError

    item = _parse_rate(settings.LOOM.api_rate)
    if caller is None:
        counter_key = f"address {client_address(request)}"
    elif caller.token_pk is None:
        counter_key = f"person {caller.user.pk}"
    else:
        counter_key = f"token {caller.token_pk}"
    limiter = _limiter(settings.LOOM.redis_url)
    try:
        is_within = limiter.hit(item, counter_key)
        stats = limiter.get_window_stats(item, counter_key)
    except StorageError:  # Redis is not available, so each process counts for itself
        limiter = _limiter("")
        is_within = limiter.hit(item, counter_key)
        stats = limiter.get_window_stats(item, counter_key)
    return is_within, {
        "X-RateLimit-Limit": str(item.amount),
        "X-RateLimit-Remaining": str(max(0, stats.remaining)),
        "X-RateLimit-Reset": str(max(1, round(stats.reset_time - time.time()))),
    }


@cache
def _parse_rate(rate: str) -> "RateLimitItem":
    from limits import parse

    return parse(rate)


@cache
def _limiter(redis_url: str) -> "FixedWindowRateLimiter":
    from limits.storage import storage_from_string
    from limits.strategies import FixedWindowRateLimiter

    # Requests are counted in Redis for all processes if it is configured, else in this process.
    if not redis_url:
        return FixedWindowRateLimiter(storage_from_string("memory://"))
    storage = storage_from_string(
        re.sub("^unix:", "redis+unix:", redis_url),
        wrap_exceptions=True,
        socket_connect_timeout=REDIS_SECONDS,
        socket_timeout=REDIS_SECONDS,
    )
    return FixedWindowRateLimiter(storage)
