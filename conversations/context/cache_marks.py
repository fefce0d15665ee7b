"""Where the provider is asked to keep the prompt in its cache.

At most four breakpoints. A prefix is found again at a breakpoint or up to 20 blocks
before one, so the history gets one at its end, one where the call before had its own,
and one between when those two are far apart.
"""

from typing import Any

LOOK_BACK = 20
SPACING = LOOK_BACK - 2
"""Blocks from the end of the history to the breakpoint between, below the look-back."""

type Block = dict[str, Any]
type Message = dict[str, Any]
type Place = tuple[str, int, int]


def mark_cache(
    system: list[Block], messages: list[Message], *, lifetime: str
) -> tuple[list[Block], list[Message], list[Place]]:
    """Copies with the breakpoints set, and where they are: ``("system", block, 0)`` or
    ``("messages", message, block)``. ``lifetime``: ``5m``, ``1h`` or ``off``."""
    if lifetime == "off":
        return system, messages, []
    control = {"type": "ephemeral"} | ({"ttl": "1h"} if lifetime == "1h" else {})
    places: list[Place] = []
    if system:
        system = [*system[:-1], system[-1] | {"cache_control": control}]
        places.append(("system", len(system) - 1, 0))
    messages = [message | {"content": list(message["content"])} for message in messages]
    for number, block in _history_places(messages):
        content = messages[number]["content"]
        content[block] = content[block] | {"cache_control": control}
        places.append(("messages", number, block))
    return system, messages, places


def _history_places(messages: list[Message]) -> list[tuple[int, int]]:
    """The ends of the last two messages of the person, and a place between."""
    people = [at for at, message in enumerate(messages) if message["role"] == "user"]
    ends = [(at, len(messages[at]["content"]) - 1) for at in people[-2:]]
    if not ends:
        return []
    flat = [
        (at, block)
        for at, message in enumerate(messages)
        for block in range(len(message["content"]))
    ]
    last = len(flat) - 1
    before = flat.index(ends[0]) if len(ends) == 2 else 0
    if last - before > SPACING:
        between = [
            place
            for place in flat[before + 1 : last - SPACING + 1]
            if messages[place[0]]["role"] == "user"
        ]
        ends[1:1] = between[-1:]
    return ends
