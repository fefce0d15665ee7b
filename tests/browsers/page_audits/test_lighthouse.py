"""Audits of every kind of page, run by ``make test-page-audits``.

Lighthouse checks the pages and whether they can be installed. axe checks them in German.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import BrowserContext

from benchmarks.processes import ROOT
from benchmarks.processes import Server as Plain
from tests.e2e.accessibility import violations_everywhere
from tests.e2e.conftest import Server
from tests.e2e.hostile import example_folder

INSTALLED = ROOT / ".cache" / "page-audits"
LEAST = 98
"""The minimum score, of a hundred, for accessibility and for best practices."""

SECONDS = 900.0

PAGES = (
    *("/", "/help/", "/search/?q=beans", "/usage/", "/api/v1/docs"),
    *("/w/example/", "/w/example/?archived=1", "/w/example/files/", "/w/example/memory/"),
    *(f"/w/example/files/?path={name}" for name in ("greet.py", "plan.md", "page.html")),
    *("/w/example/members/", "/w/example/settings/", "/w/example/settings/tools/"),
    *("/w/example/settings/programs/", "/account/", "/account/preferences/", "/account/devices/"),
    *("/account/tokens/", "/account/data/", "/account/notifications/", "/import/", "/people/"),
    *("/providers/", "/audit/", "/review/", "/review/search/"),
    *("{s}", "{s}window/", "{s}state/", "{s}changes/", "{s}outline/", "{s}branches/", "{s}share/"),
    "{d}",
)


@pytest.fixture(scope="session")
def addresses(server: Server) -> list[str]:
    """The URLs of a page of each kind, with some content."""
    folder = example_folder(server)
    (folder / "plan.md").write_text("# Plan\n\n| a | b |\n|--|--|\n| 1 | $x^2$ |\n")
    (folder / "page.html").write_text("<h1>Page</h1><style>h1{color:red}</style>")
    answers = {"s": "In *May*.\n\n```py\n1\n```", "d": "```mermaid\ngraph LR; a-->b\n```"}
    found = {}
    for name, answer in answers.items():
        uuid = str(uuid4())
        found[name] = f"/s/{uuid}/"
        server.import_lines(
            [
                {"type": "session", "uuid": uuid, "workspace": "example", "title": "Beans"},
                {"type": "turn", "number": 1, "role": "user", "content": "When?"},
                {"type": "turn", "number": 2, "role": "assistant", "content": answer},
            ]
        )
    return [server.url + page.format_map(found) for page in PAGES]


def test_every_page_scores_well_and_the_first_can_be_installed(
    server: Server, addresses: list[str]
) -> None:
    found = measure(addresses, cookies_of(server))
    installable = found.pop()
    assert len(found) == len(PAGES)
    for page in found:
        print(page["path"], *page["scores"].values(), *page["wrong"])
    poor = [page for page in found if min(page["scores"].values()) < LEAST]
    assert poor == []
    assert installable == {"installabilityErrors": []}


def test_axe_finds_no_violations_on_german_pages(
    addresses: list[str], open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(locale="de-DE").new_page()
    found = {}
    for number, address in enumerate(addresses):
        page.goto(address)
        assert page.evaluate("document.documentElement.lang") == "de"
        if wrong := violations_everywhere(page, f"german-{number}"):
            found[address] = wrong
    assert found == {}


def cookies_of(server: Server) -> list[dict[str, str]]:
    """Return the cookies of a browser that has signed in."""

    port = int(server.url.rpartition(":")[2])
    given = Plain(data_dir=Path(server.folder), port=port).sign_in(
        "/" + server.sign_in_link().split("/", 3)[3]
    )
    pairs = (one.split("=", 1) for one in given.split("; "))
    return [{"name": name, "value": value} for name, value in pairs]


def measure(urls: list[str], cookies: list[dict[str, str]]) -> list[dict[str, object]]:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    node = shutil.which("node")
    assert browser
    assert node
    program = INSTALLED / "measure.mjs"
    done = subprocess.run(
        [node, program, browser, json.dumps(cookies), *urls],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
