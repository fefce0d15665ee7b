"""The description drives requests over a running server: whatever is sent, no answer is an
error of the server, and none has a status or a body that the description does not name.

For a longer run ``LOOM_SCHEMATHESIS_EXAMPLES=200`` is how many requests each operation gets
from each of the two callers.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from .live import LiveServer, live_server

EXAMPLES = int(os.environ.get("LOOM_SCHEMATHESIS_EXAMPLES", "0"))
FEW = 2

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

SECONDS = 60.0
"""Nothing takes so long."""

ENDLESS = {"/api/v1/sessions/{uuid}/events/stream"}
"""Streams that go on as long as somebody reads: only of what is not there."""

type Known = dict[str, str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("data")
    with live_server(folder, migrated) as server:
        yield server


class Calls:
    """Requests of one caller, which are checked."""

    def __init__(self, server: LiveServer, headers: dict[str, str], known: Known) -> None:
        self._server = server
        self._headers = headers
        self._known = known

    def make(self, operation: Any) -> None:
        """Requests as the description allows them, and as it does not."""
        ways = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

        @settings(
            max_examples=EXAMPLES or FEW,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=st.one_of(ways), finds=st.integers(0, 3))
        def call(case: Any, finds: int) -> None:
            for name in case.path_parameters or ():
                if operation.path not in ENDLESS and finds and name in self._known:
                    case.path_parameters[name] = self._known[name]
            if case.operation.path.endswith("/messages") and isinstance(case.query, dict):
                case.query.pop("wait", None)
            case.call_and_validate(
                base_url=self._server.url,
                headers=self._headers,
                checks=CHECKS,
                timeout=SECONDS,
            )

        call()


def parts_of(error: BaseException) -> Iterator[BaseException]:
    """What hypothesis puts into groups."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from parts_of(one)
    else:
        yield error


def list_operations(server: LiveServer) -> Iterator[APIOperation]:
    schema = schemathesis.openapi.from_url(f"{server.url}/api/v1/openapi.json")
    for result in schema.get_all_operations():
        yield result.ok()


def make_things(server: LiveServer) -> Known:
    """What there is to be found: a session with a run, a file, a webhook."""
    address, headers = f"{server.url}/api/v1", {"Authorization": f"Bearer {server.token}"}
    garden = f"{address}/workspaces/example"

    def post(url: str, **body: Any) -> Any:
        answer = requests.post(url, headers=headers, timeout=SECONDS, **body)
        assert answer.ok, answer.text
        return answer.json()

    session = post(f"{garden}/keys/bead:ac-1")["uuid"]
    run = post(f"{address}/sessions/{session}/messages?wait=30", json={"text": "Hello"})
    notes = {"files": ("notes.txt", b"Plant the beans")}
    [file] = post(f"{address}/sessions/{session}/attachments", files=notes)["items"]
    wish = {"url": "https://hooks.example.org/x", "events": ["run.failed"], "active": False}
    return {
        "slug": "example",
        "uuid": session,
        "run": run["run"],
        "number": "1",
        "attachment": file["uuid"],
        "hook": post(f"{garden}/hooks", json=wish)["uuid"],
        "key": "bead:ac-1",
        "bead": "ac-1",
    }


def test_no_answer_is_out_of_the_description(server: LiveServer) -> None:
    """To somebody with a token, and to nobody."""
    known, problems = make_things(server), []
    signed_in = Calls(server, {"Authorization": f"Bearer {server.token}"}, known)
    for operation in list_operations(server):
        for calls in (signed_in, Calls(server, {}, known)):
            try:
                calls.make(operation)
            except (Exception, BaseExceptionGroup) as error:
                problems += [f"{operation.label}: {one}" for one in parts_of(error)]
    assert not problems, "\n\n".join(problems)


def test_a_form_without_any_part_is_refused_with_its_reason(server: LiveServer) -> None:
    session = "00000000-0000-4000-8000-000000000000"
    answer = requests.post(
        f"{server.url}/api/v1/sessions/{session}/attachments",
        data=b"--edge--\r\n",
        headers={
            "Authorization": f"Bearer {server.token}",
            "Content-Type": "multipart/form-data; boundary=edge",
        },
        timeout=SECONDS,
    )
    assert 400 <= answer.status_code < 500
    assert answer.headers["Content-Type"] == "application/problem+json"
