"""Reading the records of model calls."""

from dataclasses import dataclass

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
