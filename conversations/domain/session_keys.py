"""Keys: by which another system finds its session again, such as ``cli:default``,
``discord:thread:42`` or ``bead:ac-c0f.2``.

What stands before the first colon is the channel, what follows is the channel's own. A
key means something within one workspace, and belongs to one session at a time.
"""

import re

from .errors import Rejected
from .text import is_storable

MAX_KEY_CHARS = 255  # Characters; the column holds no more.
BEAD = "bead"  # The channel of work items.

# Channels in which only members of the workspace read: the pages, the terminal, and the
# histories of other programs that a member has brought.
MEMBER_CHANNELS = frozenset(
    {"web", "cli", "import", "chatgpt", "claude", "claude-code", "openwebui", "loom"}
)

_FORM = re.compile(r"([a-z0-9][a-z0-9_-]{0,31}):(?=\S)(.*\S)")


def check_key(key: str) -> str:
    """The key, if it is one. Raises Rejected."""
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
    """The channel that a key names; keys of older programs may name none."""
    found = _FORM.fullmatch(key)
    return found[1] if found else otherwise
