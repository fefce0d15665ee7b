"""Simulation of the provider's prompt cache.

A prefix (tools, then system, then messages) is written at each breakpoint. It is found again
at a breakpoint or up to 20 parts before one. Any change within it gives another prefix.
Entries belong to a key and a model and never expire.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tests.wire.rules.prompt import CHARACTERS_PER_TOKEN, count_tokens, count_unit, iterate_units

LOOK_BACK = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFigures:
    """Token counts of a prompt. Their sum is the size of the prompt."""

    input_tokens: int
    read_tokens: int
    written_tokens: int


@dataclass(frozen=True, slots=True)
class Prefix:
    digest: str
    characters: int
    is_breakpoint: bool


class PromptCache:
    """A cache of prefixes of at least ``min_tokens`` tokens. Real caches need 512 to 4,096."""

    def __init__(self, *, min_tokens: int = 0) -> None:
        self.min_tokens = min_tokens
        self._entries: set[str] = set()

    def use(self, key: str, body: dict[str, Any]) -> CacheFigures:
        """Store the prefixes of a call and return how many tokens it reads and writes."""
        prefixes = make_prefixes(key, body)
        ends = [at for at, prefix in enumerate(prefixes) if self._is_cacheable(prefix)]
        read_to = max((self._find_hit(prefixes, end) for end in ends), default=-1)
        self._entries.update(prefixes[end].digest for end in ends)
        total = count_tokens(body)
        read = tokens_through(prefixes, read_to)
        cached = max(read, tokens_through(prefixes, ends[-1] if ends else -1))
        return CacheFigures(
            input_tokens=total - cached, read_tokens=read, written_tokens=cached - read
        )

    def _is_cacheable(self, prefix: Prefix) -> bool:
        return prefix.is_breakpoint and prefix.characters // CHARACTERS_PER_TOKEN >= self.min_tokens

    def _find_hit(self, prefixes: list[Prefix], end: int) -> int:
        for at in range(end, max(end - LOOK_BACK, 0) - 1, -1):
            if prefixes[at].digest in self._entries:
                return at
        return -1


def tokens_through(prefixes: list[Prefix], at: int) -> int:
    return 0 if at < 0 else prefixes[at].characters // CHARACTERS_PER_TOKEN


def make_prefixes(key: str, body: dict[str, Any]) -> list[Prefix]:
    """Return the prompt's prefixes, one after each part."""
    digest = hashlib.sha256(f"{key}\0{body['model']}".encode())
    units = list(iterate_units(body))
    prefixes: list[Prefix] = []
    characters = 0
    for at, (role, unit) in enumerate(units):
        kept = {name: value for name, value in unit.items() if name != "cache_control"}
        digest.update(json.dumps([role, kept], sort_keys=True).encode())
        characters += count_unit(unit)
        is_last = at == len(units) - 1
        is_breakpoint = bool(unit.get("cache_control") or (is_last and body.get("cache_control")))
        prefixes.append(Prefix(digest.hexdigest(), characters, is_breakpoint))
    return prefixes
