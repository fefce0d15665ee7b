"""Test a copy of the product without one feature: ``python -m scripts.without FEATURE``.

The copy has neither the feature's folder, nor its tests, nor its line in the settings. It is
migrated and checked, and its first pages are requested. Then the remaining tests are run, or only
those that follow the feature on the command line. The exit code is 1 if a step fails.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
FEATURES = ROOT / "conversations/features"

START = """
import io, re
import django
django.setup()
from django.core.management import call_command
from django.test import Client
call_command("migrate", verbosity=0)
call_command("check")
said = io.StringIO()
call_command("makemigrations", dry_run=True, stdout=said)
changes = re.findall(r"^ +\\S (.+)", said.getvalue(), re.M)
assert all(change.startswith(("Remove ", "Delete ")) for change in changes), changes
PAGES = {"/healthz": 200, "/sign-in/": 200, "/": 302, "/api/v1/openapi.json": 200}
for path, status in PAGES.items():
    found = Client(HTTP_HOST="localhost").get(path).status_code
    assert found == status, (path, found)
"""


def list_features() -> list[str]:
    return sorted(path.parent.name for path in FEATURES.glob("*/apps.py"))


def copy_product(folder: Path) -> None:
    """Copy the files that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.split("\0"):
        of_the_whole = name.startswith("tests/features/test_")
        if name and not of_the_whole and (ROOT / name).is_file():
            # Compiled files stay valid, because the copy keeps the modification times.
            compiled = importlib.util.cache_from_source(name) if name.endswith(".py") else name
            for copied in {name, compiled}:
                if (ROOT / copied).is_file():
                    target = folder / copied
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / copied, target)


@contextmanager
def taken_out(feature: str, folder: Path) -> Iterator[None]:
    """Remove the feature from the copy in ``folder`` while the context lasts."""
    settings = folder / "loomweb/settings.py"
    text = settings.read_text()
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if line.strip() != f'"conversations.features.{feature}",']
    assert len(kept) == len(lines) - 1, f"settings.FEATURES has no line for {feature}"
    with TemporaryDirectory(dir=folder) as name:
        moved = {
            folder / parent / feature: Path(name) / parent
            for parent in ("conversations/features", "tests/features")
        }
        for place, aside in moved.items():
            aside.parent.mkdir(exist_ok=True)
            place.rename(aside)
        settings.write_text("".join(kept))
        compiled = Path(importlib.util.cache_from_source(settings))
        # Python would use the compiled file if the new source has the same second and size.
        compiled.unlink(missing_ok=True)
        try:
            yield
        finally:
            for place, aside in moved.items():
                aside.rename(place)
            settings.write_text(text)
            compiled.unlink(missing_ok=True)


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment of a process that runs the copy."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "PYTEST"))}
    return kept | {
        "LOOM_DATA_DIR": str(folder / "data"),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }


def run_without(feature: str, tests: list[str]) -> int:
    with TemporaryDirectory(prefix="loom-without-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # Some tests look at it as another user.
        copy_product(folder)
        environment = environment_of(folder)
        steps = (
            ["-c", START],
            ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        )
        with taken_out(feature, folder):
            for step in steps:
                command = [sys.executable, *step]
                if subprocess.run(command, cwd=folder, env=environment, check=False).returncode:
                    print(f"without {feature}: {' '.join(step)[:60]!r} failed", file=sys.stderr)
                    return 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("feature", choices=list_features())
    parser.add_argument("tests", nargs="*", default=[])
    arguments, more = parser.parse_known_args()
    default = ["--ignore=tests/e2e", "-n", "2", "--dist", "worksteal"]
    sys.exit(run_without(arguments.feature, [*arguments.tests, *more] or default))
