"""Contents of purged sessions: those in use stay, and an aborted removal loses none."""

import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Never

import pytest
from django.utils import timezone

from conversations.agent.undo import listing as listings
from conversations.agent.undo.listing import dump_listing, make_listing
from conversations.archive.blobs import blobs_folder, has_blob, put_blob, remove_untouched
from conversations.features.retention.worker import remove_contents
from conversations.models import PurgedContent, Run, Session, ToolCall

from .conftest import age_contents

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def files() -> list[str]:
    return [name for _, _, names in os.walk(blobs_folder()) for name in names]


def die(*_: object, **__: object) -> Never:
    raise KeyboardInterrupt


def test_a_listing_stores_a_content_again_after_its_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a purged session wrote is still in the folder, unchanged."""
    root = tmp_path / "garden"
    root.mkdir()
    (root / "beds.txt").write_text("Beans")
    monkeypatch.setattr(listings, "FRESH_NS", -(10**18))  # no file counts as fresh
    digest = make_listing(root).entries["beds.txt"].digest
    PurgedContent.objects.create(digest=digest, purged_at=timezone.now())

    later = timezone.now() + 2 * HOUR
    assert remove_contents(later).removed == 1
    monkeypatch.setattr(time, "time_ns", lambda: int(later.timestamp() * 10**9))
    assert make_listing(root).entries["beds.txt"].has_copy
    assert has_blob(digest)


def test_a_content_is_kept_while_a_tool_call_may_restore_it(
    tmp_path: Path, session: Session
) -> None:
    root = tmp_path / "garden"
    root.mkdir()
    (root / "beds.txt").write_text("Beans")
    tree = put_blob(dump_listing(make_listing(root), owner="1"))
    digest = put_blob(b"Beans")
    now = timezone.now()
    of = {"session": session, "created_at": now, "state": "completed"}
    run = Run.objects.create(**of, client_id="c")
    call = ToolCall.objects.create(
        **of, run=run, call_id="c", name="bash", turn_number=1, tree=tree
    )
    PurgedContent.objects.create(digest=digest, purged_at=now)
    age_contents(now - 2 * HOUR)

    assert remove_contents(now).waiting == 1
    ToolCall.objects.filter(pk=call.pk).update(tree="")
    assert remove_contents(now).removed == 1
    assert not has_blob(digest)


def test_the_next_removal_completes_one_that_was_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = put_blob(b"Nobody else has this")
    now = timezone.now()
    age_contents(now - 2 * HOUR)
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "unlink", die)
        remove_untouched(digest, since=(now - HOUR).timestamp())
    assert remove_untouched(digest, since=(now - HOUR).timestamp())
    assert files() == []


def test_a_content_in_use_survives_an_aborted_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = put_blob(b"Somebody is about to name this")
    since = (timezone.now() - HOUR).timestamp()
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "replace", die)
        remove_untouched(digest, since=since)
    assert not remove_untouched(digest, since=since)
    assert has_blob(digest)


def test_a_content_saved_again_after_an_aborted_removal_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = put_blob(b"The same again")
    now = timezone.now()
    age_contents(now - 2 * HOUR)
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "unlink", die)
        remove_untouched(digest, since=(now - HOUR).timestamp())
    assert put_blob(b"The same again") == digest
    assert not remove_untouched(digest, since=(now - HOUR).timestamp())
    assert has_blob(digest)
    assert len(files()) == 1
