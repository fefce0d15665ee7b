"""What the audit log holds: who read another person's transcript, and who decided
what about it.

Entries are numbered 1, 2, 3… over the whole installation and chained by digest as
turns are: one that is changed, removed or swapped breaks every later one.
"""

import hashlib
from datetime import datetime
from typing import NamedTuple

from .text import instant, next_digest

TRANSCRIPT, OLDER, HIT = "transcript", "older", "search_hit"
PART, ATTACHMENT, EXPORT = "part", "attachment", "export"
LIVE, RECORD, API = "live", "record", "api"

# Kind of reading → what the person did, as it is said on a page. ``part`` is what belongs to
# a session beside its rows: state, changed files, calls, tool output.
READINGS = {
    TRANSCRIPT: "opened the transcript",
    OLDER: "paged through the transcript",
    HIT: "saw a search hit",
    PART: "opened a detail",
    ATTACHMENT: "opened an attachment",
    EXPORT: "exported the session",
    LIVE: "watched the session live",
    RECORD: "opened a record in the admin",
    API: "read through the API",
}

NOTE, UNNOTE, FLAG, UNFLAG = "note", "unnote", "flag", "unflag"
REVIEWED, UNREVIEWED = "reviewed", "unreviewed"
HOLD, RELEASE = "hold", "release"
PURGE_ORDERED, PURGE_CALLED_OFF = "purge_ordered", "purge_called_off"
PURGED, RESTORED = "purged", "restored"
SHARED, UNSHARED = "shared", "unshared"
AUDIT_EXPORT, ROLE, BUDGET, RETENTION = "audit_export", "role", "budget", "retention"
WEBHOOK, RECALL, MEMORY, PROVIDER = "webhook", "recall", "memory", "provider"
UPLOADED = "uploaded"

# Kind of decision → what the person did.
ACTS = {
    NOTE: "wrote a note",
    UNNOTE: "withdrew a note",
    FLAG: "set a flag",
    UNFLAG: "resolved a flag",
    REVIEWED: "marked the session as reviewed",
    UNREVIEWED: "marked the session as not reviewed",
    HOLD: "put the session on hold",
    RELEASE: "released the hold",
    PURGE_ORDERED: "scheduled the deletion",
    PURGE_CALLED_OFF: "cancelled the deletion",
    PURGED: "deleted the session permanently",
    RESTORED: "restored the session",
    SHARED: "created a share link",
    UNSHARED: "revoked a share link",
    AUDIT_EXPORT: "exported the audit log",
    ROLE: "changed a role",
    BUDGET: "changed a budget",
    RETENTION: "changed the retention policy",
    WEBHOOK: "changed a webhook",
    RECALL: "changed what sessions of channels and programs can quote",
    MEMORY: "changed the workspace memory",
    PROVIDER: "changed the model providers",
    UPLOADED: "uploaded files",
}

AUDIT_ACTIONS = READINGS | ACTS
FIRST = hashlib.sha256(b"loom:audit").hexdigest()  # Where the chain begins.


class Chained(NamedTuple):
    """The columns of an entry that its digest covers, in this order."""

    number: int
    at: datetime
    action: str
    actor: int | None
    actor_name: str
    session: str
    workspace: str
    place: str
    address: str
    agent: str
    reason: str
    metadata: str


def entry_digest(previous: str, entry: Chained) -> str:
    number, at, *rest = entry
    return next_digest(previous, (number, instant(at), *rest))
