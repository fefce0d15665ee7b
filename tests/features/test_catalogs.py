"""The translation catalogs: complete, up to date with the code and consistent with its sentences.

If a feature is missing, the catalogs have more sentences than the code.
"""

import gettext
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from conversations.rendering.template_tags import CHAT_WORDS
from scripts import messages

ROOT = Path(__file__).parents[2]
CATALOGS = ("django", "djangojs")
LANGUAGES = [code for code, _ in settings.LANGUAGES if code != settings.LANGUAGE_CODE]
VALUE = re.compile(r"%\((\w+)\)s|%%")
TAG = re.compile(r"<[^>]*>")

needs_gettext = pytest.mark.skipif(not shutil.which("xgettext"), reason="GNU gettext is missing")


def read_catalog(file: Path) -> dict[Any, str]:
    with file.open("rb") as opened:
        catalog: dict[Any, str] = gettext.GNUTranslations(opened)._catalog  # type: ignore[attr-defined]
    return catalog


@needs_gettext
def test_catalogs_are_complete_and_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``make messages`` would change nothing, and each sentence has a translation."""
    for folder in ("conversations", "loomweb", "templates", "static/js", "locale"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings, "LOCALE_PATHS", settings.LOCALE_PATHS)  # restored at the end
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
def test_a_translation_has_the_placeholders_and_tags_of_its_sentence(
    language: str, name: str
) -> None:
    catalog = read_catalog(ROOT / "locale" / language / "LC_MESSAGES" / f"{name}.mo")
    assert len(catalog) > 100
    for key, text in catalog.items():
        template, is_plural = (key[0], True) if isinstance(key, tuple) else (key, False)
        values, needed = set(VALUE.findall(text)), set(VALUE.findall(template))
        # The singular may leave the number out.
        assert values <= needed | {"count", "number"} if is_plural else values == needed, template
        if not is_plural and template:
            assert sorted(TAG.findall(text)) == sorted(TAG.findall(template)), template


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_full_stop_follows_a_time(language: str) -> None:
    """A time may itself end with a full stop: "vor 5 Min."."""
    catalog = read_catalog(ROOT / "locale" / language / "LC_MESSAGES" / "django.mo")
    assert [text for text in catalog.values() if re.search(r"%\((time|when)\)s\.", text)] == []


def test_the_german_words_script_holds_valid_translations() -> None:
    text = (ROOT / "static" / "js" / "words" / "de.js").read_text()
    words = json.loads(text.removeprefix("globalThis.words = ").removesuffix(";\n"))
    assert words["Copied"] == "Kopiert"
    assert all(isinstance(word, str) or len(word) == 2 for word in words.values())


def read_chat_modules() -> set[str]:
    """Return the modules that a chat page loads at the start."""
    modules, waiting = set(), ["chat.js"]
    while waiting:
        modules.add(name := waiting.pop())
        text = (ROOT / "static/js" / name).read_text()
        waiting += set(re.findall(r'^import [^"\n]*"\./(\w+\.js)"', text, re.MULTILINE)) - modules
    return modules


def test_chat_words_are_the_sentences_of_the_modules_of_a_chat() -> None:
    modules = read_chat_modules()
    assert "words.js" not in modules
    sentences = [
        sentence
        for name in modules
        for sentence in re.findall(
            r'\bn?gettext\(\s*"([^"]+)"', (ROOT / "static/js" / name).read_text()
        )
    ]
    assert sorted(sentences) == sorted(CHAT_WORDS)


def test_modules_that_are_loaded_later_wait_for_all_translations() -> None:
    early = read_chat_modules()
    for file in (ROOT / "static/js").glob("*.js"):
        if re.search(r"import .*gettext.* from \"./dom.js\"", file.read_text()):
            assert file.name in {*early, "words.js"}, file.name
