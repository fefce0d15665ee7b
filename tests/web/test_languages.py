"""The language of pages, and the answers that are always in English."""

import re
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import translation

from conversations.models import Preferences, Session


@pytest.fixture(autouse=True)
def english_afterwards() -> Any:
    yield
    translation.activate(settings.LANGUAGE_CODE)


def language_of(page: Any) -> str:
    found = re.search(r'<html lang="(\w+)"', page.text)
    assert found
    return found[1]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("asked", "language"),
    [("de-AT,de;q=0.9,en;q=0.8", "de"), ("fr,de;q=0.5", "de"), ("fr", "en"), ("", "en")],
)
def test_a_strangers_pages_are_in_the_browsers_language(asked: str, language: str) -> None:
    page = Client(headers={"Accept-Language": asked}).get(reverse("sign_in"))
    assert language_of(page) == language
    assert ("Anmelden" in page.text) == (language == "de")
    assert "Accept-Language" in page["Vary"]
    assert ("js/words/de" in page.text) == (language == "de")


def test_language_preference_overrides_the_browser(owner: Client, user: User) -> None:
    german = {"Accept-Language": "de"}
    assert language_of(owner.get("/", headers=german)) == "de"
    Preferences.objects.create(user=user, page_language="en")
    assert language_of(owner.get("/", headers=german)) == "en"
    form = {name: Preferences._meta.get_field(name).default for name in CHOICES}
    page = owner.post(reverse("account_preferences"), form | {"page_language": "de"}, follow=True)
    assert language_of(page) == "de"
    assert "Gespeichert." in page.text
    assert owner.post(reverse("account_choose"), {"page_language": "fr"}).status_code == 400


CHOICES = ("theme", "keys", "enter", "language", "clock", "times", "figures", "hears")


def test_api_answers_in_english(owner: Client, user: User) -> None:
    Preferences.objects.create(user=user, page_language="de")
    answer = owner.get("/api/v1/sessions/none/", headers={"Accept-Language": "de"})
    assert answer.status_code == 404
    assert answer["Content-Language"] == "en"
    assert language_of(owner.get(reverse("api_docs"))) == "de"


@pytest.mark.django_db
def test_errors_before_any_view_are_in_the_browsers_language() -> None:
    page = Client(headers={"Accept-Language": "de"}).get("/nowhere/")
    assert page.status_code == 404
    assert language_of(page) == "de"


def test_error_message_with_values_is_translated(owner: Client, session: Session) -> None:
    german = {"Accept-Language": "de"}
    form = {"text": "x" * (settings.LOOM.max_message_chars + 1), "client_id": "in-german"}
    page = owner.post(reverse("session_send", args=[session.uuid]), form, headers=german)
    assert page.status_code in (400, 413)
    assert "erlaubt sind 400\u202f000." in page.text


def test_role_names_are_translated(owner: Client, user: User, session: Session) -> None:
    german = {"Accept-Language": "de"}
    members = reverse("workspace_members", args=[session.workspace.slug])
    for address in (members, "/", reverse("account")):
        shown = re.findall(
            r"<span[^>]*>\s*(\w+)\s*</span>", owner.get(address, headers=german).text
        )
        assert "Eigentümer" in shown, address
