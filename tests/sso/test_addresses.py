"""The access rules of all addresses of the extra ``sso``.

The addresses come from its URLconf, so the tests fail if one is added without a row here.
"""

import re
from dataclasses import dataclass

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils.csp import CSP

from conversations.accounts.sso.urls import urlpatterns
from conversations.admin import NOT_SHOWN, TABLES
from conversations.admin_site import ReadOnlyAdmin
from conversations.models import AuditEntry
from tests.web.conftest import browser_of
from tests.web.test_matrix import walk

from .conftest import confirm, set_up, sign_in
from .provider import Provider

pytestmark = pytest.mark.django_db


@dataclass(frozen=True, slots=True)
class Row:
    """The statuses of GET and POST at one address for three people.

    ``stranger`` is not signed in, ``person`` has no second factor, and ``secured`` has one and has
    just confirmed their identity. 302 redirects to the sign-in, to the question for the password,
    or to a next page.
    """

    stranger: tuple[int, int]
    person: tuple[int, int]
    secured: tuple[int, int]


CLOSED = (302, 302)

TABLE = {
    "sign_in_ways": Row(CLOSED, (200, 405), (200, 405)),
    "account_reauthenticate": Row(CLOSED, (200, 200), (200, 200)),
    "password_change": Row(CLOSED, (200, 200), (200, 200)),
    "account_login": Row(CLOSED, CLOSED, CLOSED),
    "oidc_sign_in": Row((302, 405), (302, 405), (302, 405)),
    "oidc_callback": Row((400, 405), (400, 405), (400, 405)),
    "oidc_connect": Row(CLOSED, (302, 405), (400, 405)),
    "oidc_disconnect": Row(CLOSED, (405, 302), (405, 302)),
    "socialaccount_connections": Row(CLOSED, CLOSED, CLOSED),
    "socialaccount_signup": Row((400, 400), (400, 400), (400, 400)),
    "mfa_authenticate": Row(CLOSED, CLOSED, CLOSED),
    "two_factor_set_up": Row(CLOSED, CLOSED, CLOSED),
    "mfa_reauthenticate": Row(CLOSED, CLOSED, (200, 200)),
    "mfa_index": Row(CLOSED, CLOSED, CLOSED),
    "mfa_activate_totp": Row(CLOSED, CLOSED, CLOSED),
    "mfa_deactivate_totp": Row(CLOSED, (404, 404), (200, 302)),
    "mfa_view_recovery_codes": Row(CLOSED, (404, 405), (200, 405)),
    "mfa_generate_recovery_codes": Row(CLOSED, CLOSED, (200, 302)),
    "mfa_download_recovery_codes": Row(CLOSED, (404, 404), (200, 405)),
}

URLS = dict(walk(urlpatterns))


def test_every_address_has_a_row() -> None:
    assert set(URLS) == set(TABLE)


def address_of(name: str) -> str:
    return reverse(name, kwargs={"token": "x"} if name == "oidc_connect" else None)


@pytest.fixture
def secured(user: User) -> Client:
    client = Client()
    sign_in(client)
    set_up(client)
    return client


def answers(client: Client, name: str) -> tuple[int, int]:
    address = address_of(name)
    return client.get(address).status_code, client.post(address).status_code


@pytest.mark.parametrize("name", TABLE)
def test_an_address_answers_as_the_table_says(
    name: str, provider: Provider, user: User, secured: Client
) -> None:
    row = TABLE[name]
    person = User.objects.create_user("bob", password="correct horse")
    assert answers(Client(), name) == row.stranger
    assert answers(browser_of(person), name) == row.person
    assert answers(secured, name) == row.secured
    assert not AuditEntry.objects.exists()


INLINE = re.compile(r"<style|<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", re.I)


def test_pages_follow_the_csp_and_secrets_are_not_cached(
    provider: Provider, secured: Client
) -> None:
    client = Client()
    sign_in(client)  # the sign-in waits for the code
    fresh = browser_of(User.objects.create_user("bob"))
    pages = [
        *(secured.get(address_of(name)) for name, row in TABLE.items() if row.secured[0] == 200),
        client.get(reverse("mfa_authenticate")),
        fresh.get(reverse("mfa_activate_totp")),
        secured.get(reverse("oidc_callback")),
    ]
    assert len(pages) > 8
    for page in pages:
        path = page.request["PATH_INFO"]
        assert CSP.SELF in page["Content-Security-Policy"], path
        assert not INLINE.search(page.text), path
    secrets = ("mfa_authenticate", "mfa_view_recovery_codes", "mfa_download_recovery_codes")
    for page in (*pages[-3:-1], *(secured.get(reverse(name)) for name in secrets[1:])):
        assert "no-store" in page["Cache-Control"], page.request["PATH_INFO"]


def test_admin_shows_every_table_of_the_extra_or_lists_it_as_hidden() -> None:
    """The tables are read-only and do not show secrets that sign people in."""
    models = {model._meta.label for model in apps.get_models()}
    extra = {label for label in models if label.startswith(("account.", "socialaccount.", "mfa."))}
    assert {"account.EmailAddress", "mfa.Authenticator"} <= extra
    assert extra <= set(TABLES) | set(NOT_SHOWN)
    assert all(isinstance(one, ReadOnlyAdmin) for one in admin.site._registry.values())
    hidden = {label: TABLES[label].left_out for label in extra & set(TABLES)}
    assert hidden == {"mfa.Authenticator": "data", "socialaccount.SocialAccount": "extra_data"}


def test_confirmation_of_the_password_expires(client: Client, user: User, settings: object) -> None:
    sign_in(client)
    confirm(client)
    assert client.get(reverse("mfa_activate_totp")).status_code == 200
    settings.ACCOUNT_REAUTHENTICATION_TIMEOUT = 0  # type: ignore[attr-defined]
    assert client.get(reverse("mfa_activate_totp")).status_code == 302
