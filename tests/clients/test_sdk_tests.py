"""The anthropic SDK's own tests of messages and models, with the installation as their server.

``ANTHROPIC_SDK_SOURCES`` names a folder with the sources of the SDK's versions and their tests. By
default, the sources that ``make test-clients`` has downloaded are used.
"""

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

PYTHON = INSTALLED / "sdk" / "bin" / "python"
SOURCES = Path(os.environ.get("ANTHROPIC_SDK_SOURCES", INSTALLED))
RESOURCES = ("test_messages.py", "test_models.py")
FILES = [f"tests/api_resources/{folder}{name}" for folder in ("", "beta/") for name in RESOURCES]

# Models that the tests name, and models that the SDK lists as deprecated.
NAMES = ("claude-opus-4-6", "claude-sonnet-4-5-20250929", "model_id")
GONE = re.compile(r'"(claude-[^"]+)": "', re.ASCII)

# The number of tests in each version, and the parameters that the installation refuses.
REFUSED = "container fallback_credit_token fallbacks inference_geo mcp_servers"
SDKS = {"0.121.0": (220, REFUSED), "2.12.0": (215, f"{REFUSED} billing_policy compaction thread")}

# The number of tests with these parameters, for all clients together.
WITH_THEM = {
    f"{file}::Test{kind}Messages::test_method_create_with_all_params_overload_{number}": count
    for file in (FILES[0], FILES[2])
    for kind, count in (("", 2), ("Async", 3))
    for number in (1, 2)
}


@pytest.fixture(params=SDKS)
def version(request: pytest.FixtureRequest, wire: WireThread) -> str:
    """An installed version of the SDK, whose models the provider offers."""
    source = SOURCES / f"anthropic-{request.param}"
    if not (source / "tests").exists() or not PYTHON.exists():
        pytest.skip("the SDK's tests are not there: make test-clients, or ANTHROPIC_SDK_SOURCES")
    gone = GONE.findall((source / "src/anthropic/resources/messages/messages.py").read_text())
    for name in (*NAMES, *gone):
        wire.server.models[name] = ModelRow(
            id=name, display_name=name, created_at="2026-02-04T00:00:00Z", takes_sampling=True
        )
    return str(request.param)


def run_tests(installation: Installation, version: str, *, leaves_out: str = "") -> str:
    """Run the SDK's tests and return their output."""
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
        [str(PYTHON), "-m", "pytest", *own, *FILES],
        cwd=SOURCES / f"anthropic-{version}",
        env=clean_environment({}) | told,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout + done.stderr


def test_all_sdk_tests_pass_without_the_refused_parameters(
    version: str, installation: Installation
) -> None:
    total, refused = SDKS[version]
    said = run_tests(installation, version, leaves_out=refused)
    assert re.search(rf"^{total} passed in", said, re.M), said[-4000:]


def test_only_sdk_tests_with_refused_parameters_fail(
    version: str, installation: Installation
) -> None:
    said = run_tests(installation, version)
    failed = Counter(re.findall(r"^FAILED ([^\[]+)\[", said, re.M))
    assert failed == WITH_THEM, said[-4000:]
    assert said.count(": Extra inputs are not permitted") >= sum(WITH_THEM.values())
