"""The command that sends messages without a browser and prints the answers.

It uses the same runtime as the server, and a server may run on the same data meanwhile. Whichever
process claims the run executes it, and the answer is read from the archive.
"""

import asyncio
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.core.management.base import CommandError

from conversations.archive.journal import StoredEvent
from conversations.archive.runs import read_run_events
from conversations.archive.sessions import create_session, get_or_create_by_key, get_session
from conversations.archive.tool_calls import read_open_calls
from conversations.archive.workspaces import get_workspace, owner_of
from conversations.domain.errors import Conflict, LoomError
from conversations.domain.events import (
    APPROVAL_ASKED,
    AssistantText,
    Fallback,
    Info,
    ToolCallCompleted,
    dump_payload,
)
from conversations.domain.runs import COMPLETED
from conversations.domain.session_keys import check_key
from conversations.domain.text import dump_json, load_json, require_encodable
from conversations.domain.tool_calls import DENY, NOBODY_THERE, ONCE
from conversations.domain.tool_questions import DECLINE, make_asked_notice
from conversations.management.base import DatabaseCommand, read_lines, shown
from conversations.models import Session
from conversations.runtime.following import POLL_SECONDS, wait_for_final_state
from conversations.runtime.options import read_options
from conversations.runtime.service import Runtime


class Command(DatabaseCommand):
    help = "Send a message, wait for the answer and print it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--session", type=UUID, metavar="UUID")
        where.add_argument(
            "--workspace",
            metavar="SLUG",
            help="A new session in this workspace, or the session of --key.",
        )
        parser.add_argument(
            "--key", help="Find the session of this key in the workspace, or create it."
        )
        parser.add_argument("--json", action="store_true", help="Print one JSON object per row.")
        parser.add_argument("--stdin", action="store_true", help="Read one message per line.")
        parser.add_argument(
            "--approve",
            choices=("all", "none"),
            help="Approve or deny every call that asks, instead of waiting for an answer on the "
            "page.",
        )
        parser.add_argument("text", nargs="?")

    def handle(self, **options: Any) -> None:
        if options["key"] is not None and not options["workspace"]:
            raise CommandError("--key needs --workspace.", returncode=2)
        if (options["text"] is None) != options["stdin"]:
            raise CommandError("Give one message, or --stdin with one per line.", returncode=2)
        given = read_lines() if options["stdin"] else [options["text"]]
        messages = (require_encodable(text) for text in given if text.strip())
        # Read a message first, because the session may be created for it.
        first = next(messages, None)
        if first is None:
            if options["stdin"]:
                return
            raise CommandError("The message is empty.", returncode=2)
        session = _find_session(options)
        try:
            all_completed = asyncio.run(self._send_all(session, chain([first], messages), options))
        except LoomError as error:
            raise CommandError(error.message) from error
        except KeyboardInterrupt:
            raise CommandError(
                "Stopped; everything received so far is saved.", returncode=130
            ) from None
        if not all_completed:
            sys.exit(1)

    async def _send_all(
        self, session: Session, texts: Iterable[str], options: dict[str, Any]
    ) -> bool:
        runtime = Runtime(read_options(supervise=False))
        await runtime.start()
        all_completed = True
        try:
            for text in texts:
                accepted = await runtime.send(
                    session,
                    client_id=uuid4().hex,
                    text=text,
                    user_pk=session.owner_id,
                )
                attending = asyncio.create_task(
                    self._follow_run(runtime, session, accepted.run_pk, options)
                )
                state = await wait_for_final_state(
                    runtime, session_pk=session.pk, run_pk=accepted.run_pk
                )
                attending.cancel()
                all_completed &= state == COMPLETED
                events = await runtime.readers.read(read_run_events, accepted.run_pk)
                self._print(session, events, as_json=options["json"])
            await runtime.wait_idle(session.pk)
        finally:
            await runtime.stop(by_person=True)
        return all_completed

    async def _follow_run(
        self, runtime: Runtime, session: Session, run_pk: int, options: dict[str, Any]
    ) -> None:
        told: set[UUID | str] = set()
        form = {"as_json": options["json"]}
        while True:
            calls = await runtime.readers.read(read_open_calls, run_pk)
            for call in calls:
                question = call.open_question
                if question is not None and question.id not in told:
                    told.add(question.id)
                    if options["approve"] != "none":  # Only a person can fill in its fields.
                        text, data = make_asked_notice(question).text, question.as_data()
                        self._print_waiting(session, "question", text, {"question": data}, **form)
                        continue
                    with suppress(Conflict):
                        await runtime.answer_question(
                            session,
                            call=call.uuid,
                            question=question.id,
                            action=DECLINE,
                            user_pk=None,
                        )
                if call.asked is None or call.decision or call.uuid in told:
                    continue
                told.add(call.uuid)
                if options["approve"] is None:
                    text, data = (
                        f"Waiting for approval: {call.asked.summary}.",
                        call.asked.as_data(),
                    )
                    self._print_waiting(session, "approval", text, data, **form)
                    continue
                allows = options["approve"] == "all"
                with suppress(Conflict):  # A person has answered on the page first.
                    await runtime.decide_call(
                        session,
                        call=call.uuid,
                        decision=ONCE if allows else DENY,
                        user_pk=None,
                        reason="" if allows else NOBODY_THERE,
                    )
            await asyncio.sleep(POLL_SECONDS)

    def _print_waiting(
        self, session: Session, kind: str, text: str, data: dict[str, Any], *, as_json: bool
    ) -> None:
        url = f"{settings.LOOM.site}/s/{session.uuid}/"
        if as_json:
            waiting = {"type": kind, "session": str(session.uuid), "url": url}
            self.stdout.write(dump_json(waiting | data))
            self.stdout.flush()
        else:
            self.stderr.write(shown(self.stderr, f"{text} Answer at {url}"))

    def _print(self, session: Session, events: list[StoredEvent], *, as_json: bool) -> None:
        for event in events:
            payload = event.payload
            if as_json:
                row = {
                    "session": str(session.uuid),
                    "seq": event.seq,
                    "event_type": event.event_type,
                    "turn": event.turn,
                    "payload": {"fallback": payload.reason, "raw": payload.raw}
                    if isinstance(payload, Fallback)
                    else load_json(dump_payload(payload)),
                    "created_at": event.created_at.isoformat(),
                }
                self.stdout.write(dump_json(row))
            elif isinstance(payload, AssistantText) and payload.text:
                self.stdout.write(shown(self.stdout, payload.text))
            elif isinstance(payload, ToolCallCompleted):
                outcome = "failed" if payload.ok is False else "done"
                self.stderr.write(shown(self.stderr, f"[{payload.name}: {outcome}]"))
            elif isinstance(payload, Info) and payload.code != APPROVAL_ASKED:
                self.stderr.write(shown(self.stderr, f"[{payload.text}]"))
        self.stdout.flush()


def _find_session(options: dict[str, Any]) -> Session:
    if options["session"]:
        return get_session(options["session"])
    workspace, key = get_workspace(options["workspace"]), options["key"]
    owner = owner_of(workspace)
    if key is not None:
        return get_or_create_by_key(workspace, key=check_key(key), owner=owner, channel="cli")
    return create_session(workspace, owner=owner, channel="cli")
