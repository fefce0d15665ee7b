"""What tests need beside Python's packages, from Debian's, where that is allowed."""

import os
import shutil
import subprocess
from functools import cache


def can_install() -> bool:
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def install(*packages: str) -> bool:
    """False where they could not be installed."""
    _update()
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0


@cache
def _update() -> None:
    subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)


def provide(what: str, *packages: str, programs: tuple[str, ...], without: str) -> None:
    """Install the packages where one of their ``programs`` is missing; say ``without`` what
    happens where that cannot be done."""
    if all(map(shutil.which, programs)):
        return
    if not can_install():
        print(f"Install {what}: {without}.")
        return
    print(f"Installing {what} …")
    if not install(*packages):
        print(f"It could not be installed: {without}.")
