#!/usr/bin/env python
"""Django's command line for Loom Web."""

import os
import sys


def main() -> None:
    from loomweb.env import require_python  # noqa: PLC0415 (before anything that needs 3.13)

    require_python()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomweb.settings")
    from django.core.management import execute_from_command_line  # noqa: PLC0415

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
