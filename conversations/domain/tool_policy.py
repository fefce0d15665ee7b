"""Which tools are on offer, and whether a call runs, asks or is refused."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from .tool_calls import ASK, AUTO, READ_ONLY, READS

RUN, REFUSE = "run", "refuse"

# Programs that are known to run no other: of all their options, or (``diff``, ``find``,
# ``rg``, ``sort``) of those that ``agent.tools.commands`` lists. Left out for what looks
# harmless and is not: ``awk``, ``env``, ``file -z``, ``less``, ``man``, ``sed``, ``split``,
# ``tar``, ``time``, ``tree -R``, ``xargs``, ``zip`` run programs; ``printf -v`` and ``test
# -v`` of bash expand what stands between quotes.
PLAIN_PROGRAMS = frozenset(
    """b2sum base64 basename cal cat chmod cksum cmp column comm cp cut date df diff dirname du
    echo expand false find fmt fold free grep head hexdump id join ln ls md5sum mkdir mktemp mv
    nl nproc numfmt od paste ps pwd readlink realpath rev rg rm rmdir seq sha1sum sha256sum
    sha512sum shuf sleep sort stat tac tail tee touch tr true truncate tsort uname unexpand uniq
    uptime wc which whoami xxd
    """.split()  # noqa: SIM905 (seventy quoted names are harder to read)
)
_PROGRAM_KEY = "shell:"


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
    """What "always" stands for. ``key`` is stored (``files``, ``shell:ls``, ``line:…`` for
    one command as it stands, ``git:commit``, ``fetch:example.org``, ``mcp:server:tool``),
    ``label`` is read: "“ls” with any arguments"."""

    key: str
    label: str


def is_kind(key: str) -> bool:
    """Whether "always" can stand for it. Programs that no longer can are still on record:
    calls of them ask again."""
    is_program = key.startswith(_PROGRAM_KEY)
    return bool(key) and (not is_program or key.removeprefix(_PROGRAM_KEY) in PLAIN_PROGRAMS)


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


# What a person is shown when a call needs approval.


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """What a call is going to do, found out without doing it. ``summary`` is one line
    ("Edit src/app.py"), ``command`` or ``diff`` (unified) what exactly; ``note`` warns of
    something about it. ``kind`` is what "always" would allow, None: nothing. ``basis``
    stands for what the plan was made from (a digest of the file's content): a tool that
    finds something else when it runs refuses."""

    effect: str
    summary: str = ""
    command: str = ""
    diff: str = ""
    note: str = ""
    kind_key: str = ""
    kind_label: str = ""
    basis: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """The plan as it is kept with the call and in the row that asks. ``call`` is the
    uuid of the call's record."""

    call: str
    call_id: str
    name: str
    summary: str = ""
    command: str = ""
    diff: str = ""
    note: str = ""
    kind_key: str = ""
    kind_label: str = ""
    basis: str = ""

    def as_data(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}


def read_asked(data: dict[str, Any]) -> ApprovalRequest:
    """From a row's data or a call's record; what is missing or no text is empty."""
    names = ApprovalRequest.__dataclass_fields__
    return ApprovalRequest(
        **{name: v if isinstance(v := data.get(name), str) else "" for name in names}
    )
