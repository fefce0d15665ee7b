"""The languages of pages: complete catalogs, and who gets which."""

import gettext
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import translation

from conversations.models import Preferences, Session
from scripts import messages

ROOT = Path(__file__).parents[2]
CATALOGS = ("django", "djangojs")
LANGUAGES = [code for code, _ in settings.LANGUAGES if code != settings.LANGUAGE_CODE]
VALUE = re.compile(r"%\((\w+)\)s|%%")
TAG = re.compile(r"<[^>]*>")

needs_gettext = pytest.mark.skipif(not shutil.which("xgettext"), reason="GNU gettext is missing")


@pytest.fixture(autouse=True)
def english_afterwards() -> Any:
    yield
    translation.activate(settings.LANGUAGE_CODE)


def read_catalog(file: Path) -> dict[Any, str]:
    with file.open("rb") as opened:
        catalog: dict[Any, str] = gettext.GNUTranslations(opened)._catalog  # type: ignore[attr-defined]
    return catalog


@needs_gettext
def test_the_catalogs_are_those_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``make messages`` makes is there, and each sentence has its translation."""
    for folder in ("conversations", "loomweb", "templates", "static/js", "locale"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings, "LOCALE_PATHS", settings.LOCALE_PATHS)  # puts it back
    messages.extract(tmp_path)
    for file in tmp_path.glob("locale/*/LC_MESSAGES/*.po"):
        kept = ROOT / file.relative_to(tmp_path)
        assert file.read_text() == kept.read_text(), "run `make messages`"
        for left_out in ("--untranslated", "--only-fuzzy"):
            command = ["msgattrib", left_out, "--no-obsolete", file]
            told = subprocess.run(command, capture_output=True, text=True, check=True)
            assert told.stdout == "", "translate what is listed"
    messages.compile_catalogs(tmp_path)
    messages.write_words(tmp_path)
    for file in tmp_path.glob("locale/*/LC_MESSAGES/*.mo"):
        assert read_catalog(file) == read_catalog(ROOT / file.relative_to(tmp_path))
    for language in LANGUAGES:
        script = messages.WORDS / f"{language}.js"
        assert (tmp_path / script).read_text() == (ROOT / script).read_text()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", CATALOGS)
def test_a_translation_has_the_values_and_tags_of_its_sentence(language: str, name: str) -> None:
    catalog = read_catalog(ROOT / "locale" / language / "LC_MESSAGES" / f"{name}.mo")
    assert len(catalog) > 100
    for key, text in catalog.items():
        template, is_plural = (key[0], True) if isinstance(key, tuple) else (key, False)
        values, needed = set(VALUE.findall(text)), set(VALUE.findall(template))
        # The form for one may leave the number out.
        assert values <= needed | {"count", "number"} if is_plural else values == needed, template
        if not is_plural and template:
            assert sorted(TAG.findall(text)) == sorted(TAG.findall(template)), template


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


def test_the_accounts_choice_comes_first(owner: Client, user: User) -> None:
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


def test_programs_are_answered_in_english(owner: Client, user: User) -> None:
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


def test_a_refusal_with_values_is_translated(owner: Client, session: Session) -> None:
    german = {"Accept-Language": "de"}
    form = {"text": "x" * (settings.LOOM.max_message_chars + 1), "client_id": "a"}
    page = owner.post(reverse("session_send", args=[session.uuid]), form, headers=german)
    assert page.status_code in (400, 413)
    assert f"XX {settings.LOOM.max_message_chars:,}" in page.text


def test_the_words_of_scripts_are_a_script() -> None:
    text = (ROOT / "static" / "js" / "words" / "de.js").read_text()
    words = json.loads(text.removeprefix("globalThis.words = ").removesuffix(";\n"))
    assert words["Copied"] == "Kopiert"
    assert all(isinstance(word, str) or len(word) == 2 for word in words.values())
