import errno
import gc
from argparse import ArgumentParser
from typing import Any

import uvloop
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection
from twisted.internet import asyncioreactor

from conversations.agent.sandbox.support import SANDBOXED, describe, find_mode
from conversations.archive.session_state import behind_sessions, rebuild_behind_states
from conversations.archive.workspaces import create_sign_in_link
from conversations.management.base import (
    describe_storage_error,
    migrating_alone,
    refuse_newer_database,
    refuse_older_database,
)
from conversations.models.guards import missing_guards
from loomweb.server import open_listener

from ._first_run import (
    collect_static_files,
    is_first_start,
    make_first_user,
    make_first_workspace,
)


class Command(BaseCommand):
    help = "Start the server; on first use, create what it needs."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default=settings.LOOM.host)
        parser.add_argument("--port", type=int, default=settings.LOOM.port)
        parser.add_argument("--no-prepare", action="store_true", help="Skip the migrations.")

    def handle(self, *, host: str, port: int, no_prepare: bool, **_: Any) -> None:
        if not 0 <= port <= 65535:
            raise CommandError("--port must be between 0 and 65535.", returncode=2)
        listener = self._listen(host, port)
        with migrating_alone():
            self._make_database(no_prepare=no_prepare)
            collect_static_files()
            user = make_first_user()
            make_first_workspace(user)
            self._rebuild_states()
        address = settings.LOOM.site_at(host, listener.getsockname()[1])
        self._print_address(address, create_sign_in_link(user))
        connection.close()
        self._serve(listener)

    def _make_database(self, *, no_prepare: bool) -> None:
        try:
            refuse_newer_database()
            if is_first_start():
                self.stdout.write(
                    "Making the database and the static files: about ten seconds, once."
                )
                self.stdout.flush()
            if no_prepare:
                refuse_older_database()
            else:
                call_command("migrate", verbosity=0, interactive=False)
            if missing := missing_guards(connection):
                raise CommandError(f"The archive is not protected ({missing[0]}). Run migrate.")
        except DatabaseError as error:
            sentence = describe_storage_error(error) or f"The database cannot be used: {error}"
            raise CommandError(sentence.strip()) from error

    def _rebuild_states(self) -> None:
        if not (count := behind_sessions().count()):
            return
        # After an upgrade with other rules, all states are rebuilt: minutes for millions of turns.
        self.stdout.write(f"Bringing the session state up to date, sessions: {count:,}")
        self.stdout.flush()
        rebuild_behind_states()

    def _listen(self, host: str, port: int) -> Any:
        try:
            return open_listener(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CommandError(
                    f"Port {port} on {host} is in use. Stop what runs there, "
                    "or choose another with LOOM_PORT."
                ) from error
            raise CommandError(f"Cannot listen on {host}:{port}: {error.strerror}.") from error

    def _print_address(self, address: str, token: str) -> None:
        lines = [
            f"Loom Web is running at {address}/",
            "",
            "Sign in with this link (works once, within 12 hours):",
            f"    {address}/sign-in/link/{token}/",
            "",
        ]
        if not settings.LOOM.providers:
            lines += [
                "No model is connected, so the built-in demo model answers.",
                "To connect one: ANTHROPIC_API_KEY=… make run, or see docs/models.md.",
                "",
            ]
        if find_mode() != SANDBOXED:
            lines += [f"{describe()} See docs/operating.md.", ""]
        lines.append("Press Ctrl-C to stop the server; running answers are stopped and saved.")
        self.stdout.write("\n".join(lines))
        self.stdout.flush()

    def _serve(self, listener: Any) -> None:
        if settings.LOOM.asgi_server == "uvicorn":
            from loomweb.uvicorn_server import serve
        else:
            # Call this before any module imports the reactor. Measured with 100 answers at once,
            # uvloop reduces the p95 of a delta's age from 110 to 98 ms.
            asyncioreactor.install(uvloop.new_event_loop())  # type: ignore[no-untyped-call]
            from loomweb.daphne_server import serve
        from loomweb.asgi import application

        # Objects that are loaded by now stay. If the garbage collector searched them again and
        # again, it would delay every stream by tens of milliseconds.
        gc.collect()
        gc.freeze()
        serve(application, listener)
