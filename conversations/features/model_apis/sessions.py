"""Which session a client's request belongs to, and what of the request is new there.

The archive is the memory: of a session that has begun, only what follows the last answer
is taken. What was said before counts for a session that begins with the request.
"""

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest

from conversations.access import get_session_for, get_workspace_for
from conversations.agent.tools.tool import ToolResult
from conversations.api.auth import caller_of
from conversations.api.fields import KEY_HEADER
from conversations.api.idempotency import KeyMismatch
from conversations.archive import sessions as archive_sessions
from conversations.archive.attachments import attachment_block, save_attachment
from conversations.archive.file_types import examine
from conversations.archive.message_formats import (
    import_history,
    prepare_messages,
    save_message_files,
)
from conversations.archive.messages import AcceptedMessage, find_accepted
from conversations.archive.rights import WRITE
from conversations.archive.runs import message_text
from conversations.archive.turns import read_rewound
from conversations.domain.active_path import are_within
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.formats import READERS, MessageContent, read_new_file
from conversations.domain.runs import (
    CONTINUE,
    FAILED,
    INTERRUPTED,
    MESSAGE,
    RunChoices,
    read_choices,
    read_first_choices,
)
from conversations.domain.session_keys import check_key
from conversations.domain.text import dump_json, is_storable, load_json, storable
from conversations.domain.tool_calls import INTERRUPTED as CALL_INTERRUPTED
from conversations.domain.tool_calls import OPEN_STATES
from conversations.domain.turns import ASSISTANT, USER, calls_of, text_of_blocks
from conversations.models import Run, Session, ToolCall, Turn, Workspace
from conversations.runtime.current import choose_model
from conversations.web.forms import check_message_text

from .client_request import ClientRequest, list_said, read_result_blocks, read_words

MAX_CALLS_OF_ID = 20

MAX_CONTINUED_SESSIONS = 1_000  # the newest first, by a request without a name
MAX_COMPARED_ANSWERS = 20  # of such a session, the last ones
MAX_REPEATED_PIECES = 10  # of messages that a client sends again, without their answers

UNANSWERED = (FAILED, INTERRUPTED)  # states of a run that ended without its answer

MIN_ROLE_CHARS = 1_000  # of instructions that say what an agent is
ROLE_SHARE = 0.25  # of them that are the same in all requests of its conversation

ANSWER_ID = re.compile(r"[a-z]+_([0-9a-f]{32})(?:_\d+)?")  # of a run, see AnswerWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientExchange:
    """A request, read: ``words`` is what the person says, None where only results come.
    ``known`` is what became of it where it was sent before. ``results``: what tools of the
    client gave."""

    asked: ClientRequest
    session: Session
    user: User
    client_id: str
    known: AcceptedMessage | None
    words: MessageContent | None
    results: list[tuple[ToolCall, ToolResult]] = field(default_factory=list)
    attachments: list[str] = field(default_factory=list)


def open_exchange(request: HttpRequest, slug: str, asked: ClientRequest) -> ClientExchange:
    """Find or begin the session, and keep what is attached. Raises as the archive does."""
    workspace, _ = get_workspace_for(request, slug, to=WRITE)
    check_message_text(asked.words.text, may_be_empty=bool(asked.words.files or asked.results))
    user = caller_of(request).user
    # The same request sent again begins with the same, and means the same run.
    once = request.headers.get(KEY_HEADER, "")
    said = _said_id(asked, len(asked.said))
    beginning = (
        f"{asked.channel}-{_digest(f'key {once}')}" if once else said + _digest(asked.identity)[:20]
    )
    is_retry = request.headers.get("X-Stainless-Retry-Count", "0") != "0"
    begun: dict[str, Any] = {
        "channel": asked.channel,
        "instructions": asked.instructions,
        "model": asked.model,
    }
    session = None
    if key := _key_of(request, asked, user):
        session = archive_sessions.get_or_create_by_key(workspace, key=key, owner=user, **begun)
        if "Loom-Session-Key" not in request.headers and not _has_same_role(session, asked):
            session = None
    if session is None:
        session = _find_session(
            request, workspace, asked, beginning, is_retry=is_retry
        ) or archive_sessions.create_session(workspace, owner=user, **begun)
    _follow(session, asked)
    client_id = f"{beginning}-{uuid4().hex[:12]}"
    # Sent again: by the client's own key, by a list of messages that can only be sent once,
    # since the client says so, or since it has no answer.
    can_be_known = bool(once or asked.before or asked.answer_id)
    runs = Run.objects.filter(session=session.pk, client_id__startswith=beginning)
    newest = runs.order_by("-pk").first()
    if newest is not None and (can_be_known or is_retry or newest.state in UNANSWERED):
        client_id = newest.client_id
    elif can_be_known:
        client_id = beginning
    known = find_accepted(session, client_id)
    results = [_read_result(session, user, block) for block in asked.results]
    late = [(call, gave) for call, gave in results if call.state == CALL_INTERRUPTED]
    # Sent again, it says no more or less than at first.
    earlier = session.runs.filter(pk__lt=runs.earliest("pk").pk) if known else session.runs
    words = _read_words(earlier.order_by("-pk").first(), asked, late)
    if once and known is not None and not was_said_before(known.run_pk, words.text, asked.choices):
        raise KeyMismatch("This key was already used in this session for another request.")
    if known is None and asked.answer_id:
        _require_last(session, asked)
    results = [one for one in results if one not in late]
    return ClientExchange(
        asked=asked,
        session=session,
        user=user,
        client_id=client_id,
        known=known,
        words=words if words.text or words.files or not results else None,
        results=results,
        attachments=save_message_files(session, words.files, client_id=client_id, user_pk=user.pk),
    )


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _said_id(asked: ClientRequest, count: int) -> str:
    # How the ids of the messages begin with which all was said that stands before the last
    # answer, and so many pieces since.
    said = list_said([*asked.before, *asked.said[:count]])
    return f"{asked.channel}-{_digest(dump_json(said))[:20]}"


def _said_again(asked: ClientRequest) -> range:
    # How many pieces since the last answer may be those that were sent before.
    return range(1, len(asked.said))[:MAX_REPEATED_PIECES]


def _read_words(
    last: Run | None, asked: ClientRequest, late: Sequence[tuple[ToolCall, ToolResult]]
) -> MessageContent:
    """What the person says, without the messages that the session has and whose answers never
    arrived, the last of them that of the run ``last``. Results that come when their run has been
    interrupted are told as text."""
    words = asked.words
    missed = ""
    # Only a history shows that an answer never arrived: without one, it is said anew.
    if last is not None and (asked.before or last.state in UNANSWERED):
        missed = last.client_id
    for count in _said_again(asked) if missed and not asked.results else ():
        if missed.startswith(_said_id(asked, count)):
            words = read_words(asked.said[count:])
    told = [f"[Result of {call.name}]\n{gave.output}" for call, gave in late]
    return words._replace(text="\n\n".join([*told, words.text] if words.text else told))


def _key_of(request: HttpRequest, asked: ClientRequest, user: User) -> str:
    # Of the session. A request without one, that can be sent again, is the session of its
    # ``Idempotency-Key``.
    if given := request.headers.get("Loom-Session-Key", ""):
        return check_key(given)
    if asked.results or asked.answer_id:
        return ""  # they name the session
    if not asked.user_key:
        once = request.headers.get(KEY_HEADER, "")
        digest = sha256(f"{user.pk} {once}".encode()).hexdigest()
        return f"{asked.channel}:once-{digest}" if once else ""
    # Agents that Claude Code begins have the same user.
    agent = request.headers.get("X-Claude-Code-Agent-Id", "")
    named = f"{asked.user_key}:{agent}" if agent else asked.user_key
    try:
        return check_key(f"{asked.channel}:{named}")
    except Rejected:
        return f"{asked.channel}:{sha256(dump_json(named).encode()).hexdigest()}"


def _find_session(
    request: HttpRequest,
    workspace: Workspace,
    asked: ClientRequest,
    beginning: str,
    *,
    is_retry: bool,
) -> Session | None:
    """The session of the answer or the calls that the request goes on from, or the one that
    it began or continued when it was sent before (as the client says, or without success), or
    the one in which all that it tells of was said. Raises Rejected for an answer that is not
    there."""
    own = Session.objects.filter(
        workspace=workspace, owner=caller_of(request).user, archived_at=None
    ).order_by("-pk")
    found = None
    if asked.answer_id:
        named = ANSWER_ID.fullmatch(asked.answer_id)
        found = own.filter(runs__uuid=UUID(named[1])).first() if named else None
        if found is None:
            reason = f"Previous response with id '{asked.answer_id}' not found."
            raise Rejected(reason, code="previous_response_not_found")
    elif asked.results:
        found = _find_call(own, asked).session
    else:
        unnamed = own.filter(channel=asked.channel, key=None)
        found = _find_continued(unnamed, asked, beginning, is_retry=is_retry)
    return None if found is None else get_session_for(request, found.uuid, to=WRITE)[0]


def _find_continued(
    own: QuerySet[Session], asked: ClientRequest, beginning: str, *, is_retry: bool
) -> Session | None:
    # Programs that keep a conversation by themselves send the whole of it each time. It goes on
    # where the same was said, in this order and last, and answered with the same words.
    recent = own.order_by("-last_active_at").values("pk")[:MAX_CONTINUED_SESSIONS]
    runs = Run.objects.filter(session__in=recent).select_related("session").order_by("-pk")
    sent = runs.filter(client_id__startswith=beginning).first()
    if sent is not None and (is_retry or sent.state in UNANSWERED):
        return sent.session
    read = list(READERS[asked.channel](asked.before))
    told = _without_space("".join(turn.content for turn in read if turn.role == ASSISTANT))
    # What was said last may have had no answer that arrived, or a part of one.
    ways = [
        runs.filter(client_id__startswith=_said_id(asked, count))
        for count in (0, *_said_again(asked))
        if list_said([*asked.before, *asked.said[:count]])
    ]
    # Programs also change what they said before: dates, lists of files. A call has an id.
    called = [call.get("id") for turn in read for call in calls_of(turn)][-1:]
    ways.append(runs.filter(session__tool_calls__call_id__in=called).distinct())
    for found in ways:
        last = [
            run
            for run in found[:MAX_CALLS_OF_ID]
            if _has_same_role(run.session, asked)
            and not run.session.runs.filter(pk__gt=run.pk).exists()
        ]
        for is_whole in (True, False):
            for run in last:
                if _has_same_answers(run, told, is_whole=is_whole):
                    return run.session
    return None


def _has_same_role(session: Session, asked: ClientRequest) -> bool:
    """Whether the request's instructions are those of the session, as far as an agent changes
    them. What it asks in another role (a title, what to remember) is another conversation."""
    kept, given = session.instructions, asked.instructions
    if len(kept) < MIN_ROLE_CHARS or not given:
        return True
    return given.startswith(kept[: int(len(kept) * ROLE_SHARE)])


def _has_same_answers(run: Run, told: str, *, is_whole: bool) -> bool:
    """Whether a client tells of the answers of the run's session: the last ones, in order. Of
    those that broke off it may have more or less, and of the run's where that is not the whole."""
    session = run.session
    states = dict(session.runs.order_by("pk").values_list("user_turn", "state"))  # the newest
    rewound = read_rewound(session.pk, "turn")
    turns = session.turns.order_by("number")
    asked_at = [0, *turns.filter(role=USER).values_list("number", flat=True)]
    answers: list[str] = []
    parts: dict[int, str] = defaultdict(str)  # by the message's turn
    broken: dict[int, str] = defaultdict(str)
    newest = turns.filter(role=ASSISTANT).order_by("-number").values_list("number", "content")
    for number, content in reversed(list(newest[:MAX_COMPARED_ANSWERS])):
        text, question = _without_space(content), asked_at[bisect(asked_at, number) - 1]
        is_gone = are_within(number, rewound)
        if is_gone or states.get(question) in UNANSWERED:
            broken[question] += text
        elif question == run.user_turn and not is_whole:
            parts[question] += text
        else:
            answers.append(text)
    end = len(told)
    for text in reversed(answers):
        start = told.rfind(text, 0, end)
        more = told[start + len(text) : end]
        is_part = any(one.startswith(more) for one in (*parts.values(), *broken.values()))
        is_longer = any(one and more.startswith(one) for one in broken.values())
        if start < 0 or (more and not is_part and not is_longer):
            return False
        end = start
    return bool(answers) or run.state in UNANSWERED


def _without_space(text: str) -> str:
    # Programs join the parts of an answer with lines of their own.
    return "".join(text.split())


def _find_call(own: QuerySet[Session], asked: ClientRequest) -> ToolCall:
    """The newest call of the request's last result. Raises Rejected where there is none."""
    call_id = str(asked.results[-1].get("tool_use_id", ""))
    # Some servers give ids out again: the call is the one that the client tells of.
    answer = READERS[asked.channel](asked.before[-1:])
    told = {call.get("id"): call for turn in answer for call in calls_of(turn)}.get(call_id)
    calls = ToolCall.objects.filter(call_id=call_id, session__in=own).order_by("-pk")
    for call in calls.select_related("session")[:MAX_CALLS_OF_ID] if is_storable(call_id) else ():
        given = (call.name, load_json(call.arguments, default={}))
        if told is None or given == (told.get("name"), told.get("input")):
            return call
    raise Rejected(f"There is no call {call_id}.", code="no_such_call")


def _require_last(session: Session, asked: ClientRequest) -> None:
    # The archive is one line: what goes on from an earlier answer would be answered to another.
    newest = session.runs.order_by("-pk").values_list("uuid", flat=True).first()
    if newest is not None and newest.hex not in asked.answer_id:
        raise Conflict("The session has later messages. Continue from its last answer.")


def _follow(session: Session, asked: ClientRequest) -> None:
    # Bring a history along where the session begins with it; take over what the client changed
    # since.
    if asked.before and session.turn_count == 0:
        brought = prepare_messages(asked.before, format=asked.channel, model=asked.model)
        with suppress(Conflict):  # another request was first
            import_history(session, brought, user_pk=session.owner_id)
    if session.model != asked.model:
        choose_model(session, model=asked.model)
    if asked.instructions and session.instructions != asked.instructions:
        archive_sessions.instruct_session(session, instructions=asked.instructions)


def was_said_before(run_pk: int, text: str, choices: RunChoices) -> bool:
    """Whether the message that this run answers has that text, and its answer is what was
    asked for at first."""
    run = Run.objects.get(pk=run_pk)
    if run.kind == CONTINUE:  # of results alone
        return not text and read_choices(run.choices) == choices
    if run.choices is not None and read_first_choices(run.choices) != choices:
        return False
    if run.kind == MESSAGE:
        return message_text(run) == text
    turns = Turn.objects.filter(session=run.session_id, number=run.user_turn or 0)
    return turns.filter(content=storable(text)).exists()


def _read_result(
    session: Session, user: User, block: dict[str, Any]
) -> tuple[ToolCall, ToolResult]:
    call_id = str(block.get("tool_use_id", ""))
    calls = ToolCall.objects.select_related("run").filter(session=session.pk, call_id=call_id)
    call = calls.order_by("-pk").first() if is_storable(call_id) else None
    if call is None:
        raise Rejected(f"The call {call_id} does not exist in this session.", code="no_such_call")
    blocks = read_result_blocks(block)
    kept = []
    for one in blocks if call.state in OPEN_STATES else ():
        if one.get("type") != "text":
            file = read_new_file(one)
            attachment = save_attachment(
                session.pk,
                data=file.data,
                name=file.name,
                user_pk=user.pk,
                turn=call.turn_number,
                content=examine(file.data, file.name),
            )
            kept.append(attachment_block(attachment))
    text = text_of_blocks(blocks)
    return call, ToolResult(ok=block.get("is_error") is not True, output=text, blocks=kept)
