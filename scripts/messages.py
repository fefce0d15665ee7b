"""Update of the translation catalogs, run by ``make messages``.

It runs ``manage.py makemessages`` for pages and for scripts, with the names of the functions that
take sentences in this product. Then it compiles the catalogs and writes the translations for
scripts to a file that a page loads. It needs GNU gettext. The product does not, because it ships
with the results.
"""

import gettext
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.core.management.commands import makemessages

from .packages import provide

ROOT = Path(__file__).parents[1]
WORDS = Path("static", "js", "words")
IGNORED = ["tests/*", "benchmarks/*", "scripts/*", "docs/*", "static/vendor/*"]


# Errors for the model, programs and terminals stay English, because no page shows them.
ENGLISH = re.compile(
    r"conversations/(agent/(tools|recall)|api|management|features/(model_apis|terminal|discord))/"
    r"|conversations/features/\w+/(api\.py|management/)"
)


_CLASS = re.compile(r"^class (\w+)\((?:\w+\.)?(\w+)\):", re.MULTILINE)


class Command(makemessages.Command):
    """Django's command, which also knows the functions that take sentences in ``conversations``.

    These are ``say`` and every deliberate error (``domain.errors``) that a page can show."""

    def process_locale_dir(self, locale_dir: str, files: list[Any]) -> None:
        usual, known = makemessages.Command.xgettext_options, ["say", "say_number:1,2"]
        more = ["require_found:2", *sorted(_error_names())]
        for is_english, words in ((False, [*known, *more]), (True, known)):
            self.xgettext_options = [*usual, *(f"--keyword={word}" for word in words)]
            chosen = [file for file in files if bool(ENGLISH.search(file.path)) == is_english]
            super().process_locale_dir(locale_dir, chosen)


def _error_names() -> set[str]:
    """Return the names of the deliberate errors, wherever they are defined."""
    texts = (file.read_text() for file in (ROOT / "conversations").rglob("*.py"))
    bases = dict(pair for text in texts for pair in _CLASS.findall(text))
    names = {"LoomError"}
    while more := {name for name, base in bases.items() if base in names} - names:
        names |= more
    return names


def extract(root: Path = ROOT) -> None:
    """Update the catalogs below ``root`` from the code there."""
    locale = root / "locale"
    os.chdir(root)
    command = Command()
    languages = [code for code, _ in settings.LANGUAGES if code != settings.LANGUAGE_CODE]
    settings.LOCALE_PATHS = [str(locale)]
    options = {"locale": languages, "no_wrap": True, "no_location": True, "no_obsolete": True}
    ignored = {"ignore_patterns": [*IGNORED], "verbosity": 0}
    call_command(command, **options, **ignored)
    call_command(command, domain="djangojs", **options, **ignored)
    for file in locale.rglob("*.po"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if "POT-Creation-Date" not in line))


def compile_catalogs(root: Path = ROOT) -> None:
    for file in (root / "locale").rglob("*.po"):
        subprocess.run(
            ["msgfmt", "--check-format", "-o", file.with_suffix(".mo"), file], check=True
        )


def write_words(root: Path = ROOT) -> None:
    """Write the tables that ``gettext`` of ``dom.js`` reads, one for each language.

    A table maps each sentence to its translation, or to a list of one translation for each plural
    form."""
    for file in (root / "locale").glob("*/LC_MESSAGES/djangojs.mo"):
        with file.open("rb") as opened:
            catalog = gettext.GNUTranslations(opened)._catalog  # type: ignore[attr-defined]
        forms: dict[str, dict[int, str]] = defaultdict(dict)
        for key, text in catalog.items():
            template, number = key if isinstance(key, tuple) else (key, -1)
            forms[template][number] = text
        table = {
            template: text[-1] if -1 in text else [text[number] for number in sorted(text)]
            for template, text in sorted(forms.items())
            if template
        }
        content = json.dumps(table, ensure_ascii=False, separators=(",", ":"))
        language = file.parts[-3]
        (root / WORDS / f"{language}.js").write_text(f"globalThis.words = {content};\n")


if __name__ == "__main__":
    provide(
        "GNU gettext for the catalogs",
        "gettext",
        programs=("xgettext",),
        without="without it the check of the catalogs is skipped",
    )
    if sys.argv[1:] != ["find"]:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomweb.settings")
        django.setup()
        extract()
        compile_catalogs()
        write_words()
