"""Pruning stored contents: contents are removed only when they are not referred to."""

import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from time import time
from typing import Any

import pytest
from django.core.management import call_command

from conversations.agent.undo import listing
from conversations.agent.undo.listing import dump_listing, make_listing
from conversations.archive.blobs import blob_path, blobs_folder, has_blob, put_blob
from conversations.models import ToolCall

from .conftest import Calls, command

OLD = time() - 30 * 24 * 3600


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, settings: Any) -> Iterator[None]:
    settings.LOOM.data_dir, was = tmp_path / "data", settings.LOOM.data_dir
    yield
    settings.LOOM.data_dir = was


def age(*digests: str) -> None:
    for digest in digests:
        os.utime(blob_path(digest), (OLD, OLD))


def prune(*options: str) -> str:
    out = StringIO()
    call_command("prune_blobs", *options, stdout=out)
    return out.getvalue()


def test_only_unreferenced_contents_are_removed(root: Path, calls: Calls) -> None:
    (root / "changed").write_bytes(b"before")
    (root / "same").write_bytes(b"the same")
    listing = make_listing(root)
    command(root, calls, lambda: (root / "changed").write_bytes(b"after"))
    same, before = listing.entries["same"].digest, listing.entries["changed"].digest
    waiting = calls.make_call(state="running")
    (root / "later").write_bytes(b"for a command that runs")
    later = make_listing(root)
    tree = put_blob(dump_listing(later, owner="x"))
    ToolCall.objects.filter(pk=waiting.pk).update(tree=tree)
    young, lost = put_blob(b"young"), put_blob(b"lost")
    draft = blobs_folder() / ".draft"
    draft.write_bytes(b"half")
    os.utime(draft, (OLD, OLD))
    age(same, before, tree, lost, later.entries["later"].digest)
    assert prune("--dry-run").startswith("2 contents, 8 B would be removed; ")
    assert has_blob(lost)
    assert prune("--days", "2").startswith("2 contents, 8 B removed; ")
    kept = (before, tree, young, same, later.entries["later"].digest)
    assert [has_blob(digest) for digest in kept] == [True] * 5
    assert not has_blob(lost)
    assert not draft.exists()
    ToolCall.objects.update(tree="")
    prune()
    assert [has_blob(digest) for digest in (before, same)] == [True, False]


def test_content_that_is_used_again_during_pruning_stays(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    data = b"unchanged for a month"
    digest, lost = put_blob(data), put_blob(b"lost")
    age(digest, lost)
    read_references = listing.listed_digests

    def read_slowly() -> set[bytes]:
        used = read_references()
        put_blob(data)  # a command begins, or somebody attaches the file
        return used

    monkeypatch.setattr(listing, "listed_digests", read_slowly)
    assert prune().startswith("1 contents, 4 B removed; 1 ")
    assert has_blob(digest)
    assert not has_blob(lost)
