"""The anthropic SDK's own tests of messages and models, with the installation as their server.

``ANTHROPIC_SDK_SOURCE`` names a folder with the SDK's sources, tests included; without it those
that ``make test-clients`` has fetched are taken."""

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.processes import clean_environment
from tests.wire.rules.request import ModelRow
from tests.wire.server import WireThread

from .conftest import INSTALLED, PROGRAMS, Installation

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own"),
]

SOURCE = Path(os.environ.get("ANTHROPIC_SDK_SOURCE", INSTALLED / "anthropic-0.121.0"))
RESOURCES = ("test_messages.py", "test_models.py")
FILES = [f"tests/api_resources/{folder}{name}" for folder in ("", "beta/") for name in RESOURCES]

# What the tests ask of models that are gone.
DEPRECATED = re.compile(r'"(claude-[^"]+)": "', re.ASCII)
NAMES = ("claude-opus-4-6", "claude-sonnet-4-5-20250929", "model_id")

# Parameters that are refused here.
REFUSED = "container fallback_credit_token fallbacks inference_geo mcp_servers"
WITH_THEM = {
    f"{file}::Test{kind}Messages::test_method_create_with_all_params_overload_{number}": count
    for file in (FILES[0], FILES[2])
    for kind, count in (("", 2), ("Async", 3))
    for number in (1, 2)
}


def run_tests(installation: Installation, *, leaves_out: str = "") -> str:
    """What they print."""
    python = INSTALLED / "sdk" / "bin" / "python"
    if not (SOURCE / "tests").exists() or not python.exists():
        pytest.skip("the SDK's tests are not there: make test-clients, or ANTHROPIC_SDK_SOURCE")
    told = {
        "HOME": str(installation.folder),
        "NO_PROXY": "127.0.0.1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"src:{PROGRAMS}",
        "TEST_API_BASE_URL": f"{installation.address}/api/v1/anthropic/garden",
        "CLIENT_TOKEN": installation.token,
        "CLIENT_LEAVES_OUT": leaves_out,
    }
    own = ("-p", "sdk_tests", "-p", "no:cacheprovider", "-o", "addopts=", "-q", "-rf", "--tb=line")
    done = subprocess.run(
        [str(python), "-m", "pytest", *own, *FILES],
        cwd=SOURCE,
        env=clean_environment({}) | told,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout + done.stderr


@pytest.fixture(autouse=True)
def models(wire: WireThread) -> None:
    """Those that the tests name."""
    source = SOURCE / "src/anthropic/resources/messages/messages.py"
    gone = DEPRECATED.findall(source.read_text()) if source.exists() else []
    for name in (*NAMES, *gone):
        wire.server.models[name] = ModelRow(
            id=name, display_name=name, created_at="2026-02-04T00:00:00Z", takes_sampling=True
        )


def test_all_pass_without_the_parameters_that_are_refused(installation: Installation) -> None:
    said = run_tests(installation, leaves_out=REFUSED)
    assert re.search(r"^220 passed in", said, re.M), said[-4000:]


def test_those_that_fail_send_them(installation: Installation) -> None:
    said = run_tests(installation)
    failed = Counter(re.findall(r"^FAILED ([^\[]+)\[", said, re.M))
    assert failed == WITH_THEM, said[-4000:]
    assert said.count("container: Extra inputs are not permitted") >= sum(WITH_THEM.values())
    assert re.search(r"^20 failed, 200 passed in", said, re.M)
