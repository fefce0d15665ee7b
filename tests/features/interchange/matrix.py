from typing import Any

from django.utils import timezone

from conversations.accounts.tokens import WRITE
from conversations.features.interchange.models import Import
from conversations.models import Run, Session
from tests.api.rows import Row as Operation
from tests.api.rows import readers as api_readers
from tests.api.rows import signed_in as api_signed_in
from tests.api.rows import writers as api_writers
from tests.web.rows import REFUSED, Row, readers, signed_in, whose_it_is, writers

PAGES = {
    "imports": Row(get=signed_in(200), post=signed_in(400)),  # no file
    "import_one": Row(get=whose_it_is(200), post=signed_in(405)),
    "import_stop": Row(get=REFUSED, post=whose_it_is(302)),
    "workspace_export": Row(get=REFUSED, post=writers(302)),  # no session is chosen
    "session_export": Row(get=readers(200), post=REFUSED),
}

OWN = api_signed_in(404) | {"owner": 200}
"""Everybody else gets 404."""

OPERATIONS = {
    ("GET", "/sessions/{uuid}/export"): Operation(gets=api_readers(200)),
    ("POST", "/workspaces/{slug}/imports"): Operation(
        gets=api_writers(201), scope=WRITE, file="file"
    ),
    ("GET", "/imports"): Operation(gets=api_signed_in(200)),
    ("GET", "/imports/{import_uuid}"): Operation(gets=OWN),
    ("POST", "/imports/{import_uuid}/stop"): Operation(gets=OWN, scope=WRITE),
}

COMMANDS = {
    "export_sessions --all": (0, ""),
    "import_sessions {}/all.jsonl": (0, "sessions: 1 added"),
}

BROWSER_PAGES = {"imports": "/import/", "import": "/import/{failed_import}/"}

BROWSER_STOCK = f"""
import json
from django.contrib.auth.models import User
from django.utils import timezone
from conversations.features.interchange.models import Import
from conversations.models import Workspace
made = Import.objects.create(workspace=Workspace.objects.get(slug="example"),
    user=User.objects.get(pk=1), name="{"long-name-" * 20}.zip", size=10**8, format="chatgpt",
    state="failed", error="The server stopped 3 times during this import.", report_left=7,
    created_at=timezone.now(), finished_at=timezone.now(), counts=json.dumps({{
        "sessions_added": 12, "turns_added": 3456, "skipped": 2}}), report=json.dumps([
        ["conversations.json: conversation 7", "skipped: it is not an object"],
        ["{"a-folder/" * 30}x.json: message 4", "skipped: it would grow to 200 times its size"]]))
print(f"failed_import={{made.uuid}}")
"""
"""A failed import with a long report."""


def make_page_values(session: Session, _: Any) -> dict[str, Any]:
    return make_operation_values(session)


def make_operation_values(session: Session) -> dict[str, Any]:
    return {"import_uuid": _make_import(session).uuid}


def stock(session: Session, run: Run) -> None:
    _make_import(session)


def _make_import(session: Session) -> Import:
    return Import.objects.create(
        workspace=session.workspace, user=session.owner, name="a.zip", created_at=timezone.now()
    )
