"""Log lines as text for a terminal or as JSON for a collector, with a limit per event.

A structured event is a log record whose message is the event's name and whose
``fields`` (``extra={"fields": {...}}``) are its values.
"""

import copy
import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Timer
from typing import Any

_SECRET = re.compile(
    r"(/(?:join|shared|shared-file|sign-in/link)/)[^/\s\"'\\]+|\b(loom_)[\w-]{43}|\b(whsec_)[\w+/=]+"
)

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

WINDOW_SECONDS = 60.0  # period in which the lines of one event are counted
MAX_NAME_CHARS = 200  # longest name of an event in the line about omitted lines
MAX_CHAINED_ERRORS = 20

REDIS_AWAY = "redis_away"

# First parts of the names of loggers whose records come from handling a client's request.
SERVERS_LOGGERS = frozenset({"daphne", "django", "uvicorn"})

# Statuses if the database or disk space is unavailable or the server is shutting down. Errors in
# the code are logged where they happen.
UNAVAILABLE = (503, 507)


def without_secrets(line: str) -> str:
    """Return the line without secrets.

    Secrets are tokens of invitations, shared sessions and sign-in links, personal tokens and
    keys for signatures. They get into the log because Django logs the URL of each page that it
    refuses.
    """
    return _SECRET.sub(r"\1\2\3…", line)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = super().formatMessage(record) + pairs
        # Messages can contain a client's data, which must not be able to imitate other lines.
        return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], line)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return without_secrets(json.dumps(line, ensure_ascii=False, default=str))


@dataclass(slots=True, kw_only=True)
class _RateWindow:
    """The counts of the lines of one event since the first line."""

    ends: float
    event: str
    written: int = 0
    left_out: int = 0


class RateLimitedHandler(logging.StreamHandler[Any]):
    """A handler that limits the lines per minute of the same event.

    After the minute it logs how many lines it has omitted. Records belong to the same event if the
    same statement logs them and their errors have the same type and origin. A client's data does
    not change the event. Debug lines are not limited.
    """

    def __init__(
        self, *, lines_per_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._limit = lines_per_minute
        self._clock = clock
        self._windows: dict[object, _RateWindow] = {}
        self._timer: Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        record = _in_short(record)
        self._write_left_out(now=self._clock())
        if record.levelno < logging.INFO:
            super().emit(record)
            return
        event = _event_of(record)
        window = self._windows.get(event)
        if window is None:
            # Secrets are removed first, because a truncated one would not be recognised.
            name = without_secrets(" ".join(f"{record.name}: {record.getMessage()}".split()))
            ends = self._clock() + WINDOW_SECONDS
            window = self._windows[event] = _RateWindow(ends=ends, event=name[:MAX_NAME_CHARS])
        # An unavailable Redis is noticed again and again, so one line is enough.
        if window.written < (1 if record.msg == REDIS_AWAY else self._limit):
            window.written += 1
            super().emit(record)
        else:
            window.left_out += 1
            self._start_timer()

    def _start_timer(self) -> None:
        # No timer is needed if one is running or if no omitted lines have to be reported.
        ends = [window.ends for window in self._windows.values() if window.left_out]
        if self._timer is None and ends:
            self._timer = Timer(max(0.0, min(ends) - self._clock()), self._on_timer)
            self._timer.daemon = True
            self._timer.start()

    def _write_left_out(self, *, now: float) -> None:
        for event in [event for event, window in self._windows.items() if window.ends <= now]:
            window = self._windows.pop(event)
            if window.left_out:
                line = {
                    "name": __name__,
                    "levelno": logging.WARNING,
                    "levelname": "WARNING",
                    "msg": "log_lines_left_out",
                    "fields": {"lines": window.left_out, "of": window.event},
                }
                super().emit(logging.makeLogRecord(line))

    def _on_timer(self) -> None:
        # The timer reports omitted lines even if nothing else is logged.
        assert self.lock is not None
        with self.lock:
            self._timer = None
            self._write_left_out(now=self._clock())
            self._start_timer()

    def close(self) -> None:
        assert self.lock is not None
        with self.lock:
            if self._timer is not None:
                self._timer.cancel()
            self._write_left_out(now=float("inf"))
        super().close()


def _event_of(record: logging.LogRecord) -> object:
    # The event is the code that logs the record. The text is not used, as it can contain a
    # client's data.
    if record.msg == REDIS_AWAY:
        return REDIS_AWAY
    status = getattr(record, "status_code", None)
    error = record.exc_info[1] if record.exc_info else None
    place = None
    trace = error.__traceback__ if error else None
    while trace is not None:
        place, trace = (trace.tb_frame.f_code, trace.tb_lineno), trace.tb_next
    return record.name, record.levelno, record.pathname, record.lineno, status, type(error), place


def _in_short(record: logging.LogRecord) -> logging.LogRecord:
    # Return the record unchanged if it may be a bug. Records about a client's mistake, or about
    # Redis, the database or disk space being unavailable, become warnings without a traceback.
    # Imported here, because the settings configure logging before Django can be loaded.
    from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
    from django.http import Http404, UnreadablePostError
    from django.http.multipartparser import MultiPartParserError

    error = record.exc_info[1] if record.exc_info else None
    away = _error_of_redis(error, depth=MAX_CHAINED_ERRORS)
    if away is None:
        if record.name.partition(".")[0] not in SERVERS_LOGGERS:
            return record  # outside of requests the same error is a bug
        status = getattr(record, "status_code", None)
        refusals = (BadRequest, Http404, PermissionDenied, SuspiciousOperation)
        unreadable = (MultiPartParserError, UnreadablePostError)
        is_refused = isinstance(status, int) and 400 <= status < 500
        if not (is_refused or status in UNAVAILABLE or isinstance(error, (*refusals, *unreadable))):
            return record
    short = copy.copy(record)
    short.exc_info = short.exc_text = None
    if short.levelno > logging.WARNING:
        short.levelno, short.levelname = logging.WARNING, "WARNING"
    if away is not None:
        short.name, short.msg, short.args = "loomweb.redis", REDIS_AWAY, ()
        short.__dict__["fields"] = {"reason": str(away)}
    return short


def _error_of_redis(error: BaseException | None, *, depth: int) -> BaseException | None:
    # Return the Redis error if the error is one or was caused by nothing else. ``__context__``
    # is not followed, because an error that is raised while handling another one may be a bug.
    if error is None or depth == 0:
        return None
    # Classes are compared by name, because the library is loaded only if Redis is used.
    if any(
        kind.__module__ == "redis.exceptions"
        and kind.__name__ in ("ConnectionError", "TimeoutError")
        for kind in type(error).__mro__
    ):
        return error
    if isinstance(error, BaseExceptionGroup):
        parts = [_error_of_redis(part, depth=depth - 1) for part in error.exceptions]
        return parts[0] if all(parts) else None
    return _error_of_redis(error.__cause__, depth=depth - 1)
