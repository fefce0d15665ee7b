"""Installation of Debian packages that the tests need, if it is allowed."""

import os
import shutil
import subprocess
from functools import cache


def can_install() -> bool:
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def install(*packages: str) -> bool:
    """Install packages, and return whether that succeeded."""
    _update()
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0


@cache
def _update() -> None:
    subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)


def provide(what: str, *packages: str, programs: tuple[str, ...], without: str) -> None:
    """Install the packages if one of their ``programs`` is missing.

    If that is not possible, print ``without``, which says what happens without them."""
    if all(map(shutil.which, programs)):
        return
    if not can_install():
        print(f"Install {what}: {without}.")
        return
    print(f"Installing {what} …")
    if not install(*packages):
        print(f"It could not be installed: {without}.")
