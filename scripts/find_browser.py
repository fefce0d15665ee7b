"""Find the Chromium for the browser tests, or install one if that is allowed.

The headless shell, a Chromium without windows, is preferred. Tests do not need windows, and opening
them takes longer than most tests.
"""

import os
import shutil
import subprocess
import sys

from .packages import can_install, install

SHELL = "chromium-headless-shell"
OTHERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """Return the path of a Chromium on this machine; the variable CHROMIUM comes first."""
    given = os.environ.get("CHROMIUM")
    return given or next((path for name in (SHELL, *OTHERS) if (path := shutil.which(name))), None)


def install_browser() -> None:
    """Install the headless shell, or another Chromium if there is none.

    The system's packages are used if that is allowed. Else Playwright installs its shell, unless
    there is a Chromium already."""
    is_any = find_browser() is not None
    if can_install():
        print("Installing a Chromium for the browser tests …")
        if install(SHELL) or is_any or install("chromium"):
            return
    if not is_any:
        command = ["playwright", "install", "--only-shell", "chromium"]
        subprocess.run([sys.executable, "-m", *command], check=True)


def install_firefox() -> None:
    """Install Firefox for ``make test-firefox`` from the system's packages."""
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
