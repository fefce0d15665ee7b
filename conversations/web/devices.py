"""Keeping track of the browsers in which somebody is signed in."""

import time
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse

from conversations.archive.devices import end_device, see_device
from conversations.archive.storage_errors import is_storage_error

from .addresses import client_address

EVERY_SECONDS = 300.0
"""How exact it is when a device was seen last."""

MAX_DEVICES_KNOWN = 10_000

_seen: dict[str, float] = {}
"""Session of a browser → when this process has written that it was seen."""


class DeviceMiddleware:
    """Writes down where a person is seen, every few minutes."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if request.session.accessed and isinstance(request.user, User):
            try:
                _see(request, request.user)
            except DatabaseError as error:
                # What was asked for is done; it must not be answered as a failure.
                if not is_storage_error(error):
                    raise
                _seen.pop(request.session.session_key or "", None)
        return response


def _see(request: HttpRequest, user: User) -> None:
    key = request.session.session_key or ""
    if not key or time.monotonic() - _seen.get(key, -EVERY_SECONDS) < EVERY_SECONDS:
        return
    if len(_seen) >= MAX_DEVICES_KNOWN:
        _seen.clear()
    _seen[key] = time.monotonic()
    see_device(
        user.pk,
        session_key=key,
        agent=request.headers.get("User-Agent", ""),
        address=client_address(request) or "",
    )


def record_sign_in(request: HttpRequest, user: User, **_: Any) -> None:
    _see(request, user)


def record_sign_out(request: HttpRequest, **_: Any) -> None:
    if key := request.session.session_key:
        _seen.pop(key, None)
        end_device(key)


def connect() -> None:
    """Hear of all who sign in and out, by whichever way."""
    user_logged_in.connect(record_sign_in, dispatch_uid="device-signed-in")
    user_logged_out.connect(record_sign_out, dispatch_uid="device-signed-out")
