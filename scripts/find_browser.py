"""Prints the Chromium that the browser tests use; installs one if there is none."""

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The path of a Chromium on this machine, CHROMIUM first."""
    given = os.environ.get("CHROMIUM")
    return given or next((path for name in NAMES if (path := shutil.which(name))), None)


def install_browser() -> None:
    """With the system's packages where that is allowed, else Playwright's own build."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0:
            return
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=True)


if __name__ == "__main__":
    if find_browser() is None:
        print("No Chromium found; installing one for the browser tests …")
        install_browser()
