"""Reading the records of model calls."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from conversations.domain.errors import NotFound
from conversations.models import ModelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCall:
    """What a manifest needs to be read: its text, the digest and the session."""

    session_pk: int
    manifest: str
    request_digest: str


def read_call(pk: int) -> StoredCall:
    """Raises NotFound."""
    found = ModelCall.objects.filter(pk=pk).values_list(
        "run__session_id", "manifest", "request_digest"
    )
    for session_pk, manifest, digest in found:
        return StoredCall(session_pk=session_pk, manifest=manifest, request_digest=digest)
    raise NotFound("There is no such model call.")


CHUNK = 500


def list_calls(session: UUID | None = None) -> Iterator[tuple[int, UUID]]:
    """Keys of model calls with their session, oldest first: of one session or of all."""
    last = 0
    while True:
        rows = ModelCall.objects.filter(pk__gt=last).order_by("pk")
        if session is not None:
            rows = rows.filter(run__session__uuid=session)
        found = list(rows.values_list("pk", "run__session__uuid")[:CHUNK])
        yield from found
        if len(found) < CHUNK:
            return
        last = found[-1][0]
