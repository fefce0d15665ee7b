"""Installs bubblewrap and git for the tests of commands, where that is allowed.

Where the machine forbids sandboxes, these tests are skipped and say so.
"""

import os
import shutil
import subprocess

APT = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "bubblewrap", "git")


def install_sandbox() -> None:
    """With the system's packages; says so where that cannot be done."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        print("Install bubblewrap (bwrap) and git: without them the tests of commands fail,")
        print("or are skipped.")
        return
    print("Installing bubblewrap and git for the tests of commands …")
    subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
    if subprocess.run(APT, check=False, stdout=subprocess.DEVNULL).returncode:
        print("They could not be installed: the tests of commands fail, or are skipped.")


if __name__ == "__main__":
    if not shutil.which("bwrap") or not shutil.which("git"):
        install_sandbox()
