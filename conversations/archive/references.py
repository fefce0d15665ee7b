"""Which contents are referred to, by whatever table."""

from collections.abc import Iterator
from itertools import chain

from conversations.models import Attachment, FileChange, ToolCall


def used_digests() -> set[bytes]:
    """Those of all blobs that a change, an attachment or a call names."""
    return {bytes.fromhex(digest) for digest in chain(_of_changes(), _of_attachments())} | {
        bytes.fromhex(digest) for digest in open_trees()
    }


def open_trees() -> list[str]:
    """The listings of calls whose changes are not on record yet."""
    found = ToolCall.objects.exclude(tree="").order_by("pk")
    return list(found.values_list("tree", flat=True))


def _of_changes() -> Iterator[str]:
    rows = FileChange.objects.order_by("pk").values_list("before", "after")
    return (digest for row in rows.iterator() for digest in row if digest)


def _of_attachments() -> Iterator[str]:
    rows = Attachment.objects.order_by("pk").values_list("digest", "thumbnail", "sent")
    return (digest for row in rows.iterator() for digest in row if digest)
