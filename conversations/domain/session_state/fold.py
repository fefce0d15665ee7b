"""Adding a turn to the state."""

from collections.abc import Callable

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
    fold = _FOLDS.get(facts.role)
    return fold(state, number, facts) if fold else state


def _fold_message(state: SessionState, number: int, facts: TurnFacts) -> SessionState:
    decisions = state.decisions
    for index, text in enumerate(facts.decisions):
        decisions = _decided(decisions, StateDecision(f"d{number}.{index}", text, number, SAID))
    focus = Focus(facts.focus, number) if facts.focus else state.focus
    return state._replace(focus=focus, decisions=decisions, calls=())


def _fold_answer(state: SessionState, number: int, facts: TurnFacts) -> SessionState:
    calls = tuple(call._replace(turn=number) for call in facts.calls)
    return state._replace(model=facts.model or state.model, calls=calls)


def _fold_result(state: SessionState, number: int, facts: TurnFacts) -> SessionState:
    outcome = facts.outcome
    call = _call_of(state, facts)
    if outcome is None or call is None:
        return state
    state = state._replace(calls=tuple(other for other in state.calls if other is not call))
    if not outcome.ok:
        return state._replace(failures=_failed(state.failures, call, outcome.error))
    state = _settled(state, call)
    if call.kind in FILE_KINDS:
        return state._replace(files=_touched(state.files, call, is_old=outcome.is_replaced))
    if call.kind == STATE:
        return _noted(state, call, outcome.struck)
    if call.kind in (SHELL, GIT) and call.detail and not call.detail.startswith("`"):
        return state._replace(decisions=_decided(state.decisions, _decision(call, COMMIT)))
    return state


def _fold_note(state: SessionState, number: int, facts: TurnFacts) -> SessionState:
    """Files that calls had changed, and a person put back."""
    wanted = set(facts.put_back)
    back = [file for file in state.files if file.path in wanted and file.action != READ]
    if not back:
        return state
    others = (file for file in state.files if file not in back)
    return state._replace(files=(*others, *(File(f.path, PUT_BACK, number) for f in back)))


_FOLDS: dict[str, Callable[[SessionState, int, TurnFacts], SessionState]] = {
    USER: _fold_message,
    ASSISTANT: _fold_answer,
    TOOL: _fold_result,
    SYSTEM: _fold_note,
}


def _call_of(state: SessionState, facts: TurnFacts) -> Call | None:
    """The call that a result answers; without an id, the next one of its name."""
    outcome = facts.outcome
    if outcome is None:
        return None
    for call in state.calls:
        if call.id == outcome.call_id and (call.id or call.name == outcome.name):
            return call
    return None


def _decision(call: Call, source: str) -> StateDecision:
    return StateDecision(f"d{call.turn}.{call.place}", call.detail, call.turn, source)


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


def _noted(state: SessionState, call: Call, struck: str) -> SessionState:
    if call.detail:
        return state._replace(decisions=_decided(state.decisions, _decision(call, NOTED)))
    gone = tuple(d for d in state.decisions if d.id == struck)
    if not gone:
        return state
    return state._replace(
        decisions=tuple(d for d in state.decisions if d.id != struck),
        struck=(*state.struck, *gone)[-MAX_STRUCK:],
    )


def _failed(failures: tuple[Failure, ...], call: Call, error: str) -> tuple[Failure, ...]:
    if not call.key or call.kind == READ:
        return failures
    others = tuple(failure for failure in failures if failure.key != call.key)
    text = error
    if call.kind not in (SHELL, GIT) or not error:
        text = f"{call.key}: {error or 'failed'}"
    return (*others, Failure(call.key, call.kind, text, ()))[-MAX_OPEN_FAILURES:]


def _settled(state: SessionState, call: Call) -> SessionState:
    """With the failures that this success makes good as resolved errors; for the
    others it may be what fixes them."""
    errors = state.errors
    failures: list[Failure] = []
    fix = _fix(call)
    for failure in state.failures:
        if failure.kind == call.kind and covers(call.key, failure.key):
            errors += _resolved(failure, call, len(failures))
        elif fix:
            fixes = (*(f for f in failure.fixes if f != fix), fix)[-MAX_FIXES:]
            failures.append(failure._replace(fixes=fixes))
        else:
            failures.append(failure)
    return state._replace(errors=errors[-MAX_ERRORS:], failures=tuple(failures))


def _resolved(failure: Failure, call: Call, place: int) -> tuple[Resolved, ...]:
    """A retried edit that then fits is no error that somebody solved."""
    if not failure.fixes and failure.kind not in (SHELL, GIT):
        return ()
    how = " and ".join(failure.fixes)
    text = f"{failure.text} — fixed by {how}" if how else f"{failure.text} — gone when run again"
    text = one_line(text, limit=ITEM_CHARS)
    return (Resolved(f"e{call.turn}.{call.place}.{place}", text, call.turn),)


_DOING = {WRITE: "creating", EDIT: "editing", DELETE: "deleting", MOVE: "moving"}


def _fix(call: Call) -> str:
    """What a successful call did that may have fixed something."""
    if call.kind in _DOING and call.paths:
        return f"{_DOING[call.kind]} {_tail(call.paths[0])}"
    if call.kind in (SHELL, GIT) and call.key:
        return f"running {call.detail}" if call.detail.startswith("`") else "committing"
    return ""


def _tail(path: str) -> str:
    return path if len(path) <= 60 else "…" + path[-59:]
