"""A process of the group ``writers``, which appends for some seconds."""

import json
import os
import sys

import django


def main() -> None:
    """Print when the process is ready, wait for a line, and then write.

    The arguments are ``SECONDS SESSION…``.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomweb.settings")
    django.setup()
    from conversations.models import Session

    from .groups.writers import append_until

    seconds, *uuids = sys.argv[1:]
    sessions = list(Session.objects.filter(uuid__in=uuids).order_by("pk"))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(append_until(sessions, seconds=float(seconds))))


if __name__ == "__main__":
    main()
