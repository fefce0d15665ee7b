"""Requests over the wire to the API of one running server.

The examples of the documents come first, while the server has no data. Then requests are
generated from the description. No response may be a server error, nor have a status or a body
that the description does not name.

``LOOM_SCHEMATHESIS_EXAMPLES=200`` sends 200 requests to each operation, for a longer run.
"""

import json
import os
import re
import subprocess
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

from loomweb.env import BASE_DIR
from scripts.without import list_features
from tests.starting import Starts

from .live import LiveServer, live_server

EXAMPLES = int(os.environ.get("LOOM_SCHEMATHESIS_EXAMPLES", "0"))
FEW = 1

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

SECONDS = 60.0
"""Timeout of a request, which no operation reaches."""

ENDLESS = {"/api/v1/sessions/{uuid}/events/stream"}
"""Streams that do not end by themselves, so they are requested for unknown sessions only."""

type Known = dict[str, str]


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, migrated: Path, starts: Starts
) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("data")
    with live_server(folder, migrated, starts) as server:
        yield server


DOCUMENTS = ("docs/api.md", "docs/streaming.md", "docs/work-items.md", "docs/formats.md")

FENCE = re.compile(r"^```(sh|json|text)\n(.*?)^```$", re.M | re.S)

MARK = "=== the next example ==="


def read_examples() -> list[tuple[str, str]]:
    """Return each example with the answer that stands below it, or an empty string."""
    found: list[tuple[str, str]] = []
    documents = "".join((BASE_DIR / name).read_text() for name in DOCUMENTS)
    for kind, text in FENCE.findall(documents):
        if kind == "sh":
            found.append((text, ""))
        else:
            found[-1] = (found[-1][0], text)
    if "interchange" not in list_features():
        found = [(text, answer) for text, answer in found if "/export?" not in text]
    return found


def fits(expected: Any, given: Any) -> bool:
    """Return whether the answer contains everything that the document shows.

    An ellipsis matches any text. A list of the document shows only the first items.
    """
    if isinstance(expected, dict):
        return isinstance(given, dict) and all(
            name in given and fits(value, given[name]) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(given, list) and all(
            len(given) > place and fits(one, given[place]) for place, one in enumerate(expected)
        )
    if expected == "…":
        return isinstance(given, str) and given != ""
    if isinstance(expected, float):
        return isinstance(given, float)
    return bool(expected == given)


def is_like(expected: list[str], given: list[str]) -> bool:
    """Return whether the lines are equal, where an ellipsis matches any text."""
    patterns = [re.escape(line).replace("…", ".+") for line in expected]
    return len(given) == len(expected) and all(
        re.fullmatch(pattern, line) for pattern, line in zip(patterns, given, strict=True)
    )


def run_examples(server: LiveServer, folder: Path) -> list[str]:
    """Run all examples as one script and return the output of each."""
    script = "set -euo pipefail\n" + "".join(
        f"{code}\necho; echo '{MARK}'\n" for code, _ in read_examples()
    )
    script = script.replace("http://127.0.0.1:8000", server.url).replace("loom_…", server.token)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(MARK)[:-1]


def test_every_example_gives_the_answer_below_it(server: LiveServer, tmp_path: Path) -> None:
    examples = read_examples()
    printed = run_examples(server, tmp_path)
    assert len(printed) == len(examples) > 10
    for (code, answer), text in zip(examples, printed, strict=True):
        if not answer:
            continue
        shown = text.strip().splitlines()[-1]
        if not answer.startswith(("{", "2")):
            lines = answer.strip().splitlines()
            assert is_like(lines, text.strip().splitlines()[-len(lines) :]), f"{code}\n{text}"
        else:
            assert fits(json.loads(answer), json.loads(shown)), f"{code}\n{shown}"


def make_requests(operation: Any, server: LiveServer, known: Known) -> None:
    """Send requests that the description allows and requests that it does not.

    Each request has a token. The first one is also sent without a token.
    """
    modes = list(GenerationMode)
    if not EXAMPLES and operation.method == "get":
        # Building strategies takes longer than the requests, so GET operations get one mode.
        modes = [modes[len(operation.path) % 2]]
    ways = [operation.as_strategy(generation_mode=mode) for mode in modes]
    token = {"Authorization": f"Bearer {server.token}"}
    callers = iter([({}, token)])

    @settings(
        max_examples=EXAMPLES or FEW,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    # The first example is the simplest one. Its ``misses`` is 0, so the request finds something.
    @given(case=st.one_of(ways), misses=st.sampled_from((0, 0, 0, 1)))
    def call(case: Any, misses: int) -> None:
        for name in case.path_parameters or ():
            if operation.path not in ENDLESS and not misses and name in known:
                case.path_parameters[name] = known[name]
        if case.operation.path.endswith("/messages") and isinstance(case.query, dict):
            case.query.pop("wait", None)
        for headers in next(callers, (token,)):
            case.call_and_validate(
                base_url=server.url, headers=headers, checks=CHECKS, timeout=SECONDS
            )

    call()


def parts_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that Hypothesis has put into groups."""
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
    """Create a session with a run, a file and a webhook, and return their path parameters."""
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
    known = {
        "slug": "example",
        "uuid": session,
        "run": run["run"],
        "number": "1",
        "attachment": file["uuid"],
        "key": "bead:ac-1",
        "bead": "ac-1",
    }
    if "webhooks" in list_features():
        wish = {"url": "https://hooks.example.org/x", "events": ["run.failed"], "active": False}
        known["hook"] = post(f"{garden}/hooks", json=wish)["uuid"]
    return known


def test_every_response_conforms_to_the_description(server: LiveServer) -> None:
    known, problems = make_things(server), []
    for operation in list_operations(server):
        try:
            make_requests(operation, server, known)
        except (Exception, BaseExceptionGroup) as error:
            problems += [f"{operation.label}: {one}" for one in parts_of(error)]
    assert not problems, "\n\n".join(problems)


def test_a_multipart_form_without_parts_is_answered_as_a_problem(server: LiveServer) -> None:
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


def test_a_too_long_address_is_refused_with_a_body(server: LiveServer) -> None:
    authorization = {"Authorization": f"Bearer {server.token}"}
    for length, statuses in ((20_000, {422}), (100_000, {400, 431})):
        answer = requests.get(
            f"{server.url}/api/v1/sessions?channel={'x' * length}",
            headers=authorization,
            timeout=SECONDS,
        )
        assert answer.status_code in statuses
        assert answer.text
