"""Which tools are on offer, and whether a call runs, asks or is refused."""

from collections.abc import Collection
from dataclasses import dataclass

from .tool_calls import ASK, AUTO, CHANGES, READ_ONLY, READS

RUN, REFUSE = "run", "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolScope:
    """For whom and where tools are on offer. ``policy`` is the workspace's, ``may_change``
    whether the person whose message is answered may take part there (not only read);
    ``allows_network``: the workspace lets its tools reach other machines."""

    workspace: str
    policy: str
    may_change: bool = True
    allows_network: bool = False

    @property
    def offers_changes(self) -> bool:
        return self.may_change and self.policy != READ_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What "always" stands for. ``key`` is stored (``files``, ``shell:pytest``,
    ``git:commit``, ``fetch:example.org``, ``mcp:server:tool``), ``label`` is read:
    "commands that begin with pytest"."""

    key: str
    label: str


def decide(scope: ToolScope, *, effect: str, kind: Kind | None, allowed: Collection[str]) -> str:
    """``run``, ``ask`` or ``refuse``. ``allowed`` are the keys of the kinds that people
    have always allowed in this workspace."""
    if effect == READS:
        return RUN
    if not scope.offers_changes:
        return REFUSE
    if scope.policy == AUTO or (kind is not None and kind.key in allowed):
        return RUN
    return ASK


__all__ = ["ASK", "CHANGES", "READS", "REFUSE", "RUN", "Kind", "ToolScope", "decide"]
