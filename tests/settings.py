"""The product's settings for the tests: a throw-away data folder, cheap passwords."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

prefix = os.path.join(tempfile.gettempdir(), "loom-tests-")
if "LOOM_DATA_DIR" not in os.environ:
    os.environ["LOOM_DATA_DIR"] = tempfile.mkdtemp(prefix=prefix)

    def remove(made: Path, maker: int) -> None:
        """With those of the workers, which lie beside it."""
        if os.getpid() == maker:  # and not a fork of it
            for path in made.parent.glob(f"{made.name}*"):
                shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove, Path(os.environ["LOOM_DATA_DIR"]), os.getpid())
folder = os.environ["LOOM_DATA_DIR"]
# Files are kept by their content: what one worker purges another may have in use.
worker = os.environ.get("PYTEST_XDIST_WORKER", "")
if folder.startswith(prefix) and not folder.endswith(worker):
    os.environ["LOOM_DATA_DIR"] = f"{folder}-{worker}"
    os.makedirs(os.environ["LOOM_DATA_DIR"], mode=0o700, exist_ok=True)
for name in (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "LOOM_MCP_CONFIG",
    "LOOM_WORKSPACE_ROOTS",
    "REDIS_URL",
):
    os.environ.pop(name, None)
os.environ.setdefault("LOOM_DEMO_DELAY", "0")
os.environ.setdefault("LOOM_SEMANTIC", "off")  # except in the tests of it
os.environ.setdefault("LOOM_TITLE_MODEL", "off")
# As the product sets it before it loads numpy: Hypothesis, which looks at every module, has
# Autobahn load it before.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from loomweb.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

STATIC_ROOT.mkdir(exist_ok=True)  # noqa: F405  # WhiteNoise warns of a missing folder

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):  # type: ignore[attr-defined]  # noqa: F405
    # What the tests write need not outlast a power cut.
    _options: dict[str, str] = DATABASES["default"]["OPTIONS"]  # type: ignore[assignment]  # noqa: F405
    _options["init_command"] += "PRAGMA synchronous=OFF;"
