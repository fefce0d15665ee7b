"""The provider, and browsers that are redirected between the provider and this server."""

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from tests.web.conftest import runtime_ends

from .authenticator import code_of
from .provider import Provider

__all__ = ["runtime_ends"]

if os.environ.get("DJANGO_SETTINGS_MODULE") != "tests.sso.settings":
    collect_ignore_glob = ["test_*.py"]

PASSWORD = "correct horse"


@pytest.fixture(scope="session")
def one_provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.stop()


@pytest.fixture
def provider(one_provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Provider:
    """The provider of the settings. Everybody who is known to it gets an account here."""
    one_provider.reset()
    monkeypatch.setattr(django_settings.LOOM, "oidc_issuer", one_provider.url)
    monkeypatch.setattr(django_settings.LOOM, "oidc_create_people", True)
    return one_provider


@pytest.fixture(autouse=True)
def _no_memory_of_attempts() -> None:
    cache.clear()


def go_there(client: Client, address: str) -> str:
    """Follow a link to the provider, and return the address to which it redirects back."""
    there = client.get(address)
    assert there.status_code == 302, there.text
    back = requests.get(there["Location"], allow_redirects=False, timeout=60)
    assert back.status_code == 302, back.text
    return str(back.headers["Location"])


def come_back(client: Client, address: str) -> Any:
    parts = urlsplit(address)
    return client.get(f"{parts.path}?{parts.query}")


def sign_in_there(client: Client, **query: str) -> Any:
    """Sign in by the provider, and return this server's answer at the end."""
    address = reverse("oidc_sign_in")
    if query:
        address += "?" + "&".join(f"{name}={value}" for name, value in query.items())
    return come_back(client, go_there(client, address))


def sign_in(client: Client, username: str = "ann", password: str = PASSWORD, **more: str) -> Any:
    return client.post(reverse("sign_in"), {"username": username, "password": password, **more})


def is_signed_in(client: Client) -> bool:
    return client.get(reverse("home")).status_code == 200


def signed_in_name(client: Client) -> str:
    user_pk = client.session.get("_auth_user_id")
    return User.objects.get(pk=user_pk).username if user_pk else ""


def confirm(client: Client, next_page: str = "/") -> Any:
    """Enter the password again, which is required before a way to sign in is changed."""
    data = {"password": PASSWORD, "next": next_page}
    return client.post(reverse("account_reauthenticate"), data)


def set_up(client: Client) -> str:
    """Set up a second factor for the signed-in person, and return its secret."""
    confirm(client)
    page = client.get(reverse("mfa_activate_totp"))
    secret = str(page.context["secret"])
    done = client.post(reverse("mfa_activate_totp"), {"code": code_of(secret)})
    assert done.status_code == 302, done.text
    cache.clear()  # allow the current code again, so that tests need not wait for the next one
    return secret
