"""Who calls, how often, and errors in one form: around everything below ``/api/v1/``.

The caller is found here, on a thread, so that asynchronous operations need no database
for it. Whether it is let in is decided by each operation (see ``auth``).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Lock

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest, HttpResponse
from limits import RateLimitItem, parse
from limits.errors import StorageError
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter

from conversations.access import AccessContext
from conversations.accounts.tokens import SCOPES, find_caller
from conversations.domain.audit import API
from conversations.review.reasons import MAX_REASON_CHARS, save_reason
from conversations.web.addresses import client_address

from .problems import ROOT, for_programs, problem

# Bodies of requests, which are larger than those of forms: histories and images are in them.


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


REDIS_SECONDS = 1.0
"""How long a request waits for Redis to count it."""

MAX_REQUESTS_AT_ONCE = 100
"""Requests of a person in this process: each has a thread while it waits for an answer, and
its body is in memory."""

_LOCK = Lock()
_requests: Counter[int] = Counter()
"""Of each person, by key, those that are carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCaller:
    """``token_pk`` is None for a browser that is signed in, which has all scopes."""

    user: User
    scopes: frozenset[str]
    token_pk: int | None


class ApiMiddleware:
    """Sets ``request.api_caller`` (None: nobody) and ``request.loom_visit``."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path.startswith(ROOT):
            return self._get_response(request)
        caller = _identify(request)
        request.api_caller = caller  # type: ignore[attr-defined]
        if caller is not None:
            request.loom_visit = _visit(request, caller)  # type: ignore[attr-defined]
        rate = _count(request, caller)
        with _inside(caller) as is_within:
            response = self._answer(request, caller, rate, is_within=is_within)
        response = for_programs(request, response)
        response["X-RateLimit-Limit"] = str(rate.limit)
        response["X-RateLimit-Remaining"] = str(rate.remaining)
        response["X-RateLimit-Reset"] = str(rate.seconds)
        response.setdefault("Cache-Control", "no-store")
        return response

    def _answer(
        self, request: HttpRequest, caller: "ApiCaller | None", rate: "_Rate", *, is_within: bool
    ) -> HttpResponse:
        if rate.is_over:
            response = problem(429, f"No more than {settings.LOOM.api_rate} requests, please.")
            response["Retry-After"] = str(rate.seconds)
            return response
        if not is_within:
            response = problem(
                429, f"No more than {MAX_REQUESTS_AT_ONCE} requests at a time, please."
            )
            response["Retry-After"] = "1"
            return response
        if caller is not None and not take_body(request):
            return problem(413, f"No more than {settings.LOOM.max_api_bytes} bytes, please.")
        return self._get_response(request)


def _identify(request: HttpRequest) -> ApiCaller | None:
    given = request.headers.get("Authorization", "")
    if given:
        scheme, _, token = given.partition(" ")
        found = find_caller(token.strip(), address=client_address(request) or "")
        if scheme.lower() != "bearer" or found is None:
            return None
        return ApiCaller(user=found.user, scopes=found.scopes, token_pk=found.token_pk)
    if settings.SESSION_COOKIE_NAME in request.COOKIES and isinstance(request.user, User):
        return ApiCaller(user=request.user, scopes=frozenset(SCOPES), token_pk=None)
    return None


def _visit(request: HttpRequest, caller: ApiCaller) -> AccessContext:
    browser = request.session if caller.token_pk is None else SessionBase()
    if reason := request.headers.get("Loom-Reason", "").strip():
        save_reason(browser, None, reason[:MAX_REASON_CHARS])
    return AccessContext(
        user=caller.user,
        action=API,
        place=request.get_full_path(),
        address=client_address(request) or "",
        agent=request.headers.get("User-Agent", ""),
        browser=browser,
    )


@contextmanager
def _inside(caller: ApiCaller | None) -> Iterator[bool]:
    """While a request is carried out; False where the person has too many. (A stream
    counts until it begins.)"""
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
            if not _requests[caller.user.pk]:
                del _requests[caller.user.pk]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rate:
    is_over: bool
    limit: int
    remaining: int
    seconds: int


def _count(request: HttpRequest, caller: ApiCaller | None) -> _Rate:
    item = _rate(settings.LOOM.api_rate)
    if caller is None:
        whose = f"address {client_address(request)}"
    elif caller.token_pk is None:
        whose = f"person {caller.user.pk}"
    else:
        whose = f"token {caller.token_pk}"
    try:
        return _hit(_limiter(), item, whose)
    except StorageError:  # Redis is away: each process counts for itself meanwhile
        return _hit(_own_limiter(), item, whose)


def _hit(limiter: FixedWindowRateLimiter, item: RateLimitItem, whose: str) -> _Rate:
    is_within = limiter.hit(item, whose)
    stats = limiter.get_window_stats(item, whose)
    return _Rate(
        is_over=not is_within,
        limit=item.amount,
        remaining=max(0, stats.remaining),
        seconds=max(1, round(stats.reset_time - time.time())),
    )


@cache
def _rate(text: str) -> RateLimitItem:
    return parse(text)


@cache
def _limiter() -> FixedWindowRateLimiter:
    """Counted in Redis for all processes where there is one, else in this process."""
    url = settings.LOOM.redis_url
    if not url:
        return _own_limiter()
    storage = storage_from_string(
        url,
        wrap_exceptions=True,
        socket_connect_timeout=REDIS_SECONDS,
        socket_timeout=REDIS_SECONDS,
    )
    return FixedWindowRateLimiter(storage)


@cache
def _own_limiter() -> FixedWindowRateLimiter:
    return FixedWindowRateLimiter(storage_from_string("memory://"))
