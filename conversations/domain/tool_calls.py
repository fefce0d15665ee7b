"""The life of a tool call, and what a person may decide about one.

::

    started ──> waiting_approval ──> running ──> completed
       └────────────┴──────────────────┤
                                       └──> denied | stopped | interrupted

``started`` is recorded with the answer that holds the call; ``running`` is recorded
before anything is done, so that after a crash nothing is done twice.
"""

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeGuard

from .events import Payload, ToolCallCompleted
from .messages import Message, message_data, restore_message
from .text import an_object, dump_json, estimate_tokens, is_writable, storable
from .turns import NewTurn, make_indicator

STARTED, WAITING, RUNNING = "started", "waiting_approval", "running"
COMPLETED, DENIED, STOPPED, INTERRUPTED = "completed", "denied", "stopped", "interrupted"

OPEN_STATES = (STARTED, WAITING, RUNNING)
TOOL_CALL_STATES = (*OPEN_STATES, COMPLETED, DENIED, STOPPED, INTERRUPTED)
READS, CHANGES = "reads", "changes"
# What a call does: look at things, or change something (a file, a service, a process).
EFFECTS = (READS, CHANGES)
READ_ONLY, ASK, AUTO = "read_only", "ask", "auto"  # The policies of a workspace.
BY_POLICY, ONCE, ALWAYS, DENY = "policy", "once", "always", "deny"
# Who let a call run: the workspace's policy, a person for this call, a person for this kind
# of call in this workspace; or a person did not.
DECISIONS = (BY_POLICY, ONCE, ALWAYS, DENY)
NOBODY_THERE = "Nobody is there to approve it; continue without it."  # Why a program denies one


# The input of a tool call, from the text that a model wrote.
UNPARSED_INPUT = "_unparsed"
MAX_INPUT_LEVELS = 100  # Deeper ones are refused by providers, and by JSON of other programs


def parse_tool_input(text: str) -> dict[str, Any]:
    """The JSON object in ``text``; an empty text is an empty object. What could not be sent back
    counts as text that is none."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if is_tool_input(value) else {UNPARSED_INPUT: text}


def is_tool_input(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether every provider takes it as the input of a call."""
    return isinstance(value, dict) and is_writable(value, depth=MAX_INPUT_LEVELS)


def read_unparsed_input(block: dict[str, Any]) -> str | None:
    """The raw text of a tool call's input that could not be parsed, else None."""
    tool_input = block.get("input")
    if isinstance(tool_input, dict) and set(tool_input) == {UNPARSED_INPUT}:
        return str(tool_input[UNPARSED_INPUT])
    return None


# How a call ended, as the turn that the model reads and the rows that people see.
MAX_ROW_OUTPUT_CHARS = 20_000  # The turn has all of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnding:
    """What became of a call. ``call`` is the uuid of its record; ``output`` the text for
    the model, an error's words included; ``decision``, ``decided_by`` and ``reason`` are
    given where somebody was asked."""

    call: str
    call_id: str
    name: str
    arguments: Any
    ok: bool
    output: str
    blocks: list[dict[str, Any]] = field(default_factory=list)
    diff: str = ""
    exit_code: int | None = None
    state: str
    decision: str
    decided_by: str
    reason: str
    duration_ms: int


def make_result_turn(ending: CallEnding) -> NewTurn:
    """The whole output, with the blocks behind it."""
    output = storable(ending.output)
    metadata: dict[str, Any] = {"ok": ending.ok}
    if ending.exit_code is not None:
        metadata["exit_code"] = ending.exit_code
    return NewTurn(
        role="tool",
        content=output,
        blocks=dump_json(ending.blocks) if ending.blocks else None,
        tool_call_id=ending.call_id[:255],
        tool_name=ending.name[:255],
        token_count=estimate_tokens(output),
        metadata=dump_json(metadata),
    )


def make_result_payloads(ending: CallEnding) -> list[Payload]:
    """The row of the call, then one for each image or file in the result. A failure is
    an error, unless a program ran and said so by its exit code."""
    output = storable(ending.output)
    is_error = not ending.ok and ending.exit_code is None
    shown = output[:MAX_ROW_OUTPUT_CHARS]
    completed = ToolCallCompleted(
        call_id=ending.call_id,
        name=ending.name,
        ok=ending.ok,
        output="" if is_error else shown,
        error=shown if is_error else "",
        arguments=ending.arguments,
        duration_ms=ending.duration_ms,
        call=ending.call,
        state="" if ending.state == COMPLETED else ending.state,
        output_chars=len(output) if len(output) > MAX_ROW_OUTPUT_CHARS else None,
        exit_code=ending.exit_code,
        diff=storable(ending.diff),
        decision=ending.decision,
        decided_by=ending.decided_by,
        reason=ending.reason,
    )
    return [completed, *(make_indicator(block, call_id=ending.call_id) for block in ending.blocks)]


# Which tools are on offer, and whether a call runs, asks or is refused.
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
_SERVER_KEY = "mcp:"
_DIGEST = re.compile(r"[0-9a-f]{64}")


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


class CallKind(NamedTuple):
    """What "always" stands for. ``key`` is stored (``files``, ``shell:ls``, ``line:…`` for
    one command as it stands, ``git:commit``, ``fetch:example.org``, and ``mcp:server:tool:``
    with the digest of how the server describes the tool), ``label`` is read: "“ls” with any
    arguments"."""

    key: str
    label: str


def is_kind(key: str) -> bool:
    """Whether "always" can stand for it. Programs that no longer can, and tools of servers
    without a digest, are still on record: calls of them ask again."""
    if key.startswith(_SERVER_KEY):
        return _DIGEST.fullmatch(key.rpartition(":")[2]) is not None
    is_program = key.startswith(_PROGRAM_KEY)
    return bool(key) and (not is_program or key.removeprefix(_PROGRAM_KEY) in PLAIN_PROGRAMS)


def is_described_otherwise(kind: str, other: str) -> bool:
    """Whether both are one tool of one server, as it described it at two times."""
    tool = kind.rpartition(":")[0]
    is_tool = kind.startswith(_SERVER_KEY) and kind != other
    return is_tool and tool in (other, other.rpartition(":")[0])


def decide(scope: ToolScope, *, effect: str, kind: str, allowed: Collection[str]) -> str:
    """``run``, ``ask`` or ``refuse``. ``allowed`` are the keys of the kinds that people
    have always allowed in this workspace."""
    if effect == READS:
        return RUN
    if not scope.offers_changes:
        return REFUSE
    return RUN if scope.policy == AUTO or (kind and kind in allowed) else ASK


# What a person is shown when a call needs approval.
SAID = "said"  # In the data of a request: what its sentences are made of, by field


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """What a call is going to do, found out without doing it. ``summary`` is one line
    ("Edit src/app.py"), ``command`` or ``diff`` (unified) what exactly; ``note`` warns of
    something about it. ``kind`` is what "always" would allow, None: nothing. ``basis``
    stands for what the plan was made from (a digest of the file's content): a tool that
    finds something else when it runs refuses. ``place`` is the file that it was made from, by
    its real path; empty: not one file."""

    effect: str
    summary: str = ""
    command: str = ""
    diff: str = ""
    note: str = ""
    kind_key: str = ""
    kind_label: str = ""
    basis: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """The plan as it is kept with the call, of the uuid ``call``, and in the row that asks."""

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
        data = {name: value for name, value in asdict(self).items() if value}
        said = {name: message_data(v) for name, v in data.items() if isinstance(v, Message)}
        return data | ({SAID: said} if said else {})


def read_asked(data: dict[str, Any]) -> ApprovalRequest:
    """From a row's data or a call's record; what is missing or no text is empty."""
    messages = an_object(data.get(SAID))

    def read(name: str) -> str:
        text = data.get(name)
        return restore_message(text, messages.get(name)) if isinstance(text, str) else ""

    return ApprovalRequest(**{name: read(name) for name in ApprovalRequest.__dataclass_fields__})
