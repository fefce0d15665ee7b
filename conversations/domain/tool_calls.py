"""The states of a tool call, and the decisions of people about one.

::

    started ──> waiting_approval ──> running ──> completed
       └────────────┴──────────────────┤
                                       └──> denied | stopped | interrupted

``started`` is recorded with the answer that holds the call. ``running`` is recorded before the call
is executed, so that no call is executed twice after a crash.
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
# The effect of a call: it only reads, or it changes something (a file, a service, a process).
EFFECTS = (READS, CHANGES)
READ_ONLY, ASK, AUTO = "read_only", "ask", "auto"  # The policies of a workspace.
BY_POLICY, ONCE, ALWAYS, DENY = "policy", "once", "always", "deny"
# The decisions about a call. It was allowed by the workspace's policy, by a person for this call,
# or by a person for this kind of call in this workspace. Or a person denied it.
DECISIONS = (BY_POLICY, ONCE, ALWAYS, DENY)
NOBODY_THERE = "Nobody is there to approve it; continue without it."  # A program's reason to deny.


# The input of a tool call, from the text that a model wrote.
UNPARSED_INPUT = "_unparsed"
MAX_INPUT_LEVELS = 100  # Providers, and the JSON parsers of other programs, refuse deeper input.


def parse_tool_input(text: str) -> dict[str, Any]:
    """Return the JSON object in ``text``, or an empty object for an empty text.

    If the text is not an object that can be sent back to every provider, the result holds the text
    itself under ``UNPARSED_INPUT``.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if is_tool_input(value) else {UNPARSED_INPUT: text}


def is_tool_input(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether every provider accepts the value as the input of a call."""
    return isinstance(value, dict) and is_writable(value, depth=MAX_INPUT_LEVELS)


def read_unparsed_input(block: dict[str, Any]) -> str | None:
    """Return the raw text of a tool call's input if it could not be parsed, else None."""
    tool_input = block.get("input")
    if isinstance(tool_input, dict) and set(tool_input) == {UNPARSED_INPUT}:
        return str(tool_input[UNPARSED_INPUT])
    return None


# The end of a call: the turn that the model reads and the rows that people see.
MAX_ROW_OUTPUT_CHARS = 20_000  # The turn has the whole output.


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnding:
    """The outcome of a call.

    ``call`` is the uuid of its record. ``output`` is the text for the model, which is an error's
    text if the call failed. ``decision``, ``decided_by`` and ``reason`` are a person's reply if a
    person was asked.
    """

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
    """Return the turn with the whole output and the blocks of the result."""
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
    """Return the row of the call, and one row for each image or file in the result.

    The output of a failed call is shown as an error, unless a program ran and reported an exit
    code.
    """
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


# Rules for the tools on offer, and for calls: a call runs, needs approval or is refused.
RUN, REFUSE = "run", "refuse"

# Programs that are known to run no other program, with any of their options. For ``diff``,
# ``find``, ``rg`` and ``sort``, this holds only with the options that ``agent.tools.commands``
# lists. Some programs look harmless but are left out: ``awk``, ``env``, ``file -z``, ``less``,
# ``man``, ``sed``, ``split``, ``tar``, ``time``, ``tree -R``, ``xargs`` and ``zip`` run programs,
# and ``printf -v`` and ``test -v`` of bash expand text in quotes.
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
    """The workspace and the rights for which tools are on offer.

    ``policy`` is the workspace's tool policy. ``may_change`` says whether the person whose message
    is answered may write in the workspace. ``allows_network`` says whether the workspace lets its
    tools reach other machines.
    """

    workspace: str
    policy: str
    may_change: bool = True
    allows_network: bool = False

    @property
    def offers_changes(self) -> bool:
        return self.may_change and self.policy != READ_ONLY


class CallKind(NamedTuple):
    """A kind of call that a person can always allow.

    ``key`` is stored: ``files``, ``shell:ls``, ``line:…`` for exactly one command, ``git:commit``,
    ``fetch:example.org``, or ``mcp:server:tool:`` with the digest of the server's description of
    the tool. ``label`` is shown, for example "“ls” with any arguments".
    """

    key: str
    label: str


def is_kind(key: str) -> bool:
    """Whether the key is a kind of call that a person can always allow.

    There are records of programs for which this is no longer possible, and of tools of servers
    without a digest. Calls of them need approval again.
    """
    if key.startswith(_SERVER_KEY):
        return _DIGEST.fullmatch(key.rpartition(":")[2]) is not None
    is_program = key.startswith(_PROGRAM_KEY)
    return bool(key) and (not is_program or key.removeprefix(_PROGRAM_KEY) in PLAIN_PROGRAMS)


def is_described_otherwise(kind: str, other: str) -> bool:
    """Whether both keys are the same tool of a server, with different descriptions."""
    tool = kind.rpartition(":")[0]
    is_tool = kind.startswith(_SERVER_KEY) and kind != other
    return is_tool and tool in (other, other.rpartition(":")[0])


def decide(scope: ToolScope, *, effect: str, kind: str, allowed: Collection[str]) -> str:
    """Return ``run``, ``ask`` or ``refuse``.

    ``allowed`` has the keys of the kinds that people have always allowed in this workspace.
    """
    if effect == READS:
        return RUN
    if not scope.offers_changes:
        return REFUSE
    return RUN if scope.policy == AUTO or (kind and kind in allowed) else ASK


# The request that a person is shown if a call needs approval.
SAID = "said"  # The key of the templates and values of a request's messages, by field.


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """The planned effect of a call, which is found out without executing the call.

    ``summary`` is one line ("Edit src/app.py"). ``command`` or ``diff`` (unified) has the details,
    and ``note`` is a warning. ``kind_key`` and ``kind_label`` are the kind of call that "always"
    would allow, or empty if there is none. ``basis`` identifies the input of the plan (a digest of
    the file's content); the tool refuses to run if it finds a different input. ``place`` is the
    real path of the file for which the plan was made, or empty if it is not one file.
    """

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
    """The plan as it is stored with the call, whose uuid is ``call``, and in the row that asks."""

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
    """Read the request from a row's data or a call's record.

    Fields that are missing or not texts become empty.
    """
    messages = an_object(data.get(SAID))

    def read(name: str) -> str:
        text = data.get(name)
        return restore_message(text, messages.get(name)) if isinstance(text, str) else ""

    return ApprovalRequest(**{name: read(name) for name in ApprovalRequest.__dataclass_fields__})
