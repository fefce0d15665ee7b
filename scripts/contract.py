"""Writes down what other programs rely on, to be compared before and after a change.

``python -m scripts.contract FOLDER`` makes an installation of its own (on the database of
``DATABASE_URL`` if that is set, which must be empty; else on SQLite), plays a scripted
session in it, and writes one text file each into FOLDER: the schema, the OpenAPI
description, addresses, commands, settings, the frames that a page was sent, the export of
a seeded installation, and a digest of each request to the model. ``diff -r BEFORE AFTER``
shows what differs. What differs in every run (ids, times, durations) is masked.
"""

import argparse
import asyncio
import hashlib
import io
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from benchmarks.processes import clean_environment

MIN_REQUESTS = 200
EXCHANGES = 110
"""Of the scripted session; they make somewhat more than ``MIN_REQUESTS`` requests."""

SEED_SIZE = {"people": 10, "sessions": 12, "turns": 400}

MASKS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "DATE"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s)\b"), "DURATION"),
    (re.compile(r'("\w*(?:ms|seconds|_at)": )[\d.]+'), r"\1NUMBER"),
)
CHANGING_FRAMES = {"delta", "draft", "call"}
"""How many of these there are depends on the machine's speed."""


def mask(text: str) -> str:
    for pattern, word in MASKS:
        text = pattern.sub(word, text)
    return text


def list_urls() -> Iterator[str]:
    from django.urls import URLPattern, URLResolver, get_resolver

    from conversations.web.urls import websocket_urlpatterns

    def walk(entries: Any, prefix: str) -> Iterator[str]:
        for entry in entries:
            path = prefix + str(entry.pattern)
            if isinstance(entry, URLResolver):
                yield from walk(entry.url_patterns, path)
            elif isinstance(entry, URLPattern):
                yield f"{path} {entry.name or ''}".rstrip()

    yield from sorted(walk(get_resolver().url_patterns, "/"))
    yield from sorted(f"socket /{entry.pattern}" for entry in websocket_urlpatterns)


def list_commands() -> Iterator[str]:
    from django.core.management import get_commands, load_command_class

    ours = {name: app for name, app in get_commands().items() if app.startswith("conversations")}
    for name in sorted(ours):
        parser = load_command_class(ours[name], name).create_parser("manage.py", name)
        for action in parser._actions:
            names = ",".join(action.option_strings) or action.dest
            yield f"{name} {names} nargs={action.nargs} choices={action.choices}"


def list_settings() -> Iterator[str]:
    """The names that docs/settings.md has, which a test holds to the code's."""
    from loomweb.env import BASE_DIR

    described = (BASE_DIR / "docs/settings.md").read_text()
    yield from sorted(set(re.findall(r"^\| (`[A-Z_]+`.*?) \|", described, re.M)))


def list_schema() -> Iterator[str]:
    from django.db import connection

    from tests.test_migrations import schema_of_postgres, schema_of_sqlite, without_log

    schema = {"sqlite": schema_of_sqlite, "postgresql": schema_of_postgres}[connection.vendor]
    with connection.cursor() as cursor:
        yield from sorted(str(row) for row in without_log(schema(cursor)))


def list_openapi() -> Iterator[str]:
    from conversations.api.main import api

    # Keys of statuses are numbers here and there: as text they can be sorted.
    described = json.loads(json.dumps(api.get_openapi_schema(), default=str))
    yield json.dumps(described, indent=1, sort_keys=True)


def list_export() -> Iterator[str]:
    from django.core.management import call_command

    from benchmarks.installation import Size, write_installation

    write_installation(Size(**SEED_SIZE))
    out = io.StringIO()
    call_command("export_sessions", all=True, stdout=out)
    yield from out.getvalue().splitlines()


async def play(data_dir: Path, frames: list[str], digests: list[str]) -> None:
    """A session of tool calls and answers over HTTP, with a small window."""
    from asgiref.sync import sync_to_async
    from django.contrib.auth.models import User

    from benchmarks.groups.window import MAX_INPUT_TOKENS, MODEL
    from benchmarks.script import SAMPLE_TOOL, make_script
    from conversations.agent.tools.registry import TOOLS
    from conversations.archive.sessions import create_session
    from conversations.archive.workspaces import get_workspace
    from conversations.runtime.options import read_options
    from conversations.runtime.publish import Subscriber
    from conversations.runtime.service import Runtime
    from tests.wire.server import WireThread

    owner = await User.objects.filter(is_superuser=True).aget()
    workspace = await sync_to_async(get_workspace)("example")
    session = await sync_to_async(create_session)(workspace, owner=owner)
    wire = WireThread()
    wire.start()
    models = wire.server.models
    models[MODEL.id] = replace(
        models[MODEL.id], max_input_tokens=MAX_INPUT_TOKENS, max_tokens=8_000
    )
    options = replace(
        read_options(supervise=True),
        data_dir=data_dir / "runtime",
        providers=(wire.provider,),
        model=MODEL.id,
        models=(MODEL,),
    )
    runtime = Runtime(options)
    await runtime.start()
    runtime.hub.add(Subscriber(session_pk=session.pk, deliver=frames.append, held=False))
    TOOLS[SAMPLE_TOOL.name] = SAMPLE_TOOL
    for number, exchange in enumerate(make_script(EXCHANGES)):
        wire.enqueue(*exchange.scenarios)
        await runtime.send(
            session, client_id=f"client-{number:06}", text=exchange.text, user_pk=owner.pk
        )
        await runtime.wait_idle(session.pk)
    await runtime.stop()
    texts = (mask(json.dumps(body, sort_keys=True)) for body in wire.requests)
    digests += [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    await asyncio.to_thread(wire.stop)
    assert len(digests) >= MIN_REQUESTS, len(digests)


def list_frames(frames: list[str]) -> Iterator[str]:
    kept = [json.loads(text) for text in frames]
    yield from (
        mask(json.dumps(frame, sort_keys=True, ensure_ascii=False))
        for frame in kept
        if frame["type"] not in CHANGING_FRAMES
    )


def write_contract(folder: Path, data_dir: Path) -> None:
    environment = clean_environment({"LOOM_DATA_DIR": str(data_dir)})
    environment |= {name: os.environ[name] for name in ("DATABASE_URL",) if name in os.environ}
    os.environ.clear()
    os.environ.update(environment, DJANGO_SETTINGS_MODULE="loomweb.settings")
    import django
    from django.core.management import call_command

    django.setup()
    logging.getLogger("conversations").setLevel(logging.ERROR)
    call_command("migrate", verbosity=0)
    from conversations.management.commands._first_run import make_first_user, make_first_workspace

    make_first_workspace(make_first_user())
    # Before the session is played, so that every digest of the export is the same each time.
    export = list(list_export())
    frames, digests = list[str](), list[str]()
    asyncio.run(play(data_dir, frames, digests))
    lists = {
        "schema": list_schema(),
        "openapi": list_openapi(),
        "urls": list_urls(),
        "commands": list_commands(),
        "settings": list_settings(),
        "frames": list_frames(frames),
        "requests": iter(digests),
        "export": iter(export),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in lists.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    # Always the same folder: its name is told to the model, and so is in each request.
    data_dir = Path(gettempdir()) / "loom-contract"
    data_dir.mkdir()
    try:
        write_contract(parser.parse_args(sys.argv[1:]).folder, data_dir)
    finally:
        shutil.rmtree(data_dir)
