"""Finding the session of a client's request, and the part of the request that is new.

If the session exists, only the messages after the last answer are used, because the archive has
the earlier ones. If the session begins with the request, the earlier messages are imported too.
"""

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from conversations.domain.errors import Conflict, KeyMismatch, Rejected
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

from .client_request import (
    ClientRequest,
    list_person_messages,
    read_person_content,
    read_result_blocks,
)

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

    ``content`` is the person's new message, or None if the request has only tool results.
    ``accepted`` is the stored message if the request was sent before, else None. ``results`` are
    the results of the client's tools."""

    client_request: ClientRequest
    session: Session
    user: User
    client_id: str
    accepted: AcceptedMessage | None
    content: MessageContent | None
    results: list[tuple[ToolCall, ToolResult]]
    attachments: list[str]


def open_exchange(request: HttpRequest, slug: str, client_request: ClientRequest) -> ClientExchange:
    """Find or create the request's session and save its files. Raise the errors of the archive."""
    workspace, _ = get_workspace_for(request, slug, to=WRITE)
    may_be_empty = bool(client_request.content.files or client_request.results)
    check_message_text(client_request.content.text, may_be_empty=may_be_empty)
    user = caller_of(request).user
    # If the same request is sent again, its client id begins with the same text, by which its run
    # is found.
    idempotency_key = request.headers.get(KEY_HEADER, "")
    if idempotency_key:
        id_prefix = f"{client_request.channel}-{_digest(f'key {idempotency_key}')}"
    else:
        messages_prefix = _make_id_prefix(client_request, len(client_request.new_messages))
        id_prefix = messages_prefix + _digest(client_request.identity)[:20]
    is_retry = request.headers.get("X-Stainless-Retry-Count", "0") != "0"
    session = _open_session(request, workspace, client_request, id_prefix, is_retry=is_retry)
    _follow(session, client_request)
    client_id = f"{id_prefix}-{uuid4().hex[:12]}"
    # The request counts as sent before if it has an idempotency key or earlier messages, which
    # make it unique, if the client says that it is a retry, or if its run ended without an answer.
    is_unique = bool(idempotency_key or client_request.earlier_messages or client_request.answer_id)
    runs = Run.objects.filter(session=session.pk, client_id__startswith=id_prefix)
    newest = runs.order_by("-pk").first()
    if newest is not None and (is_unique or is_retry or newest.state in UNANSWERED):
        client_id = newest.client_id
    elif is_unique:
        client_id = id_prefix
    accepted = find_accepted(session, client_id)
    results = [_read_result(session, user, block) for block in client_request.results]
    late = [(call, result) for call, result in results if call.state == CALL_INTERRUPTED]
    # For a request that was sent before, use the session's runs as they were at the first time,
    # so that the new message is the same.
    earlier = session.runs.filter(pk__lt=runs.earliest("pk").pk) if accepted else session.runs
    content = _read_new_content(earlier.order_by("-pk").first(), client_request, late)
    if accepted is None:
        if client_request.answer_id:
            _require_last(session, client_request)
    elif idempotency_key and not is_same_request(
        accepted.run_pk, content.text, client_request.choices
    ):
        raise KeyMismatch("This key was already used in this session for another request.")
    results = [item for item in results if item not in late]
    return ClientExchange(
        client_request=client_request,
        session=session,
        user=user,
        client_id=client_id,
        accepted=accepted,
        content=content if content.text or content.files or not results else None,
        results=results,
        attachments=save_message_files(
            session, content.files, client_id=client_id, user_pk=user.pk
        ),
    )


def _open_session(
    request: HttpRequest,
    workspace: Workspace,
    client_request: ClientRequest,
    id_prefix: str,
    *,
    is_retry: bool,
) -> Session:
    user = caller_of(request).user
    values: dict[str, Any] = {
        "channel": client_request.channel,
        "instructions": client_request.instructions,
        "model": client_request.model,
    }
    if key := _key_of(request, client_request, user):
        session = archive_sessions.get_or_create_by_key(workspace, key=key, owner=user, **values)
        if "Loom-Session-Key" in request.headers or _has_same_role(session, client_request):
            return session
    found = _find_session(request, workspace, client_request, id_prefix, is_retry=is_retry)
    return found or archive_sessions.create_session(workspace, owner=user, **values)


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _make_id_prefix(client_request: ClientRequest, count: int) -> str:
    # Return the beginning of the client ids of runs for the person's messages before the last
    # answer and the first ``count`` blocks after it.
    person_messages = list_person_messages(_messages_through(client_request, count))
    return f"{client_request.channel}-{_digest(dump_json(person_messages))[:20]}"


def _messages_through(client_request: ClientRequest, count: int) -> list[dict[str, Any]]:
    return [*client_request.earlier_messages, *client_request.new_messages[:count]]


def _repeated_counts(client_request: ClientRequest) -> range:
    # Return the possible numbers of blocks after the last answer that were sent before.
    return range(1, len(client_request.new_messages))[:MAX_REPEATED_PIECES]


def _read_new_content(
    last: Run | None, client_request: ClientRequest, late: Sequence[tuple[ToolCall, ToolResult]]
) -> MessageContent:
    """Return the person's new message.

    A client also repeats messages whose answers it did not receive; those that the session has
    already, up to the message of the run ``last``, are left out. Tool results that arrive after
    their run was interrupted are added as text."""
    content = client_request.content
    # Only earlier messages show that an answer was not received. Without them, the message counts
    # as a new one unless its run ended without an answer.
    if (
        last is not None
        and not client_request.results
        and (client_request.earlier_messages or last.state in UNANSWERED)
    ):
        for count in _repeated_counts(client_request):
            if last.client_id.startswith(_make_id_prefix(client_request, count)):
                content = read_person_content(client_request.new_messages[count:])
    texts = [f"[Result of {call.name}]\n{result.output}" for call, result in late]
    if content.text:
        texts.append(content.text)
    return content._replace(text="\n\n".join(texts))


def _key_of(request: HttpRequest, client_request: ClientRequest, user: User) -> str:
    # Return the session's key. A request without one that has an ``Idempotency-Key`` gets a
    # session key made from it, so that a retry finds the same session.
    if key := request.headers.get("Loom-Session-Key", ""):
        return check_key(key)
    if client_request.results or client_request.answer_id:
        return ""  # the results or the answer determine the session
    if not client_request.user_key:
        idempotency_key = request.headers.get(KEY_HEADER, "")
        digest = sha256(f"{user.pk} {idempotency_key}".encode()).hexdigest()
        return f"{client_request.channel}:once-{digest}" if idempotency_key else ""
    # Agents that Claude Code starts have the same user id, so the agent's id is added.
    agent = request.headers.get("X-Claude-Code-Agent-Id", "")
    named = f"{client_request.user_key}:{agent}" if agent else client_request.user_key
    try:
        return check_key(f"{client_request.channel}:{named}")
    except Rejected:
        return f"{client_request.channel}:{sha256(dump_json(named).encode()).hexdigest()}"


def _find_session(
    request: HttpRequest,
    workspace: Workspace,
    client_request: ClientRequest,
    id_prefix: str,
    *,
    is_retry: bool,
) -> Session | None:
    """Return the session that a request without a session key continues, or None.

    It is the session of the previous answer or of the tool calls that the request names, else the
    session of an earlier attempt of the request, else the session that has the request's earlier
    messages. Raise Rejected if the named answer does not exist."""
    sessions = Session.objects.filter(
        workspace=workspace, owner=caller_of(request).user, archived_at=None
    ).order_by("-pk")
    session = None
    if client_request.answer_id:
        match = ANSWER_ID.fullmatch(client_request.answer_id)
        session = sessions.filter(runs__uuid=UUID(match[1])).first() if match else None
        if session is None:
            reason = f"Previous response with id '{client_request.answer_id}' not found."
            raise Rejected(reason, code="previous_response_not_found")
    elif client_request.results:
        session = _find_call(sessions, client_request).session
    else:
        unnamed = sessions.filter(channel=client_request.channel, key=None)
        session = _find_continued(unnamed, client_request, id_prefix, is_retry=is_retry)
    return None if session is None else get_session_for(request, session.uuid, to=WRITE)[0]


def _find_continued(
    sessions: QuerySet[Session], client_request: ClientRequest, id_prefix: str, *, is_retry: bool
) -> Session | None:
    # Programs that store conversations themselves send the whole conversation each time. Find the
    # session that ends with the same messages in the same order and the same answers.
    recent = sessions.order_by("-last_active_at").values("pk")[:MAX_CONTINUED_SESSIONS]
    runs = Run.objects.filter(session__in=recent).select_related("session").order_by("-pk")
    sent = runs.filter(client_id__startswith=id_prefix).first()
    if sent is not None and (is_retry or sent.state in UNANSWERED):
        return sent.session
    earlier_turns = list(READERS[client_request.channel](client_request.earlier_messages))
    answers = "".join(turn.content for turn in earlier_turns if turn.role == ASSISTANT)
    client_answers = _without_space(answers)
    # The client may not have received the answer to its last messages, or only a part of it.
    candidates = [
        runs.filter(client_id__startswith=_make_id_prefix(client_request, count))
        for count in (0, *_repeated_counts(client_request))
        if list_person_messages(_messages_through(client_request, count))
    ]
    # Programs also change their earlier messages (dates, lists of files), so search by the id of
    # the last tool call too.
    call_ids = [call.get("id") for turn in earlier_turns for call in calls_of(turn)][-1:]
    candidates.append(runs.filter(session__tool_calls__call_id__in=call_ids).distinct())
    for candidate_runs in candidates:
        newest_runs = [
            run
            for run in candidate_runs[:MAX_CALLS_OF_ID]
            if _has_same_role(run.session, client_request)
            and not run.session.runs.filter(pk__gt=run.pk).exists()
        ]
        for is_whole in (True, False):
            for run in newest_runs:
                if _has_same_answers(run, client_answers, is_whole=is_whole):
                    return run.session
    return None


def _has_same_role(session: Session, client_request: ClientRequest) -> bool:
    """Return whether the request's instructions begin like those of the session.

    An agent may change the rest of its instructions. Requests in another role, such as those for
    a title or for facts to remember, belong to another conversation."""
    session_instructions, instructions = session.instructions, client_request.instructions
    if len(session_instructions) < MIN_ROLE_CHARS or not instructions:
        return True
    return instructions.startswith(
        session_instructions[: int(len(session_instructions) * ROLE_SHARE)]
    )


def _has_same_answers(run: Run, client_answers: str, *, is_whole: bool) -> bool:
    """Return whether ``client_answers`` has the last answers of the run's session, in order.

    ``client_answers`` may have more or less of answers that were broken off. If not ``is_whole``,
    it may also have only a part of the answer of ``run``."""
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
    end = len(client_answers)
    for text in reversed(answers):
        start = client_answers.rfind(text, 0, end)
        extra = client_answers[start + len(text) : end]
        is_part = any(part.startswith(extra) for part in (*parts.values(), *broken.values()))
        is_longer = any(part and extra.startswith(part) for part in broken.values())
        if start < 0 or (extra and not is_part and not is_longer):
            return False
        end = start
    return bool(answers) or run.state in UNANSWERED


def _without_space(text: str) -> str:
    # White space is ignored because programs join the parts of an answer in different ways.
    return "".join(text.split())


def _find_call(sessions: QuerySet[Session], client_request: ClientRequest) -> ToolCall:
    """Return the newest tool call of the request's last result. Raise Rejected if there is none."""
    call_id = str(client_request.results[-1].get("tool_use_id", ""))
    # Some servers reuse call ids, so the name and the input must match the client's call too.
    answer = READERS[client_request.channel](client_request.earlier_messages[-1:])
    client_call = {call.get("id"): call for turn in answer for call in calls_of(turn)}.get(call_id)
    calls = ToolCall.objects.filter(call_id=call_id, session__in=sessions).order_by("-pk")
    if is_storable(call_id):
        for call in calls.select_related("session")[:MAX_CALLS_OF_ID]:
            stored = (call.name, load_json(call.arguments, default={}))
            if client_call is None or stored == (client_call.get("name"), client_call.get("input")):
                return call
    raise Rejected(f"There is no call {call_id}.", code="no_such_call")


def _require_last(session: Session, client_request: ClientRequest) -> None:
    # The archive is linear, so a request that continues an earlier answer cannot be answered.
    newest = session.runs.order_by("-pk").values_list("uuid", flat=True).first()
    if newest is not None and newest.hex not in client_request.answer_id:
        raise Conflict("The session has later messages. Continue from its last answer.")


def _follow(session: Session, client_request: ClientRequest) -> None:
    # Import the earlier messages if the session is new. Apply the client's model and instructions.
    if client_request.earlier_messages and session.turn_count == 0:
        history = prepare_messages(
            client_request.earlier_messages,
            format=client_request.channel,
            model=client_request.model,
        )
        with suppress(Conflict):  # another request has written to the session first
            import_history(session, history, user_pk=session.owner_id)
    if session.model != client_request.model:
        choose_model(session, model=client_request.model)
    if client_request.instructions and session.instructions != client_request.instructions:
        archive_sessions.instruct_session(session, instructions=client_request.instructions)


def is_same_request(run_pk: int, text: str, choices: RunChoices) -> bool:
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
    saved_blocks = []
    # The files of a call that has ended are not saved again.
    unsaved = blocks if call.state in OPEN_STATES else []
    for result_block in unsaved:
        if result_block.get("type") != "text":
            file = read_new_file(result_block)
            attachment = save_attachment(
                session.pk,
                data=file.data,
                name=file.name,
                user_pk=user.pk,
                turn=call.turn_number,
                content=examine(file.data, file.name),
            )
            saved_blocks.append(attachment_block(attachment))
    text = text_of_blocks(blocks)
    return call, ToolResult(ok=block.get("is_error") is not True, output=text, blocks=saved_blocks)
