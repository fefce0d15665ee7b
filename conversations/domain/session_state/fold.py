"""Adding a turn to the state."""

from conversations.domain.text import one_line
from conversations.domain.turns import ASSISTANT, SYSTEM, TOOL, USER, AnyTurn

from .facts import (
    DELETE,
    EDIT,
    FILE_KINDS,
    GIT,
    MOVE,
    PUT_BACK,
    READ,
    SHELL,
    STATE,
    WRITE,
    CallOutcome,
    TurnFacts,
    read_facts,
)
from .statements import covers
from .values import (
    COMMIT,
    ITEM_CHARS,
    MAX_DECISIONS,
    MAX_ERRORS,
    MAX_FILES,
    MAX_OPEN_FAILURES,
    MAX_STRUCK,
    NOTED,
    SAID,
    Call,
    Failure,
    File,
    Focus,
    Resolved,
    SessionState,
    StateDecision,
)

MAX_FIXES = 2


def fold_turn(state: SessionState, number: int, turn: AnyTurn) -> SessionState:
    """The state after this turn, which is on the active path."""
    return fold_facts(state, number, read_facts(turn))


def fold_facts(state: SessionState, number: int, facts: TurnFacts) -> SessionState:
    state = state._replace(tokens=state.tokens + facts.tokens)
    if facts.role == USER:
        decisions = state.decisions
        for index, text in enumerate(facts.decisions):
            decisions = _decided(decisions, StateDecision(f"d{number}.{index}", text, number, SAID))
        focus = Focus(facts.focus, number) if facts.focus else state.focus
        return state._replace(focus=focus, decisions=decisions, calls=())
    if facts.role == ASSISTANT:
        calls = tuple(call._replace(turn=number) for call in facts.calls)
        return state._replace(model=facts.model or state.model, calls=calls)
    if facts.role == TOOL and facts.outcome:
        return _fold_outcome(state, facts.outcome)
    if facts.role == SYSTEM:
        # Files that calls had changed, and a person put back.
        wanted = set(facts.put_back)
        back = [f for f in state.files if f.path in wanted and f.action != READ]
        others = (file for file in state.files if file not in back)
        put_back = (File(file.path, PUT_BACK, number) for file in back)
        return state._replace(files=(*others, *put_back)) if back else state
    return state


def _fold_outcome(state: SessionState, outcome: CallOutcome) -> SessionState:
    for call in state.calls:
        # Without an id it answers the next call of its name.
        if call.id == outcome.call_id and (call.id or call.name == outcome.name):
            break
    else:
        return state
    state = state._replace(calls=tuple(other for other in state.calls if other is not call))
    if not outcome.ok:
        return state._replace(failures=_failed(state.failures, call, outcome.error))
    state = _with_failures_resolved(state, call)
    if call.kind in FILE_KINDS:
        return state._replace(files=_touched(state.files, call, is_old=outcome.is_replaced))
    if call.kind == STATE and not call.detail:
        gone = tuple(d for d in state.decisions if d.id == outcome.struck)
        kept = tuple(d for d in state.decisions if d.id != outcome.struck)
        struck = (*state.struck, *gone)[-MAX_STRUCK:] if gone else state.struck
        return state._replace(decisions=kept, struck=struck)
    is_commit = call.kind in (SHELL, GIT) and call.detail and not call.detail.startswith("`")
    if call.kind == STATE or is_commit:
        source = NOTED if call.kind == STATE else COMMIT
        decision = StateDecision(f"d{call.turn}.{call.place}", call.detail, call.turn, source)
        return state._replace(decisions=_decided(state.decisions, decision))
    return state


def _decided(decisions: tuple[StateDecision, ...], new: StateDecision) -> tuple[StateDecision, ...]:
    """With one more. What is said again moves to the end. Beyond the limit the oldest
    commit goes first: rules that a person states are to outlive daily work."""
    known = next((d for d in decisions if d.text.casefold() == new.text.casefold()), None)
    kept = [*(d for d in decisions if d is not known), known or new]
    if len(kept) > MAX_DECISIONS:
        kept.remove(next((d for d in kept if d.source == COMMIT), kept[0]))
    return tuple(kept)


def _touched(files: tuple[File, ...], call: Call, *, is_old: bool) -> tuple[File, ...]:
    if call.kind == MOVE:
        files = tuple(file for file in files if file.path not in call.paths[1:])
    for path in call.paths[:1] if call.kind == MOVE else call.paths:
        known = next((file for file in files if file.path == path), None)
        if known and call.kind == READ and known.action not in (READ, DELETE, PUT_BACK):
            continue  # what was changed stays known as changed
        action = call.kind
        if action == WRITE and (is_old or (known and known.action not in (DELETE, PUT_BACK))):
            action = EDIT
        files = (*(file for file in files if file is not known), File(path, action, call.turn))
    return files[-MAX_FILES:]


def _failed(failures: tuple[Failure, ...], call: Call, error: str) -> tuple[Failure, ...]:
    if not call.key or call.kind == READ:
        return failures
    others = tuple(failure for failure in failures if failure.key != call.key)
    text = error
    if call.kind not in (SHELL, GIT) or not error:
        text = f"{call.key}: {error or 'failed'}"
    return (*others, Failure(call.key, call.kind, text, ()))[-MAX_OPEN_FAILURES:]


_DOING = {WRITE: "creating", EDIT: "editing", DELETE: "deleting", MOVE: "moving"}


def _with_failures_resolved(state: SessionState, call: Call) -> SessionState:
    """The failures that this success makes good become resolved errors; for the others it
    may be what fixes them."""
    fix = ""
    if call.kind in _DOING and call.paths:
        path = call.paths[0]
        fix = f"{_DOING[call.kind]} {path if len(path) <= 60 else '…' + path[-59:]}"
    elif call.kind in (SHELL, GIT) and call.key:
        fix = f"running {call.detail}" if call.detail.startswith("`") else "committing"
    errors = state.errors
    failures: list[Failure] = []
    for failure in state.failures:
        if failure.kind == call.kind and covers(call.key, failure.key):
            # A retried edit that then fits is no error that somebody solved.
            if failure.fixes or failure.kind in (SHELL, GIT):
                how = " and ".join(failure.fixes)
                how = f"fixed by {how}" if how else "gone when run again"
                text = one_line(f"{failure.text} — {how}", limit=ITEM_CHARS)
                place = f"e{call.turn}.{call.place}.{len(failures)}"
                errors += (Resolved(place, text, call.turn),)
        elif fix:
            fixes = (*(f for f in failure.fixes if f != fix), fix)[-MAX_FIXES:]
            failures.append(failure._replace(fixes=fixes))
        else:
            failures.append(failure)
    return state._replace(errors=errors[-MAX_ERRORS:], failures=tuple(failures))
