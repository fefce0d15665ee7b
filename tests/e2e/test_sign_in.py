"""Sign-in by a provider and with a second factor, in a browser.

The content security policy allows the sign-in, and all its pages are accessible.
"""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.sso.authenticator import code_of
from tests.sso.provider import SECRET, Provider

from .accessibility import violations_light_and_dark
from .conftest import AXE, NARROW, Server


@pytest.fixture
def login_provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a stranger's page on a phone. Console messages other than info fail the test."""
    complaints: list[str] = []
    context = browser.new_context(viewport=NARROW)
    context.on(
        "console",
        lambda message: (
            message.type == "info" or complaints.append(f"{message.type}: {message.text}")
        ),
    )
    yield context.new_page()
    context.close()
    assert complaints == []


def assert_is_for_everybody(page: Page, name: str) -> None:
    page.evaluate(AXE.read_text())  # this server has collected its static files without axe
    assert violations_light_and_dark(page, f"sign-in-{name}") == [], name
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), name


def test_a_new_person_signs_in_by_a_provider_with_a_second_factor(
    page: Page, login_provider: Provider, make_server: Callable[..., Server]
) -> None:
    server = make_server(
        LOOM_TWO_FACTOR="required",
        LOOM_OIDC_ISSUER=login_provider.url,
        LOOM_OIDC_CLIENT_ID="loom",
        LOOM_OIDC_CLIENT_SECRET=SECRET,
        LOOM_OIDC_NAME="Example",
        LOOM_OIDC_CREATE_PEOPLE="true",
    )
    page.goto(f"{server.url}/help/")
    assert_is_for_everybody(page, "ways-in")
    page.get_by_role("link", name="Sign in with Example").click()

    expect(page.get_by_role("heading", name="Set up two-factor authentication")).to_be_visible()
    assert_is_for_everybody(page, "set-up")
    secret = page.locator(".secret").inner_text()
    page.get_by_label("Code").fill(code_of(secret))
    page.get_by_role("button", name="Turn on").click()

    expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
    assert_is_for_everybody(page, "recovery-codes")
    recovery_code = page.get_by_role("list", name="Recovery codes").locator("code").first
    code = recovery_code.inner_text()
    page.get_by_role("link", name="I have saved them, continue").click()
    expect(page).to_have_url(re.compile("/help/$"))

    page.get_by_role("button", name="Show sidebar").click()
    page.get_by_label("Account of rosa").click()
    page.get_by_role("link", name="Account", exact=True).click()
    page.get_by_role("link", name="Sign-in methods").click()
    assert_is_for_everybody(page, "ways")
    page.get_by_role("button", name="Show sidebar").click()
    page.get_by_label("Account of rosa").click()
    page.get_by_role("button", name="Sign out").click()

    page.get_by_role("link", name="Sign in with Example").click()
    assert_is_for_everybody(page, "second-factor")
    page.get_by_label("Code").fill(code)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Show sidebar")).to_be_visible()
