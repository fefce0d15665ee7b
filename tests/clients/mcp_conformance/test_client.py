"""The client's part of the conformance suite of the protocol's authors, if npm is installed.

These scenarios are left out: ``auth/basic-cimd`` needs a document at a public URL of the product.
``auth/client-credentials-jwt`` and ``auth/cross-app-access-complete-flow`` need keys and identity
providers that cannot be configured. ``auth/2025-03-26-oauth-metadata-backcompat`` has metadata with
an issuer that is not its URL.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loomweb.env import BASE_DIR

HERE = Path(__file__).parent
CACHE = BASE_DIR / ".pytest_cache" / "mcp-conformance"
SCENARIOS = (
    *("initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"),
    *("auth/metadata-var3", "auth/pre-registration", "auth/scope-step-up"),
    "auth/client-credentials-basic",
    *("auth/metadata-default", "auth/metadata-var1", "auth/metadata-var2"),
    *("auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported"),
    *("auth/scope-omitted-when-undefined", "auth/scope-retry-limit"),
    *("auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-post"),
    *("auth/token-endpoint-auth-none", "auth/2025-03-26-oauth-endpoint-fallback"),
    *("auth/resource-mismatch", "auth/offline-access-scope", "auth/offline-access-not-supported"),
)


@pytest.fixture
def suite() -> list[str]:
    """The command that runs the suite. The fixture installs the suite and the Node it needs."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not there")
    CACHE.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "package.json", CACHE)
    options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    done = subprocess.run([npm, "install", *options], cwd=CACHE, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm cannot install it: {done.stderr[-300:]}")
    modules = CACHE / "node_modules"
    found = [*modules.glob("node-linux-*/bin/node"), Path(shutil.which("node") or "node")]
    entry = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    return [str(found[0]), str(entry)]


def test_the_client_passes_the_conformance_suite(suite: list[str], tmp_path: Path) -> None:
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "LOOM_DATA_DIR": str(tmp_path),
        "PYTHONPATH": str(BASE_DIR),
    }
    client = f"{sys.executable} -m tests.clients.mcp_conformance.client"
    for scenario in SCENARIOS:
        command = [*suite, "client", "--command", client, "--scenario", scenario]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{scenario}\n{said[-4000:]}"
        assert "OVERALL: PASSED" in said, scenario
