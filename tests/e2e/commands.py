"""Runs commands as ``manage.py`` does, each in a process of its own, forked from one that
has loaded everything: most of what a command takes is to start.

Reads a JSON object per line: ``arguments``, ``input``, and the paths of the files that
get what the command prints, ``out`` and ``err``. Answers each with its exit code.
"""

import gc
import json
import os
import sys
import tempfile
import traceback
from importlib import import_module
from typing import Any, NoReturn

import django
from django.conf import settings
from django.core.management import (
    execute_from_command_line,
    get_commands,
    load_command_class,
)


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
    code = 0
    try:
        execute_from_command_line(["manage.py", *order["arguments"]])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take all apart that is loaded takes longer than most commands


def load_everything() -> None:
    """What the commands import, and the addresses and views, which they are checked with."""
    django.setup()
    import_module(settings.ROOT_URLCONF)
    for name, app in get_commands().items():
        if app == "conversations" and name not in ("serve", "discord"):
            load_command_class(app, name)
    load_command_class("django.core", "shell")


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "loomweb.settings"
    load_everything()
    gc.freeze()
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in orders:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    main()
