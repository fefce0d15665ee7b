"""The product's settings for the tests: a temporary data folder and fast password hashes."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

prefix = os.path.join(tempfile.gettempdir(), "loom-tests-")
if "LOOM_DATA_DIR" not in os.environ:
    os.environ["LOOM_DATA_DIR"] = tempfile.mkdtemp(prefix=prefix)

    def remove(made: Path, maker: int) -> None:
        """Remove the data folder and, beside it, the data folders of the workers."""
        if os.getpid() == maker:  # a fork must not remove them
            for path in made.parent.glob(f"{made.name}*"):
                shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove, Path(os.environ["LOOM_DATA_DIR"]), os.getpid())
folder = os.environ["LOOM_DATA_DIR"]
# Each worker has a data folder of its own. Files are stored by their digest, so a worker that
# purges a file could remove it while another one uses it.
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
os.environ.setdefault("LOOM_SEMANTIC", "off")  # the tests of semantic search turn it on
os.environ.setdefault("LOOM_TITLE_MODEL", "off")
# The product sets this before it loads numpy. In the tests numpy is loaded earlier, because
# Hypothesis looks at every module, which makes Autobahn load numpy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from loomweb.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

STATIC_ROOT.mkdir(exist_ok=True)  # noqa: F405  # WhiteNoise warns about a missing folder

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):  # type: ignore[attr-defined]  # noqa: F405
    # The data of the tests need not survive a power failure.
    _options: dict[str, str] = DATABASES["default"]["OPTIONS"]  # type: ignore[assignment]  # noqa: F405
    _options["init_command"] += "PRAGMA synchronous=OFF;"
