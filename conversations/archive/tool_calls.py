"""Tool calls: their records from the question and the decision to the start and end.

A call changes its state only by conditional updates. If two processes, or a decision and a stop,
change a call at the same time, one of them wins and the other gets an error. Code that changes a
call locks the session first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Count, Q
from django.utils import timezone

from conversations.domain import runs as run_states
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.events import (
    APPROVAL,
    APPROVAL_DECIDED,
    TOOL_CALL_COMPLETED,
    Info,
    ToolCallCompleted,
)
from conversations.domain.messages import say
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.text import dump_json, load_json, load_object
from conversations.domain.tool_calls import (
    ALWAYS,
    BY_POLICY,
    DENY,
    INTERRUPTED,
    ONCE,
    OPEN_STATES,
    RUNNING,
    STARTED,
    STOPPED,
    WAITING,
    ApprovalRequest,
    CallEnding,
    ToolScope,
    decide,
    is_described_otherwise,
    is_kind,
    make_result_payloads,
    make_result_turn,
    read_asked,
)
from conversations.domain.tool_questions import (
    ACCEPT,
    CANCEL,
    DECLINE,
    ToolQuestion,
    make_answered_notice,
    read_content,
    read_question,
)
from conversations.domain.turns import TOOL, read_tool_outcome
from conversations.feature import features
from conversations.models import ChatEvent, Run, Session, ToolCall, ToolPermission, Workspace

from .append import (
    LockedSession,
    NewEvent,
    PreparedEvent,
    Row,
    RunLost,
    joined_transaction,
    lock_session,
    locked_session,
    require_first,
)
from .journal import read_payload
from .sessions import read_window_facts
from .turns import read_turn

# The kinds of calls that are always allowed in a workspace, and the rules for a call


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules:
    """The rules for tool calls. Kinds whose keys are in ``allowed`` run without a question."""

    scope: ToolScope
    allowed: frozenset[str]

    def decide(self, *, effect: str, kind: str) -> str:
        """Return ``run``, ``ask`` or ``refuse`` for a call of this kind."""
        return decide(self.scope, effect=effect, kind=kind, allowed=self.allowed)


def read_rules(session_pk: int, *, user_pk: int | None) -> ToolRules:
    """Return the rules that are in force now for the person whose message is answered.

    If ``user_pk`` is None, the message is from a program of the server, which has the rights of
    members.
    """
    facts = read_window_facts(session_pk, user_pk=user_pk)
    return ToolRules(scope=facts.scope, allowed=allowed_kinds(session_pk))


def allowed_kinds(session_pk: int) -> frozenset[str]:
    """Return the keys of the kinds that are always allowed in the session's workspace."""
    permissions = ToolPermission.objects.filter(workspace__sessions=session_pk, revoked_at=None)
    return frozenset(filter(is_kind, permissions.order_by("pk").values_list("kind", flat=True)))


def grant_permission(workspace_pk: int, *, kind: str, label: str, user_pk: int | None) -> None:
    """Allow a kind of call in a workspace until the permission is revoked.

    If the kind is already allowed, nothing changes. Permissions for the same tool with a different
    description by its server are revoked.
    """
    in_force = ToolPermission.objects.filter(workspace=workspace_pk, revoked_at=None)
    former = [p.pk for p in in_force if is_described_otherwise(kind, p.kind)]
    if former:
        in_force.filter(pk__in=former).update(revoked_at=timezone.now(), revoked_by_id=user_pk)
    try:
        with transaction.atomic():
            ToolPermission.objects.create(
                workspace_id=workspace_pk,
                kind=kind,
                label=label[:255],
                granted_by_id=user_pk,
                granted_at=timezone.now(),
            )
    except IntegrityError:
        if not in_force.filter(kind=kind).exists():
            raise


def list_permissions(workspace: Workspace) -> list[ToolPermission]:
    """Return the permissions in force and who granted them, in the order of granting."""
    permissions = ToolPermission.objects.filter(workspace=workspace, revoked_at=None).order_by("pk")
    return list(permissions.select_related("granted_by"))


def revoke_permission(workspace: Workspace, *, pk: int, user_pk: int | None) -> None:
    """Revoke a permission. Raise NotFound if the workspace has no such permission.

    If the permission is already revoked, nothing changes.
    """
    permissions = ToolPermission.objects.filter(workspace=workspace, pk=pk)
    if not permissions.exists():
        raise NotFound("This permission does not exist in this workspace.")
    permissions.filter(revoked_at=None).update(revoked_at=timezone.now(), revoked_by_id=user_pk)


MAX_REASON_CHARS = 2_000
"""The maximum length of a person's reason, which the model reads."""

NOBODY = say("a command")
"""The name that is shown as the decider if no person decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallRecord:
    """The record of a tool call.

    ``stopped_by`` is the name of the person who asked to stop the call, and ``decided_by`` is the
    name of the person who decided about it. Both can be empty.
    """

    pk: int
    uuid: UUID
    call_id: str
    name: str
    arguments: Any
    state: str
    asked: ApprovalRequest | None
    decision: str
    decided_by: str
    reason: str
    stopped_by: str
    question: ToolQuestion | None
    answer: dict[str, Any] | None

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    @property
    def open_question(self) -> ToolQuestion | None:
        """Return the question that waits for an answer, or None."""
        return self.question if self.state == RUNNING and self.answer is None else None


def read_calls(run_pk: int, *, turn: int) -> list[ToolCallRecord]:
    """Return the tool calls of one answer, in order."""
    return _records(ToolCall.objects.filter(run=run_pk, turn_number=turn))


def read_open_calls(run_pk: int) -> list[ToolCallRecord]:
    return _records(ToolCall.objects.filter(run=run_pk, state__in=OPEN_STATES))


def read_decisions(
    run_pk: int, session_pk: int, *, user_pk: int | None
) -> tuple[list[ToolCallRecord], ToolRules | None]:
    """Return a run's open calls, and the rules in force if a call waits for a decision."""
    calls = read_open_calls(run_pk)
    waits = any(call.state == WAITING and not call.decision for call in calls)
    return calls, read_rules(session_pk, user_pk=user_pk) if waits else None


def _records(calls: Any) -> list[ToolCallRecord]:
    rows = calls.order_by("pk").select_related("decided_by", "stop_requested_by")
    return [_record(call) for call in rows]


def _record(call: ToolCall) -> ToolCallRecord:
    return ToolCallRecord(
        pk=call.pk,
        uuid=call.uuid,
        call_id=call.call_id,
        name=call.name,
        arguments=load_json(call.arguments, default=None),
        state=call.state,
        asked=_read_asked(call),
        decision=call.decision,
        decided_by=_username(call.decided_by) if call.decided_at else "",
        reason=call.reason,
        stopped_by=_username(call.stop_requested_by) if call.stop_requested_at else "",
        question=_read_question(call),
        answer=load_json(call.answer, default=None) if call.answer else None,
    )


def _read_asked(call: ToolCall) -> ApprovalRequest | None:
    # A waiting call always has a request, also if what is stored is damaged. Without one, it would
    # run without a decision.
    return read_asked(load_object(call.asked)) if call.asked or call.state == WAITING else None


def _read_question(call: ToolCall) -> ToolQuestion | None:
    return read_question(load_json(call.question, default=None)) if call.question else None


def _username(user: User | None) -> str:
    return user.get_username() if user else NOBODY


def ask_for_calls(
    session_pk: int, *, questions: Sequence[tuple[int, ApprovalRequest, PreparedEvent]]
) -> list[Row]:
    """Let calls wait for a person, in one transaction, and return the appended rows.

    Each item of ``questions`` has the call's primary key, the approval request and the row that
    shows the request.
    """
    with locked_session(session_pk) as locked:
        for pk, asked, _ in questions:
            started = ToolCall.objects.filter(pk=pk, state=STARTED)
            _require_changed(
                started.update(
                    state=WAITING, asked=dump_json(asked.as_data()), asked_at=timezone.now()
                )
            )
        events = [event for _, _, event in questions]
        for feature in features():
            feature.on_approval_asked(session_pk, [pk for pk, _, _ in questions])
        return locked.append(events=events).rows


def begin_call(
    session_pk: int, *, run_pk: int, owner: str, call_pk: int, decision: str = ""
) -> None:
    """Record that a call starts now. Call this before the tool does anything.

    ``decision`` says why the call may run if no person decided. Raise Conflict if the call has
    already started or ended, and RunLost if the run has ended or belongs to another process.
    """
    columns = {"decision": decision} if decision else {}
    with joined_transaction():
        lock_session(session_pk)
        if not Run.objects.filter(pk=run_pk, owner=owner, state__in=ACTIVE_STATES).exists():
            raise RunLost
        open_calls = ToolCall.objects.filter(pk=call_pk, state__in=(STARTED, WAITING))
        _require_changed(open_calls.update(state=RUNNING, started_at=timezone.now(), **columns))
        show_run_waiting(run_pk, waits=False)


def _require_changed(changed: int) -> None:
    if not changed:
        raise Conflict("This call was started or ended in the meantime.", code="call_ended")


def show_run_waiting(run_pk: int, *, waits: bool) -> None:
    """Set whether an active run does nothing but wait for a person."""
    if waits:
        before, after = run_states.RUNNING, run_states.WAITING_APPROVAL
    else:
        before, after = run_states.WAITING_APPROVAL, run_states.RUNNING
    Run.objects.filter(pk=run_pk, state=before).update(state=after)


def end_call(call_pk: int, *, ending: CallEnding, result_turn: int) -> None:
    """Record how a call ended. Raise Conflict if it has already ended."""
    _require_changed(
        ToolCall.objects.filter(pk=call_pk, state__in=OPEN_STATES).update(
            state=ending.state,
            ok=ending.ok,
            result_turn=result_turn,
            duration_ms=ending.duration_ms,
        )
    )


_ENDINGS = {
    (STOPPED, RUNNING): "Stopped before it ended; changes made until then stay.",
    (INTERRUPTED, RUNNING): (
        "The server stopped during this call; changes made until then stay. The call is not "
        "repeated."
    ),
    (INTERRUPTED, STARTED): "The server stopped before this call started. Nothing was done.",
    (INTERRUPTED, WAITING): "The server stopped before this call started. Nothing was done.",
}


def close_open_calls(
    session: LockedSession,
    run_pk: int,
    *,
    state: str,
    only: Sequence[str] = OPEN_STATES,
    outputs: Mapping[int, str] | None = None,
) -> list[Row]:
    """End a run's open calls, each with a turn and a row.

    ``outputs`` holds the output that each call had shown, by the call's primary key.
    """
    calls = ToolCall.objects.filter(run=run_pk, state__in=only)
    rows: list[Row] = []
    for call in calls.select_related("decided_by", "stop_requested_by").order_by("pk"):
        record = _record(call)
        sentence = _ENDINGS.get(
            (state, record.state), "Stopped before it started. Nothing was done."
        )
        output = (outputs or {}).get(record.pk, "")
        began = call.started_at
        ending = CallEnding(
            call=str(record.uuid),
            call_id=record.call_id,
            name=record.name,
            arguments=record.arguments,
            ok=False,
            output=f"{sentence}\n\n{output}" if output else sentence,
            state=state,
            decision=record.decision,
            decided_by=record.decided_by,
            reason=record.reason,
            duration_ms=int((timezone.now() - began).total_seconds() * 1000) if began else 0,
        )
        payloads = make_result_payloads(ending)
        events = [NewEvent(payload=payload, new=0) for payload in payloads]
        if record.open_question is not None:
            unanswered = make_answered_notice(record.open_question, action=CANCEL)
            events.insert(0, NewEvent(payload=unanswered))
        appended = session.append(turns=[make_result_turn(ending)], events=events)
        end_call(record.pk, ending=ending, result_turn=appended.turns[0])
        rows += appended.rows
    return rows


def decide_call(
    session: Session, *, call: UUID, decision: str, user_pk: int | None, reason: str = ""
) -> list[Row]:
    """Record a person's decision about a waiting call.

    The first decision counts. The same decision by the same person appends nothing, and any other
    raises Conflict with the name and decision of the first person. ``always`` allows this kind of
    call in the workspace from now on.
    """
    with locked_session(session.pk) as locked:
        tool_call = find_call(session, call)
        if tool_call.decision or tool_call.state != WAITING:
            if tool_call.decision == decision and tool_call.decided_by_id == user_pk:
                return []
            raise Conflict(_why_not_decidable(tool_call), code="call_decided")
        record = _record(tool_call)
        request = record.asked or read_asked({})
        if decision == ALWAYS:
            if not is_kind(request.kind_key):
                raise Rejected(
                    "Calls like this one can only be allowed one at a time.", code="no_kind"
                )
            grant_permission(
                session.workspace_id,
                kind=request.kind_key,
                label=request.kind_label,
                user_pk=user_pk,
            )
        tool_call.decision, tool_call.decided_by_id = decision, user_pk
        tool_call.decided_at, tool_call.reason = timezone.now(), reason[:MAX_REASON_CHARS]
        tool_call.save(update_fields=["decision", "decided_by", "decided_at", "reason"])
        return _append_decision(locked, tool_call, request)


def ask_question(
    session_pk: int, *, call_pk: int, question: ToolQuestion, event: PreparedEvent
) -> list[Row]:
    """Let a running call wait for a person's answer. Raise Conflict if the call has ended."""
    with locked_session(session_pk) as locked:
        running = ToolCall.objects.filter(pk=call_pk, state=RUNNING)
        _require_changed(running.update(question=dump_json(question.as_data()), answer=""))
        for feature in features():
            feature.on_question_asked(session_pk, call_pk, question.id)
        return locked.append(events=[event]).rows


def answer_question(
    session: Session,
    *,
    call: UUID,
    question: str,
    action: str,
    content: Any = None,
    user_pk: int | None,
) -> list[Row]:
    """Record a person's answer to a question.

    The first answer counts, and the same answer again appends nothing. Raise Rejected if the answer
    does not fit the question, and Conflict if the question is over.
    """
    if action not in (ACCEPT, DECLINE):
        raise Rejected(
            "The action must be %(yes)s or %(no)s.", yes=ACCEPT, no=DECLINE, code="bad_action"
        )
    with locked_session(session.pk) as locked:
        tool_call, asked = find_question(session, call, question)
        accepted = read_content(asked, content) if action == ACCEPT and not asked.url else {}
        answer = {"action": action, "content": accepted, "user": user_pk}
        if tool_call.answer:
            first = load_json(tool_call.answer)
            if first == answer:
                return []
            name = _username(User.objects.filter(pk=first["user"]).first())
            raise Conflict("%(name)s has already answered.", name=name, code="question_answered")
        if tool_call.state != RUNNING:
            raise Conflict(
                "This call has ended, so the question no longer needs an answer.",
                code="question_over",
            )
        tool_call.answer = dump_json(answer)
        tool_call.save(update_fields=["answer"])
        by = _username(User.objects.filter(pk=user_pk).first() if user_pk else None)
        notice = make_answered_notice(asked, action=action, by=by, content=accepted)
        return locked.append(events=[NewEvent(payload=notice)]).rows


def find_question(session: Session, call: UUID, question: str) -> tuple[ToolCall, ToolQuestion]:
    """Return the call and its last question.

    Raise NotFound if the call does not exist, and Conflict if the question is not its last one.
    """
    tool_call = find_call(session, call)
    last_question = _read_question(tool_call)
    if last_question is None or last_question.id != question:
        raise Conflict("This question no longer needs an answer.", code="question_over")
    return tool_call, last_question


def find_call(session: Session, call: UUID) -> ToolCall:
    """Return the record of a call of this session. Raise NotFound if there is none."""
    calls = ToolCall.objects.filter(session=session.pk, uuid=call)
    calls = calls.select_related("run", "decided_by", "stop_requested_by")
    return require_first(calls, say("This call does not exist in this session."))


def require_decidable(session: Session, call: UUID) -> None:
    """Raise NotFound if the call does not exist, and Conflict if it ended without a decision."""
    tool_call = find_call(session, call)
    if tool_call.state not in OPEN_STATES and not tool_call.decision:
        raise Conflict(_why_not_decidable(tool_call), code="call_ended")


def _append_decision(session: LockedSession, call: ToolCall, request: ApprovalRequest) -> list[Row]:
    call.refresh_from_db(fields=["decided_by"])
    by = "" if call.decision == BY_POLICY else _username(call.decided_by)
    sentences = {
        ONCE: say("Allowed by %(name)s: %(what)s", name=by, what=request.summary),
        ALWAYS: say("Always allowed by %(name)s: %(what)s", name=by, what=request.kind_label),
        BY_POLICY: say("Always allowed here: %(what)s", what=request.kind_label or request.summary),
        DENY: say("Denied by %(name)s: %(what)s", name=by, what=call.reason or request.summary),
    }
    data = {
        "call": str(call.uuid),
        "call_id": call.call_id,
        "decision": call.decision,
        "by": by,
        "reason": call.reason,
    }
    payload = Info(text=sentences[call.decision], kind=APPROVAL, code=APPROVAL_DECIDED, data=data)
    return session.append(events=[NewEvent(payload=payload)]).rows


def _why_not_decidable(call: ToolCall) -> str:
    if call.decision == BY_POLICY:
        return say(
            "This call was already approved because calls of its kind are always allowed here."
        )
    if call.decision:
        name = _username(call.decided_by)
        if call.decision == DENY:
            return say("%(name)s has already denied this call.", name=name)
        return say("%(name)s has already allowed this call.", name=name)
    if call.state == STOPPED:
        return say("This call was stopped; it no longer needs a decision.")
    if call.state in (STARTED, RUNNING):
        return say("This call did not ask for approval.")
    return say("This call has ended; it no longer needs a decision.")


def request_call_stop(session: Session, *, call: UUID, user_pk: int | None) -> int:
    """Ask a call to stop, whichever process executes it, and return the primary key of its run.

    A second request changes nothing. Raise Conflict if the call has ended.
    """
    with joined_transaction():
        lock_session(session.pk)
        tool_call = find_call(session, call)
        if tool_call.state not in OPEN_STATES:
            raise Conflict("This call has already ended.", code="call_ended")
        if tool_call.stop_requested_at is None:
            tool_call.stop_requested_at, tool_call.stop_requested_by_id = timezone.now(), user_pk
            tool_call.save(update_fields=["stop_requested_at", "stop_requested_by"])
        return tool_call.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDetails:
    """The details of a call for people and programs.

    ``completed`` is the payload of the call's row. It is None while the call is open, and in lists.
    ``changed_files`` is the number of files that the call is known to have touched.
    """

    call: ToolCall
    changed_files: int
    completed: ToolCallCompleted | None = None

    @property
    def asked(self) -> ApprovalRequest | None:
        try:
            return _read_asked(self.call)
        except ValueError:  # damaged
            return None

    @property
    def question(self) -> ToolQuestion | None:
        """Return the question that waits for an answer, or None."""
        is_open = self.call.state == RUNNING and not self.call.answer
        return _read_question(self.call) if is_open else None

    @property
    def decided_by(self) -> str:
        return self.call.decided_by.get_username() if self.call.decided_by else ""

    @property
    def stopped_by(self) -> str:
        by = self.call.stop_requested_by
        return by.get_username() if by else ""


def read_tool_call_details(session: Session, call: UUID) -> ToolCallDetails:
    """Return the details of a call of this session. Raise NotFound if there is none."""
    tool_call = find_call(session, call)
    changed_files = tool_call.file_changes.values("path").distinct().count()
    completed = None
    events = ChatEvent.objects.filter(
        session=session.pk, turn_number=tool_call.result_turn, event_type=TOOL_CALL_COMPLETED
    ).order_by("seq")
    texts = events.values_list("payload", flat=True)[:20]
    for text in texts if tool_call.result_turn is not None else ():
        payload = read_payload(TOOL_CALL_COMPLETED, text)
        if isinstance(payload, ToolCallCompleted) and payload.call in ("", str(tool_call.uuid)):
            completed = payload
            break
    return ToolCallDetails(call=tool_call, changed_files=changed_files, completed=completed)


def list_tool_call_details(
    session_pk: int,
    *,
    start: int | None,
    is_back: bool,
    limit: int,
    is_open: bool,
) -> list[ToolCallDetails]:
    """Return calls after ``start``, a primary key, or from the first call if ``start`` is None.

    With ``is_back``, return calls before ``start``. The nearest call comes first. With ``is_open``,
    return only calls that have not ended.
    """
    calls = ToolCall.objects.filter(session=session_pk)
    if is_open:
        # Search only active runs, so that the cost does not grow with the session's age.
        runs = Run.objects.filter(session=session_pk, state__in=ACTIVE_STATES)
        calls = ToolCall.objects.filter(run__in=runs, state__in=OPEN_STATES)
    if start is not None:
        calls = calls.filter(Q(pk__lt=start) if is_back else Q(pk__gt=start))
    rows = calls.select_related("run", "decided_by", "stop_requested_by").annotate(
        changed=Count("file_changes__path", distinct=True)
    )
    rows = rows.order_by("-pk" if is_back else "pk")
    return [ToolCallDetails(call=call, changed_files=call.changed) for call in rows[:limit]]


def read_call_output(session: Session, call: UUID) -> tuple[str, str]:
    """Return the tool's name and the call's whole output, which is empty while the call is open.

    Raise NotFound if the call does not exist.
    """
    tool_call = find_call(session, call)
    if tool_call.result_turn is None:
        return tool_call.name, ""
    return read_turn_output(session.pk, tool_call.result_turn)


def read_turn_output(session_pk: int, number: int) -> tuple[str, str]:
    """Return the tool's name and output from a turn with a call's result.

    This is for calls without a record. For any other turn, return an empty name and the turn's
    text. Raise NotFound if the turn does not exist.
    """
    turn = read_turn(session_pk, number)
    if turn is None:
        raise NotFound("This turn does not exist in this session.")
    if turn.role != TOOL:
        return "", turn.content
    _, output, error = read_tool_outcome(turn)
    return turn.tool_name or "", output or error
