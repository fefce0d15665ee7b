"""The command that measures this machine's speed against the goals, on throw-away data.

The measurements never see the settings or the data of this installation.
"""

import importlib.util
import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    help = (
        "Measure this machine's speed against the goals, with SQLite in the folder for temporary "
        "files. Takes minutes; uses neither your data nor your settings."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--only", metavar="NAME,…", help="Only some groups, such as age,streams."
        )
        parser.add_argument(
            "--all", action="store_true", help="All groups, also those that take long."
        )
        parser.add_argument("--quick", action="store_true", help="Fewer repetitions.")
        parser.add_argument("--runs", metavar="N", type=int, default=1, help="Measure N times.")
        parser.add_argument("--json", metavar="FILE", help="Also write the results to FILE.")
        parser.add_argument("--markdown", metavar="FILE", help="Also write a table to FILE.")

    def handle(
        self,
        *,
        only: str | None,
        quick: bool,
        runs: int,
        json: str | None,
        markdown: str | None,
        **options: Any,
    ) -> None:
        if importlib.util.find_spec("websockets") is None:
            raise CommandError(
                "The benchmarks need the development packages, which make bench installs."
            )
        command = [sys.executable, "-m", "benchmarks", "--runs", str(runs)]
        command += ["--only", only] if only is not None else []
        command += ["--all"] if options["all"] else []
        command += ["--quick"] if quick else []
        command += ["--json", str(Path(json).resolve())] if json else []
        command += ["--markdown", str(Path(markdown).resolve())] if markdown else []
        os.chdir(settings.BASE_DIR)
        os.execv(sys.executable, command)  # noqa: S606 (in this process, so that a signal reaches it)
