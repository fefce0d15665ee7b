"""Keys of sessions, by which another program finds its session.

Examples are ``cli:default``, ``discord:thread:42`` and ``bead:ac-c0f.2``. The part before the first
colon is the channel, and the channel defines the rest. A key is unique within a workspace, and
belongs to one session at a time.
"""

import re

from .errors import Rejected
from .text import is_storable

MAX_KEY_CHARS = 255  # The length of the column.
BEAD = "bead"  # The channel of work items.

# Channels of which only members of the workspace are readers: the pages, the terminal, and
# histories that a member has imported from other programs.
MEMBER_CHANNELS = frozenset(
    {"web", "cli", "import", "chatgpt", "claude", "claude-code", "openwebui", "loom"}
)

_FORM = re.compile(r"([a-z0-9][a-z0-9_-]{0,31}):(?=\S)(.*\S)")


def check_key(key: str) -> str:
    """Return the key if it is valid. Raises Rejected if it is not."""
    if len(key) > MAX_KEY_CHARS:
        raise Rejected(
            "A key can have at most %(limit)s characters.", limit=MAX_KEY_CHARS, code="key_invalid"
        )
    if not _FORM.fullmatch(key) or not key.isprintable() or not is_storable(key):
        raise Rejected(
            "A key must have the form channel:name, such as cli:default. The channel has "
            "lowercase letters, digits, - and _; the name has no spaces around it.",
            code="key_invalid",
        )
    return key


def channel_of(key: str, *, otherwise: str) -> str:
    """Return the channel that a key names. Keys of older programs may name none."""
    match = _FORM.fullmatch(key)
    return match[1] if match else otherwise
