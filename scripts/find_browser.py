"""Finds the Chromium that the browser tests use; installs one where that is allowed.

The headless shell is wanted most: a Chromium without the windows of its own, which nobody
sees in a test and which take longer than most tests.
"""

import os
import shutil
import subprocess
import sys

from .packages import can_install, install

SHELL = "chromium-headless-shell"
OTHERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The path of a Chromium on this machine, CHROMIUM first."""
    given = os.environ.get("CHROMIUM")
    return given or next((path for name in (SHELL, *OTHERS) if (path := shutil.which(name))), None)


def install_browser() -> None:
    """With the system's packages where that is allowed; else, where there is none, the shell
    that Playwright has."""
    is_any = find_browser() is not None
    if can_install():
        print("Installing a Chromium for the browser tests …")
        if install(SHELL) or is_any or install("chromium"):
            return
    if not is_any:
        command = ["playwright", "install", "--only-shell", "chromium"]
        subprocess.run([sys.executable, "-m", *command], check=True)


def install_firefox() -> None:
    """For ``make test-firefox``, with the system's packages."""
    if shutil.which("firefox-esr") or shutil.which("firefox"):
        return
    print("Installing a Firefox …")
    if not install("firefox-esr"):
        sys.exit("Install Firefox to run these tests.")


if __name__ == "__main__":
    if sys.argv[1:] == ["firefox"]:
        install_firefox()
    elif not os.environ.get("CHROMIUM") and not shutil.which(SHELL):
        install_browser()
