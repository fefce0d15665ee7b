"""Install uv into .uv/ with Python alone. Runs on any Python 3."""

import subprocess
import sys
import venv

subprocess_args = [".uv/bin/python", "-m", "pip", "install", "--quiet", "uv>=0.9"]

if __name__ == "__main__":
    print("Installing uv into .uv/ …")
    venv.create(".uv", with_pip=True, clear=True)
    sys.exit(subprocess.call(subprocess_args))
