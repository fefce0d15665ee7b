"""Lines of the log: what they hold, and what they never do."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from conversations.archive.storage_errors import database_unavailable
from conversations.runtime.engine import _log
from loomweb.logs import WINDOW_SECONDS, JsonFormatter, RateLimitedHandler, TextFormatter
from loomweb.redis_cache import FallbackRedisCache

type Write = Callable[[logging.LogRecord], str]


@pytest.fixture(params=[TextFormatter, JsonFormatter], ids=["text", "json"])
def write(request: pytest.FixtureRequest) -> Write:
    formatter: logging.Formatter = request.param()
    return formatter.format


def test_fields_stand_in_the_line(write: Write) -> None:
    record = logging.makeLogRecord({"msg": "run_ended", "fields": {"state": "failed"}})
    assert "run_ended" in write(record)
    assert "failed" in write(record)


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["get", "post", "put"])
@pytest.mark.parametrize("address", ["/join/", "/shared/", "/sign-in/link/"])
def test_no_line_holds_what_opens_a_page(
    write: Write, address: str, method: str, user: User, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(enforce_csrf_checks=True)
    getattr(client, method)(f"{address}t0ken-of:somebody/")
    lines = [write(record) for record in caplog.records]
    assert not [line for line in lines if "t0ken" in line]


def test_no_line_holds_what_a_program_signs_in_by(write: Write) -> None:
    token, secret = f"loom_{'t0-Ken_' * 6}x", "whsec_MfKQ9r8G+/qrTw=="
    message = f'Not Found: "/w/x/feed.atom?token={token}&a=b" {secret} loom_runs_running'
    line = write(logging.makeLogRecord({"msg": message}))
    assert "t0-Ken" not in line
    assert "MfKQ9" not in line
    assert "&a=b" in line
    assert "loom_runs_running" in line


def test_a_line_stays_what_it_is(write: Write) -> None:
    message = 'Not Found: "/shared/t0ken\\"of/files/ and \\"/s/1/"'
    record = logging.makeLogRecord({"msg": message, "levelname": "WARNING"})
    line = write(record)
    assert "t0ken" not in line
    assert "/s/1/" in line
    if line.startswith("{"):
        assert json.loads(line)["level"] == "WARNING"


class Log:
    """What the log of a server writes; its time stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handler = RateLimitedHandler(lines_per_minute=3, clock=lambda: self.now)
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


def test_what_is_said_again_and_again_is_counted(log: Log) -> None:
    logger = logging.getLogger("conversations.somewhere")
    for number in range(10):
        logger.warning("attempt %s", number)
    logger.warning("something else")
    assert len(log.lines()) == 4
    log.now += WINDOW_SECONDS
    logger.warning("later")
    assert "log_lines_left_out lines=7 of=conversations.somewhere: attempt 0" in log.lines()[4]
    assert len(log.lines()) == 6


def test_what_was_left_out_is_told_at_the_end(log: Log) -> None:
    for _ in range(5):
        logging.getLogger("conversations").warning("same")
    log.handler.close()
    assert "log_lines_left_out lines=2" in log.lines()[-1]


def fail(number: int) -> None:
    raise ValueError(number)


def test_the_same_fault_of_ours_keeps_its_traceback_a_few_times(log: Log) -> None:
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
def test_no_client_fills_the_log(log: Log, user: User, request_of: dict[str, Any]) -> None:
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


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "kind", "begins"),
    [
        ("/", "text/html; charset=utf-8", "<!doctype html>"),
        ("/api/v1/workspaces", "application/problem+json", '{"type":'),
        ("/api/v1/anthropic/v1/messages", "application/json", '{"type":"error"'),
    ],
)
def test_an_unknown_host_is_refused_in_the_form_of_what_was_asked(
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
        _log(away, "a loop of the runtime failed and is started again")
    _log(away, "run_not_finished", run="6f1b")
    assert ["loop" in line for line in log.lines()] == [True] * 3 + [False]


def test_redis_away_is_one_line(log: Log) -> None:
    cache = FallbackRedisCache("redis://127.0.0.1:1/0", {"OPTIONS": {"retry": None}})
    for number in range(5):
        assert cache.add("key", number) is (number == 0)
    assert cache.get("key") == 0, "what this process has counted"
    cache.set("key", 2, 10)
    assert (cache.get("key"), cache.delete("key")) == (2, True)
    [line] = log.lines()
    assert "WARNING loomweb.redis: redis_away reason=" in line
