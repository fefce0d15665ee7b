"""Runs commands as ``manage.py`` does, each in a process of its own, forked from one that
has loaded everything: most of what a command takes is to start.

Reads a JSON object per line: ``arguments``, ``input``, and the paths of the files that
get what the command prints, ``out`` and ``err``. Answers each with its exit code.
"""

import json
import os
import sys
import tempfile
from typing import Any, NoReturn

import django
from django.core.management import execute_from_command_line


def run(order: dict[str, Any]) -> NoReturn:
    """Be the command, and end."""
    with tempfile.TemporaryFile() as given:
        given.write((order["input"] or "").encode())
        given.seek(0)
        os.dup2(given.fileno(), 0)
    for path, number in ((order["out"], 1), (order["err"], 2)):
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, number)
        os.close(target)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # as a new process has it
    execute_from_command_line(["manage.py", *order["arguments"]])
    sys.exit(0)


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "loomweb.settings"
    django.setup()
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in orders:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    main()
