"""Finding the session of a client's request, and the part of the request that is new.

If the session exists, only the messages after the last answer are used, because the archive has
the earlier ones. If the session begins with the request, the earlier messages are imported too.
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

MAX_CONTINUED_SESSIONS = 1_000  # The newest sessions, searched for a request that names none.
MAX_COMPARED_ANSWERS = 20  # The last answers of such a session.
MAX_REPEATED_PIECES = 10  # Message blocks that a client may send again without their answers.

UNANSWERED = (FAILED, INTERRUPTED)  # States of a run that ended without an answer.

MIN_ROLE_CHARS = 1_000  # Shorter instructions do not identify an agent's role.
ROLE_SHARE = 0.25  # The beginning of the instructions that all requests of a role share.

ANSWER_ID = re.compile(r"[a-z]+_([0-9a-f]{32})(?:_\d+)?")  # An id made by AnswerWriter.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientExchange:
    """A client's request with its session.

    ``words`` is the person's new message, or None if the request has only tool results. ``known``
    is the accepted message if the request was sent before, else None. ``results`` are the results
    of the client's tools."""

    asked: ClientRequest
    session: Session
    user: User
    client_id: str
    known: AcceptedMessage | None
    words: MessageContent | None
    results: list[tuple[ToolCall, ToolResult]] = field(default_factory=list)
    attachments: list[str] = field(default_factory=list)


def open_exchange(request: HttpRequest, slug: str, asked: ClientRequest) -> ClientExchange:
    """Find or create the request's session and save its files. Raise the errors of the archive."""
    workspace, _ = get_workspace_for(request, slug, to=WRITE)
    check_message_text(asked.words.text, may_be_empty=bool(asked.words.files or asked.results))
    user = caller_of(request).user
    # If the same request is sent again, its client id begins with the same text, by which its run
    # is found.
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
    # The request counts as sent before if it has an idempotency key or earlier messages, which
    # make it unique, if the client says that it is a retry, or if its run ended without an answer.
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
    # For a request that was sent before, use the session's runs as they were at the first time,
    # so that the new message is the same.
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
    # Return the beginning of the client ids of runs for the person's messages before the last
    # answer and the first ``count`` blocks after it.
    said = list_said([*asked.before, *asked.said[:count]])
    return f"{asked.channel}-{_digest(dump_json(said))[:20]}"


def _said_again(asked: ClientRequest) -> range:
    # Return the possible numbers of blocks after the last answer that were sent before.
    return range(1, len(asked.said))[:MAX_REPEATED_PIECES]


def _read_words(
    last: Run | None, asked: ClientRequest, late: Sequence[tuple[ToolCall, ToolResult]]
) -> MessageContent:
    """Return the person's new message.

    A client also repeats messages whose answers it did not receive; those that the session has
    already, up to the message of the run ``last``, are left out. Tool results that arrive after
    their run was interrupted are added as text."""
    words = asked.words
    missed = ""
    # Only earlier messages show that an answer was not received. Without them, the message counts
    # as a new one unless its run ended without an answer.
    if last is not None and (asked.before or last.state in UNANSWERED):
        missed = last.client_id
    for count in _said_again(asked) if missed and not asked.results else ():
        if missed.startswith(_said_id(asked, count)):
            words = read_words(asked.said[count:])
    told = [f"[Result of {call.name}]\n{gave.output}" for call, gave in late]
    return words._replace(text="\n\n".join([*told, words.text] if words.text else told))


def _key_of(request: HttpRequest, asked: ClientRequest, user: User) -> str:
    # Return the session's key. A request without one that has an ``Idempotency-Key`` gets a
    # session key made from it, so that a retry finds the same session.
    if given := request.headers.get("Loom-Session-Key", ""):
        return check_key(given)
    if asked.results or asked.answer_id:
        return ""  # the results or the answer determine the session
    if not asked.user_key:
        once = request.headers.get(KEY_HEADER, "")
        digest = sha256(f"{user.pk} {once}".encode()).hexdigest()
        return f"{asked.channel}:once-{digest}" if once else ""
    # Agents that Claude Code starts have the same user id, so the agent's id is added.
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
    """Return the session that a request without a session key continues, or None.

    It is the session of the previous answer or of the tool calls that the request names, else the
    session of an earlier attempt of the request, else the session that has the request's earlier
    messages. Raise Rejected if the named answer does not exist."""
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
    # Programs that store conversations themselves send the whole conversation each time. Find the
    # session that ends with the same messages in the same order and the same answers.
    recent = own.order_by("-last_active_at").values("pk")[:MAX_CONTINUED_SESSIONS]
    runs = Run.objects.filter(session__in=recent).select_related("session").order_by("-pk")
    sent = runs.filter(client_id__startswith=beginning).first()
    if sent is not None and (is_retry or sent.state in UNANSWERED):
        return sent.session
    read = list(READERS[asked.channel](asked.before))
    told = _without_space("".join(turn.content for turn in read if turn.role == ASSISTANT))
    # The client may not have received the answer to its last messages, or only a part of it.
    ways = [
        runs.filter(client_id__startswith=_said_id(asked, count))
        for count in (0, *_said_again(asked))
        if list_said([*asked.before, *asked.said[:count]])
    ]
    # Programs also change their earlier messages (dates, lists of files), so search by the id of
    # the last tool call too.
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
    """Return whether the request's instructions begin like those of the session.

    An agent may change the rest of its instructions. Requests in another role, such as those for
    a title or for facts to remember, belong to another conversation."""
    kept, given = session.instructions, asked.instructions
    if len(kept) < MIN_ROLE_CHARS or not given:
        return True
    return given.startswith(kept[: int(len(kept) * ROLE_SHARE)])


def _has_same_answers(run: Run, told: str, *, is_whole: bool) -> bool:
    """Return whether ``told`` has the last answers of the run's session, in order.

    ``told`` may have more or less of answers that were broken off. If not ``is_whole``, it may
    also have only a part of the answer of ``run``."""
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
    # White space is ignored because programs join the parts of an answer in different ways.
    return "".join(text.split())


def _find_call(own: QuerySet[Session], asked: ClientRequest) -> ToolCall:
    """Return the newest tool call of the request's last result. Raise Rejected if there is none."""
    call_id = str(asked.results[-1].get("tool_use_id", ""))
    # Some servers reuse call ids, so the name and the input must match the client's call too.
    answer = READERS[asked.channel](asked.before[-1:])
    told = {call.get("id"): call for turn in answer for call in calls_of(turn)}.get(call_id)
    calls = ToolCall.objects.filter(call_id=call_id, session__in=own).order_by("-pk")
    for call in calls.select_related("session")[:MAX_CALLS_OF_ID] if is_storable(call_id) else ():
        given = (call.name, load_json(call.arguments, default={}))
        if told is None or given == (told.get("name"), told.get("input")):
            return call
    raise Rejected(f"There is no call {call_id}.", code="no_such_call")


def _require_last(session: Session, asked: ClientRequest) -> None:
    # The archive is linear, so a request that continues an earlier answer cannot be answered.
    newest = session.runs.order_by("-pk").values_list("uuid", flat=True).first()
    if newest is not None and newest.hex not in asked.answer_id:
        raise Conflict("The session has later messages. Continue from its last answer.")


def _follow(session: Session, asked: ClientRequest) -> None:
    # Import the earlier messages if the session is new. Apply the client's model and instructions.
    if asked.before and session.turn_count == 0:
        brought = prepare_messages(asked.before, format=asked.channel, model=asked.model)
        with suppress(Conflict):  # another request has written to the session first
            import_history(session, brought, user_pk=session.owner_id)
    if session.model != asked.model:
        choose_model(session, model=asked.model)
    if asked.instructions and session.instructions != asked.instructions:
        archive_sessions.instruct_session(session, instructions=asked.instructions)


def was_said_before(run_pk: int, text: str, choices: RunChoices) -> bool:
    """Return whether the run's message has this text and its first choices are these."""
    run = Run.objects.get(pk=run_pk)
    if run.kind == CONTINUE:  # the request had only tool results
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
