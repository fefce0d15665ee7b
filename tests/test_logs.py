"""The log: the content of its lines, secrets that are removed, and the limit on repeated lines."""

import ast
import io
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse
from django.test import Client, RequestFactory
from django.utils.log import log_response
from redis.exceptions import ConnectionError as NotReached

from conversations.archive.storage import database_unavailable
from conversations.runtime.database import log_failure
from loomweb import logs
from loomweb.env import BASE_DIR
from loomweb.logs import WINDOW_SECONDS, JsonFormatter, RateLimitedHandler, TextFormatter
from loomweb.redis_cache import FallbackRedisCache

type Write = Callable[[logging.LogRecord], str]

DESCRIBED_EVENTS: dict[str, str] = dict(
    re.findall(
        r"^\| `(\w+)` \| (\w+)",
        (BASE_DIR / "docs/operating.md").read_text().partition("\n## Metrics")[0],
        re.M,
    )
)
"""The documented level of each event."""

OWN_EVENTS = {"log_lines_left_out": "warning"}
"""Events that the log's handler writes itself, without a logger."""

LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def read_logged() -> tuple[dict[str, set[str]], list[str]]:
    """Return the levels of each logged event, and the places of malformed logging calls.

    The level is "" if it depends on the call. A call must log the constant name of an event, with
    its values in fields.
    """
    logged: dict[str, set[str]] = {event: {level} for event, level in OWN_EVENTS.items()}
    wrong = []
    for path in [
        *(BASE_DIR / "conversations").rglob("*.py"),
        *(BASE_DIR / "loomweb").rglob("*.py"),
    ]:
        text = path.read_text()
        if not re.search("logger|logging|log_failure", text):
            continue
        tree = ast.parse(text)
        # log_failure logs the event that its caller names.
        passing_on = [node for node in ast.walk(tree) if getattr(node, "name", "") == "log_failure"]
        passed_on = {id(node) for function in passing_on for node in ast.walk(function)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or id(node) in passed_on:
                continue
            called, _, level = ast.unparse(node.func).rpartition(".")
            if level == "log_failure" or (called, level) == ("logger", "log"):
                level, [_, event, *values] = "", node.args
            elif called in ("logger", "logging") and level in LEVELS:
                level, [event, *values] = level.replace("exception", "error"), node.args
            else:
                continue
            name = event.value if isinstance(event, ast.Constant) else ""
            if values or not re.fullmatch(r"[a-z]+(_[a-z]+)+", str(name)):
                wrong.append(f"{path.relative_to(BASE_DIR)}:{node.lineno}")
            logged.setdefault(str(name), set()).add(level)
    return logged, wrong


def test_every_logged_event_is_documented() -> None:
    logged, wrong = read_logged()
    assert wrong == []
    assert set(logged) <= set(DESCRIBED_EVENTS)
    assert len(logged) > 40  # even if some features are taken out
    for event, levels in logged.items():
        assert levels <= {DESCRIBED_EVENTS[event], ""}, event


@pytest.fixture(params=[TextFormatter, JsonFormatter], ids=["text", "json"])
def write(request: pytest.FixtureRequest) -> Write:
    formatter: logging.Formatter = request.param()
    return formatter.format


def test_a_line_contains_the_events_fields(write: Write) -> None:
    record = logging.makeLogRecord({"msg": "run_ended", "fields": {"state": "failed"}})
    assert "run_ended" in write(record)
    assert "failed" in write(record)


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["get", "post", "put"])
@pytest.mark.parametrize("address", ["/join/", "/shared/", "/shared-file/", "/sign-in/link/"])
def test_no_line_contains_the_token_of_a_link(
    write: Write, address: str, method: str, user: User, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(enforce_csrf_checks=True)
    getattr(client, method)(f"{address}t0ken-of:somebody/")
    lines = [write(record) for record in caplog.records]
    assert not [line for line in lines if "t0ken" in line]


def test_no_line_contains_api_tokens_or_webhook_secrets(write: Write) -> None:
    token, secret = f"loom_{'t0-Ken_' * 6}x", "whsec_MfKQ9r8G+/qrTw=="
    message = f'Not Found: "/w/x/feed.atom?token={token}&a=b" {secret} loom_runs_running'
    line = write(logging.makeLogRecord({"msg": message}))
    assert "t0-Ken" not in line
    assert "MfKQ9" not in line
    assert "&a=b" in line
    assert "loom_runs_running" in line


def test_removing_a_secret_keeps_the_rest_of_the_line(write: Write) -> None:
    message = 'Not Found: "/shared/t0ken\\"of/files/ and \\"/s/1/"'
    record = logging.makeLogRecord({"msg": message, "levelname": "WARNING"})
    line = write(record)
    assert "t0ken" not in line
    assert "/s/1/" in line
    if line.startswith("{"):
        assert json.loads(line)["level"] == "WARNING"


class Log:
    """The log of a server. By default its clock stands still."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.now = 0.0
        self.handler = RateLimitedHandler(lines_per_minute=3, clock=clock or (lambda: self.now))
        self.handler.setFormatter(TextFormatter())
        self._written = io.StringIO()
        self.handler.setStream(self._written)

    def lines(self) -> list[str]:
        return self._written.getvalue().splitlines()


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    logging.getLogger().addHandler(made.handler)
    yield made
    logging.getLogger().removeHandler(made.handler)
    made.handler.close()


def test_repeated_lines_are_left_out_and_counted(log: Log) -> None:
    logger = logging.getLogger("conversations.somewhere")
    for number in range(10):
        logger.warning("attempt %s", number)
    logger.warning("something else")
    assert len(log.lines()) == 4
    log.now += WINDOW_SECONDS
    logger.warning("later")
    assert "log_lines_left_out lines=7 of=conversations.somewhere: attempt 0" in log.lines()[4]
    assert len(log.lines()) == 6


def test_left_out_lines_are_reported_when_the_log_is_closed(log: Log) -> None:
    for _ in range(5):
        logging.getLogger("conversations").warning("same")
    log.handler.close()
    assert "log_lines_left_out lines=2" in log.lines()[-1]


def test_left_out_lines_are_reported_when_their_window_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "WINDOW_SECONDS", 0.3)
    log = Log(time.monotonic)
    for name in ("first", "second"):
        for _ in range(5):
            values = {"name": name, "msg": "said", "levelno": logging.WARNING}
            log.handler.handle(logging.makeLogRecord(values))
        time.sleep(0.15)
    until = time.monotonic() + 10
    while time.monotonic() < until and len(log.lines()) < 8:
        time.sleep(0.02)
    told = [line.partition(" of=")[2] for line in log.lines() if "log_lines_left_out" in line]
    assert told == ["first: said", "second: said"]
    log.handler.close()


def test_the_report_of_left_out_lines_contains_no_part_of_a_secret(log: Log) -> None:
    token = f"loom_{'t0-Ken_' * 6}x"
    for _ in range(5):
        logging.getLogger("conversations").warning("%s %s", "x" * 160, token)
    log.handler.close()
    assert "log_lines_left_out" in log.lines()[-1]
    assert "t0-Ken" not in "".join(log.lines())


def ours() -> Exception:
    """Return an error in our own code that was raised while handling a lost Redis connection."""
    try:
        try:
            raise NotReached("Error 111")
        except NotReached:
            raise KeyError("ours")  # noqa: B904
    except KeyError as error:
        return error


def caused() -> Exception:
    try:
        raise RuntimeError("not delivered") from NotReached("Error 111")
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "name", "is_ours"),
    [
        (ours(), "conversations.runtime.service", True),
        (ours(), "django.request", True),
        (ExceptionGroup("", [NotReached(""), KeyError("ours")]), "conversations", True),
        (PermissionDenied("of a task"), "conversations.runtime.service", True),
        (Http404("of a task"), "asyncio", True),
        (PermissionDenied("of a page"), "django.request", False),
        (Http404("of a page"), "django.request", False),
        (caused(), "conversations.runtime.service", False),
        (ExceptionGroup("", [NotReached(""), caused()]), "conversations", False),
    ],
)
def test_only_our_own_errors_are_logged_with_a_traceback(
    log: Log, error: Exception, name: str, is_ours: bool
) -> None:
    logging.getLogger(name).error("failed", exc_info=error)
    written = "\n".join(log.lines())
    assert (f"ERROR {name}: failed" in written) is is_ours
    assert (type(error).__name__ in "".join(log.lines()[1:])) is is_ours
    assert len(log.lines()) == 1 or is_ours


def fail(number: int) -> None:
    raise ValueError(number)


def test_a_repeated_error_keeps_its_traceback_up_to_the_limit(log: Log) -> None:
    logger = logging.getLogger("conversations.somewhere")
    for number in range(10):
        try:
            fail(number)
        except ValueError:
            logger.exception("run_failed")
    assert sum("Traceback" in line for line in log.lines()) == 3
    assert sum("ERROR conversations.somewhere: run_failed" in line for line in log.lines()) == 3


HOSTILE: dict[str, dict[str, Any]] = {
    "unknown host": {"headers": {"Host": "evil-{}.example"}},
    "bad host": {"headers": {"Host": "evil_<>{}.example"}},
    "unknown host of the API": {"path": "/api/v1/workspaces", "headers": {"Host": "{}.example"}},
    "unknown encoding": {"method": "post", "content_type": "text/plain; charset=utf-7"},
    "too many fields": {
        "method": "post",
        "data": "&".join(f"a{n}=1" for n in range(1500)),
        "content_type": "application/x-www-form-urlencoded",
    },
    "too large": {
        "method": "post",
        "data": "a=" + "x" * 5_000_000,
        "content_type": "application/x-www-form-urlencoded",
    },
    "broken form": {
        "method": "post",
        "data": b"x",
        "content_type": "multipart/form-data; boundary=" + "x" * 300,
    },
    "no such page": {"path": "/nothing-{}/\n2026-01-01 ERROR faked"},
    "no such session": {"path": "/s/00000000-0000-0000-0000-00000000000{}/", "as_user": True},
    "not for this person": {"path": "/admin/auth/user/{}/change/", "as_user": True},
    "no such method": {"method": "put"},
    "no form token": {"method": "post"},
    "wrong password": {
        "path": "/sign-in/",
        "method": "post",
        "data": "username=ann{}&password=x",
        "content_type": "application/x-www-form-urlencoded",
        "checks": False,
    },
    "wrong token": {"path": "/api/v1/workspaces", "headers": {"Authorization": "Bearer {}"}},
}


@pytest.mark.django_db
@pytest.mark.parametrize("request_of", HOSTILE.values(), ids=list(HOSTILE))
def test_no_client_can_flood_the_log(log: Log, user: User, request_of: dict[str, Any]) -> None:
    wanted = {"path": "/sign-in/", "method": "get", "headers": {}} | request_of
    client = Client(enforce_csrf_checks=wanted.pop("checks", wanted["method"] == "post"))
    if wanted.pop("as_user", False):
        User.objects.filter(pk=user.pk).update(is_staff=True)
        client.force_login(User.objects.get(pk=user.pk))
    path, method, headers = (wanted.pop(name) for name in ("path", "method", "headers"))
    host = headers.pop("Host", None)
    for number in range(8):
        sent = {name: str(value).format(number) for name, value in headers.items()}
        more = {"HTTP_HOST": host.format(number)} if host else {}
        data = wanted.get("data")
        body = {"data": data.format(number) if isinstance(data, str) else data} if data else {}
        kind = {k: v for k, v in wanted.items() if k == "content_type"}
        getattr(client, method)(path.format(number), headers=sent, **body, **kind, **more)
    lines = log.lines()
    assert len(lines) <= 9, "three of each event"
    assert not [line for line in lines if "Traceback" in line or " ERROR " in line[:60]]
    assert not [line for line in lines if line.startswith(("  ", "2026-01-01 "))]


@pytest.mark.parametrize(("status", "level"), [(503, "WARNING"), (507, "WARNING"), (500, "ERROR")])
def test_statuses_503_and_507_are_warnings_and_500_is_an_error(
    log: Log, rf: RequestFactory, status: int, level: str
) -> None:
    log_response("Refused: %s", "/", response=HttpResponse(status=status), request=rf.get("/"))
    [line] = log.lines()
    assert f" {level} django.request: Refused: /" in line


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "kind", "begins"),
    [
        ("/", "text/html; charset=utf-8", "<!doctype html>"),
        ("/api/v1/workspaces", "application/problem+json", '{"type":'),
    ],
)
def test_an_unknown_host_is_refused_as_a_page_or_as_problem_json(
    client: Client, path: str, kind: str, begins: str
) -> None:
    answer = client.get(path, HTTP_HOST="evil.example")
    assert (answer.status_code, answer["Content-Type"]) == (400, kind)
    assert answer.text.startswith(begins)
    assert "LOOM_ALLOWED_HOSTS" in answer.text
    assert "evil" not in answer.text


def test_a_long_outage_does_not_hide_the_runs_that_it_ends(log: Log) -> None:
    away = database_unavailable()
    for _ in range(10):
        log_failure(away, "loop_failed", loop="RunQueue.run_heartbeat")
    log_failure(away, "run_not_finished", run="6f1b")
    assert ["loop" in line for line in log.lines()] == [True] * 3 + [False]


def test_an_unreachable_redis_is_logged_once(log: Log) -> None:
    cache = FallbackRedisCache("redis://127.0.0.1:1/0", {"OPTIONS": {"retry": None}})
    for number in range(5):
        assert cache.add("key", number) is (number == 0)
    assert cache.get("key") == 0, "what this process has counted"
    cache.set("key", 2, 10)
    assert (cache.get("key"), cache.delete("key")) == (2, True)
    [line] = log.lines()
    assert "WARNING loomweb.redis: redis_away reason=" in line


CACHE_CALLS: list[tuple[str, tuple[Any, ...], Any]] = [
    ("add", ("key", 1), True),
    ("set", ("key", 1), None),
    ("get", ("key",), None),
    ("get_or_set", ("key", 3), 3),
    ("touch", ("key",), False),
    ("delete", ("key",), False),
    ("has_key", ("key",), False),
    ("__contains__", ("key",), False),
    ("get_many", (["key"],), {}),
    ("set_many", ({"key": 1},), []),
    ("delete_many", (["key"],), None),
    ("incr", ("key",), 1),
    ("decr", ("key",), -1),
    ("clear", (), None),
    ("close", (), None),
]


@pytest.mark.parametrize(("method", "arguments", "answer"), CACHE_CALLS)
def test_no_cache_method_fails_while_redis_is_unreachable(
    method: str, arguments: tuple[Any, ...], answer: Any
) -> None:
    cache = FallbackRedisCache("redis://127.0.0.1:1/0", {"OPTIONS": {"retry": None}})
    cache.clear()
    assert getattr(cache, method)(*arguments) == answer


def test_counters_keep_counting_while_redis_is_unreachable() -> None:
    cache = FallbackRedisCache("redis://127.0.0.1:1/0", {"OPTIONS": {"retry": None}})
    cache.clear()
    assert [cache.incr("key", version=2), cache.incr("key", 2, version=2)] == [1, 3]
    assert cache.get_many(["key"], version=2) == {"key": 3}
