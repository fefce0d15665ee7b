"""The product without one of its features, as a copy: ``python -m scripts.without FEATURE``.

The copy has neither the feature's folder, nor its tests, nor its line in the settings. It is
migrated, checked and asked for its first pages; then the tests of what is left are run: all
of them, or those named after the feature. Ends with 1 where something of that fails.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
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


def copy_without(feature: str, folder: Path) -> None:
    """What git has of the product, but for the feature."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    gone = (
        f"conversations/features/{feature}/",
        f"tests/features/{feature}/",
        "tests/features/test_",  # of the whole
    )
    for name in listed.stdout.split("\0"):
        if name and not name.startswith(gone) and (ROOT / name).is_file():
            # What Python has compiled stays good for a file of the same time.
            compiled = importlib.util.cache_from_source(name) if name.endswith(".py") else name
            for copied in {name, compiled}:
                if (ROOT / copied).is_file():
                    target = folder / copied
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / copied, target)
    settings = folder / "loomweb/settings.py"
    lines = settings.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.strip() != f'"conversations.features.{feature}",']
    assert len(kept) == len(lines) - 1, f"settings.FEATURES has no line for {feature}"
    settings.write_text("".join(kept))


def environment_of(folder: Path) -> dict[str, str]:
    """What a process that runs the copy is started with."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "PYTEST"))}
    return kept | {
        "LOOM_DATA_DIR": str(folder / "data"),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }


def run_without(feature: str, tests: list[str]) -> int:
    with TemporaryDirectory(prefix="loom-without-") as name:
        folder = Path(name)
        copy_without(feature, folder)
        environment = environment_of(folder)
        steps = (
            ["-c", START],
            ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        )
        for step in steps:
            done = subprocess.run([sys.executable, *step], cwd=folder, env=environment, check=False)
            if done.returncode:
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
