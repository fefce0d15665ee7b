"""Lines of the log: what they hold, and what they never do."""

import json
import logging
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from loomweb.logs import JsonFormatter, TextFormatter

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
