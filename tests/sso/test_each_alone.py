"""Two factors without a provider, and a provider without two factors.

A server with only one of them has neither the tables nor the packages of the other.
"""

from pathlib import Path

import requests

from benchmarks.processes import running_server

from .provider import SECRET, Provider


def test_a_server_starts_and_signs_in_with_two_factors_alone(tmp_path: Path) -> None:
    settings = {"LOOM_TWO_FACTOR": "optional"}
    with running_server(tmp_path, settings=settings) as server, requests.Session() as browser:
        address = f"http://127.0.0.1:{server.port}"
        browser.get(address + server.link)
        ways = browser.get(f"{address}/account/sign-in/")
        assert (ways.status_code, ways.url) == (200, f"{address}/account/sign-in/")
        assert "Set up an authenticator app" in ways.text
        assert browser.get(f"{address}/account/two-factor/set-up/").status_code == 200
        assert server.problems() == []


def test_a_server_starts_and_signs_in_with_a_provider_alone(tmp_path: Path) -> None:
    provider = Provider()
    settings = {
        "LOOM_OIDC_ISSUER": provider.url,
        "LOOM_OIDC_CLIENT_ID": "loom",
        "LOOM_OIDC_CLIENT_SECRET": SECRET,
        "LOOM_OIDC_NAME": "Example",
        "LOOM_OIDC_CREATE_PEOPLE": "true",
    }
    try:
        with running_server(tmp_path, settings=settings) as server, requests.Session() as browser:
            address = f"http://127.0.0.1:{server.port}"
            browser.get(f"{address}/sign-in/oidc/")
            ways = browser.get(f"{address}/account/sign-in/")
            assert (ways.status_code, ways.url) == (200, f"{address}/account/sign-in/")
            assert "Connected to" in ways.text
            assert "Two-factor" not in ways.text
            assert server.problems() == []
    finally:
        provider.stop()
