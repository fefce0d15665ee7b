"""Entries of the audit log: readings of other people's transcripts, and decisions.

Entries are numbered 1, 2, 3… over the whole installation and chained by digest, as turns are. If
an entry is changed, removed or swapped, the digests of all later entries no longer match.
"""

import hashlib
from datetime import datetime
from typing import NamedTuple

from .messages import say
from .text import instant, next_digest

TRANSCRIPT, OLDER, HIT = "transcript", "older", "search_hit"
PART, ATTACHMENT, EXPORT = "part", "attachment", "export"
LIVE, RECORD, API = "live", "record", "api"

# Kind of reading → its description on a page. ``part`` stands for parts of a session beside its
# rows: state, changed files, calls, tool output.
READINGS = {
    TRANSCRIPT: say("opened the transcript"),
    OLDER: say("paged through the transcript"),
    HIT: say("viewed a search result"),
    PART: say("opened a detail"),
    ATTACHMENT: say("opened an attachment"),
    EXPORT: say("exported the session"),
    LIVE: say("watched the session live"),
    RECORD: say("opened a record in the admin"),
    API: say("read through the API"),
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

# Kind of decision → its description on a page.
ACTS = {
    NOTE: say("wrote a note"),
    UNNOTE: say("withdrew a note"),
    FLAG: say("set a flag"),
    UNFLAG: say("resolved a flag"),
    REVIEWED: say("marked the session as reviewed"),
    UNREVIEWED: say("marked the session as not reviewed"),
    HOLD: say("put the session on hold"),
    RELEASE: say("released the hold"),
    PURGE_ORDERED: say("scheduled the deletion"),
    PURGE_CALLED_OFF: say("cancelled the deletion"),
    PURGED: say("deleted the session permanently"),
    RESTORED: say("restored the session"),
    SHARED: say("created a share link"),
    UNSHARED: say("revoked a share link"),
    AUDIT_EXPORT: say("exported the audit log"),
    ROLE: say("changed a role"),
    BUDGET: say("changed a budget"),
    RETENTION: say("changed the retention policy"),
    WEBHOOK: say("changed a webhook"),
    RECALL: say("changed which sessions channels and programs can quote"),
    MEMORY: say("changed the workspace memory"),
    PROVIDER: say("changed the model providers"),
    UPLOADED: say("uploaded files"),
}

AUDIT_ACTIONS = READINGS | ACTS

# Actors that are neither people nor commands. (The name of a command needs no translation.)
SERVER, FIRST_START = say("the server"), say("the first start")
FIRST = hashlib.sha256(b"loom:audit").hexdigest()  # The start of the chain.


class DigestedColumns(NamedTuple):
    """The columns of an entry that its digest covers, in the order of the digest."""

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


def entry_digest(previous: str, entry: DigestedColumns) -> str:
    number, at, *rest = entry
    return next_digest(previous, (number, instant(at), *rest))
