#!/usr/bin/env python
"""Django's command line for Loom Web. Runs on any Python 3, to say which it needs."""

import os
import sys


def main():  # type: ignore[no-untyped-def]  # older Pythons read this file too
    if sys.version_info < (3, 13):
        found = "%d.%d" % sys.version_info[:2]
        sys.exit("Loom Web cannot start: Python 3.13 is needed and this is " + found + ".")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomweb.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Loom Web cannot start: its environment is not made yet. Run make run.")
    try:
        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped.\n")
        sys.exit(130)
    except Exception as error:
        from conversations.archive.storage import translate_storage_error

        translated = translate_storage_error(error)
        if translated is None:
            raise
        sys.exit(translated.message)


if __name__ == "__main__":
    main()  # type: ignore[no-untyped-call]
