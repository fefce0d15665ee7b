"""What the archive has of a client's requests: the run that answers one, the calls that
it is to carry out, and whether the same request came before."""

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Sum

from conversations.archive.runs import message_text
from conversations.archive.turns import COLUMNS
from conversations.domain.errors import Rejected
from conversations.domain.formats.contents import text_block
from conversations.domain.runs import MESSAGE, NO_CHOICES, RunChoices, read_first_choices
from conversations.domain.text import is_storable, storable
from conversations.domain.tool_calls import COMPLETED, OPEN_STATES
from conversations.domain.turns import ASSISTANT, USER, MalformedTurn, StoredTurn, read_blocks
from conversations.models import ModelCall, Run, Session, ToolCall, Turn, Workspace

USAGE = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswer:
    """``blocks`` are texts and calls of tools, in order. ``stop_reason`` is the model's,
    empty where it gave none, ``stop_sequence`` the text at which it was told to end;
    ``usage`` the tokens of the calls of the model."""

    state: str
    error_code: str
    blocks: list[dict[str, Any]]
    stop_reason: str
    usage: dict[str, int]
    stop_sequence: str | None = None


def read_run_answer(run_pk: int, *, after_turn: int = 0) -> RunAnswer:
    """What the run has answered after a turn."""
    run = Run.objects.get(pk=run_pk)
    after = max(after_turn, run.user_turn or 0)
    turns = _read_answer_turns(run, after) if run.user_turn else []
    calls = ModelCall.objects.filter(run=run_pk, turn_number__gt=after)
    sums = calls.aggregate(**{name: Sum(name) for name in USAGE})
    stop_reason, stop_sequence = _read_end(run_pk)
    return RunAnswer(
        state=run.state,
        error_code=run.error_code,
        blocks=[block for turn in turns for block in _spoken(turn)],
        stop_reason=stop_reason,
        stop_sequence=stop_sequence,
        usage={name: total or 0 for name, total in sums.items()},
    )


def _read_end(run_pk: int) -> tuple[str, str | None]:
    """Why the run's last model call ended, and at which text it was told to."""
    calls = ModelCall.objects.filter(run=run_pk, error_code="").order_by("-ordinal")
    return calls.values_list("stop_reason", "stop_sequence").first() or ("", None)


def _read_answer_turns(run: Run, after: int) -> list[StoredTurn]:
    """Up to the next message of a person: one run at a time writes turns."""
    turns = Turn.objects.filter(session=run.session_id, number__gt=after)
    following = turns.filter(role=USER).order_by("number").values_list("number", flat=True).first()
    if following is not None:
        turns = turns.filter(number__lt=following)
    answers = turns.filter(role=ASSISTANT).order_by("number")
    return [StoredTurn(**row) for row in answers.values(*COLUMNS)]


def _spoken(turn: StoredTurn) -> list[dict[str, Any]]:
    try:
        blocks = read_blocks(turn)
    except MalformedTurn:
        blocks = None
    if blocks is None:
        return [text_block(turn.content)] if turn.content.strip() else []
    return [
        block
        for block in blocks
        if block.get("type") == "tool_use"
        or (block.get("type") == "text" and str(block.get("text", "")).strip())
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCall:
    """A call of a tool, by the id that the provider gave it. ``client_id`` is that of the
    message whose answer made it. ``was_given_up``: it ended without a result."""

    pk: int
    call_id: str
    name: str
    turn: int
    is_open: bool
    was_given_up: bool
    run_pk: int
    client_id: str


def find_asked_call(session: Session, call_id: str) -> AskedCall:
    """The newest call of that id. Raises Rejected."""
    calls = ToolCall.objects.select_related("run").filter(session=session.pk, call_id=call_id)
    found = calls.order_by("-pk").first() if is_storable(call_id) else None
    if found is None:
        raise Rejected(f"There is no call {call_id} in this session.", code="no_such_call")
    return _asked(found)


def list_open_calls(run_pk: int) -> list[AskedCall]:
    """The run's calls that have not ended, in order."""
    calls = ToolCall.objects.select_related("run").filter(run=run_pk, state__in=OPEN_STATES)
    return [_asked(call) for call in calls.order_by("pk")]


def _asked(call: ToolCall) -> AskedCall:
    return AskedCall(
        pk=call.pk,
        call_id=call.call_id,
        name=call.name,
        turn=call.turn_number,
        is_open=call.state in OPEN_STATES,
        was_given_up=call.state not in (*OPEN_STATES, COMPLETED),
        run_pk=call.run_id,
        client_id=call.run.client_id,
    )


def find_resent(session: Session, beginning: str) -> str | None:
    """The newest ``client_id`` of the session that begins so."""
    runs = Run.objects.filter(session=session.pk, client_id__startswith=beginning)
    return runs.order_by("-pk").values_list("client_id", flat=True).first()


def find_begun(workspace: Workspace, owner: User, channel: str, beginning: str) -> Session | None:
    """The newest session without a key that began with a run whose ``client_id`` begins
    so."""
    sessions = Session.objects.filter(
        workspace=workspace, owner=owner, channel=channel, key=None, archived_at=None
    )
    return sessions.filter(runs__client_id__startswith=beginning).order_by("-pk").first()


def was_said_before(run_pk: int, text: str, *, choices: RunChoices = NO_CHOICES) -> bool:
    """Whether the message that this run answers has that text, and its answer is what was
    asked for at first."""
    run = Run.objects.get(pk=run_pk)
    if run.choices is not None and read_first_choices(run.choices) != choices:
        return False
    if run.kind == MESSAGE:
        return message_text(run) == text
    return Turn.objects.filter(
        session=run.session_id, number=run.user_turn or 0, content=storable(text)
    ).exists()
