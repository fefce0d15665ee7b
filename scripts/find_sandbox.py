"""Installs bubblewrap for the tests of commands, where there is none and that is allowed.

Without it, or where the machine forbids sandboxes, these tests are skipped and say so.
"""

import os
import shutil
import subprocess

APT = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "bubblewrap", "git")


def install_sandbox() -> None:
    """With the system's packages; says so where that cannot be done."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        print("No bubblewrap (bwrap) found: the tests of commands will be skipped. Install it.")
        return
    print("No bubblewrap found; installing it for the tests of commands …")
    subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
    if subprocess.run(APT, check=False, stdout=subprocess.DEVNULL).returncode:
        print("It could not be installed: the tests of commands will be skipped.")


if __name__ == "__main__":
    if not shutil.which("bwrap"):
        install_sandbox()
