"""Reading the facts of one turn, and adding them to the session state.

Reading a turn does not depend on earlier turns. Tools are recognised under the names that this
product and other products give them, so that imported histories count as well.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from conversations.domain.text import an_object, dump_json, load_json, one_line, storable
from conversations.domain.turns import (
    ASSISTANT,
    FILES_BACK,
    MODEL_NOTE,
    TOOL,
    USER,
    AnyTurn,
    calls_of,
    read_metadata,
)

from . import (
    COMMIT,
    DECISION,
    MAX_DECISIONS,
    MAX_ERRORS,
    MAX_FILES,
    MAX_FOCUS_CHARS,
    MAX_ITEM_CHARS,
    MAX_OPEN_FAILURES,
    MAX_PATH_CHARS,
    MAX_PREFERENCES,
    MAX_REMEMBERED_VALUES,
    MAX_REPLACED,
    MAX_RULES,
    MAX_STRUCK,
    MAX_VALUES,
    NOTED,
    PREFERENCE,
    READ,
    RULE,
    SAID,
    VALUE,
    FailedCall,
    PendingCall,
    ReplacedStatement,
    ResolvedError,
    SessionState,
    StateFile,
    StateFocus,
    Statement,
    StateValue,
    gives_way,
    is_same_item,
)
from .commands import (
    command_key,
    commit_message,
    covers,
    error_line,
    exit_code,
    short_command,
)
from .statements import find_statements
from .topics import is_same_topic, is_same_value, says_less
from .values import AIM, DATES, StatedValue, find_values

WRITE, EDIT, DELETE, MOVE = "created", "edited", "deleted", "moved"
SHELL, GIT, STATE, OTHER = "shell", "git", "state", "other"
PUT_BACK = "put back"  # The action on a file that calls had changed and a person put back.

# Kinds of calls that touch files. Each kind has the name of its action.
FILE_KINDS = (WRITE, EDIT, DELETE, MOVE, READ)

_NAMES = {
    WRITE: "write_file write create_file create save_file fs_write new_file",
    EDIT: "edit_file edit multiedit multi_edit str_replace replace_in_file patch_file"
    " insert_in_file notebookedit notebook_edit search_replace apply_diff",
    DELETE: "delete_file remove_file delete rm_file",
    MOVE: "move_file rename_file move",
    READ: "read_file read view_file view open_file cat_file fs_read read_text_file",
    SHELL: "shell_execute bash shell run_command execute_command run_shell_command terminal"
    " run_terminal_cmd run_in_terminal exec_command execute_bash local_shell",
    GIT: "git_command git",
    STATE: "session_state",
}
KIND_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_EDITOR_KINDS = {"create": WRITE, "str_replace": EDIT, "insert": EDIT, "view": READ}
_EDITORS = ("str_replace_editor", "str_replace_based_edit_tool", "str_replace_editor_tool")

_PATHS = (
    *("path", "file_path", "filename", "file", "filepath", "target_file", "notebook_path"),
    *("relative_path", "paths", "files"),
)
_SOURCES = ("source", "from", "src", "old_path", "source_path", "from_path")
_TARGETS = ("destination", "to", "dst", "dest", "new_path", "destination_path", "to_path", "target")
_COMMANDS = ("command", "cmd", "script", "commandline", "args", "argv", "arguments")
MAX_CALLS, MAX_PATHS = 50, 10
MAX_PUT_BACK_PATHS = 1000
MAX_JSON_OUTPUT_CHARS = 200_000

# These words do not count as part of a path, because a file may have any name.
_REPLACED = re.compile(
    r"(?<![\w/\\.-])(?:overwr\w+|replaced|updated|already existed)(?![\w/\\-]|\.\w)", re.IGNORECASE
)

_LOOKS_FAILED = re.compile(
    r"\s*(?:<tool_use_error>|(?:tool |fatal )?error\b|traceback \(most|exception\b|failed\b)",
    re.IGNORECASE,
)
_STRUCK = re.compile(r"Struck ([drpv](\d{1,15})\.\d+): (.*)")
FOCUS_SCANNED_CHARS = 4_000
# A line without meaning: a blank line, a fence, or a tag by itself.
_MARKER = re.compile(r"\s*(?:```.*|~~~.*|</?[A-Za-z][\w-]*>)?\s*")

# A message that only agrees does not change the focus.
_ACKNOWLEDGED = re.compile(
    r"(?:ok(?:ay)?|yes|yep|yeah|y|no|sure|thanks?|thank you|thx|go on|go ahead|continue|proceed"
    r"|do it|please|great|good|perfect|nice|next|right|exactly|correct|cool|fine|done|and|it"
    r"|that|works|lgtm|looks good|keep going|carry on|sounds good|[\W_])+",
    re.IGNORECASE,
)


class CallOutcome(NamedTuple):
    """The outcome of a call.

    ``is_replaced`` means that the file existed before. ``struck`` is the statement that the model
    struck.
    """

    call_id: str
    name: str
    ok: bool
    error: str = ""
    is_replaced: bool = False
    struck: Statement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """The facts of one turn.

    ``statements`` are pairs of a kind and a text. ``calls`` have no turn yet. ``put_back`` are
    files that a person put back.
    """

    role: str
    tokens: int
    model: str = ""
    focus: str = ""
    statements: tuple[tuple[str, str], ...] = ()
    values: tuple[StatedValue, ...] = ()
    calls: tuple[PendingCall, ...] = ()
    outcome: CallOutcome | None = None
    put_back: tuple[str, ...] = ()


def read_facts(turn: AnyTurn) -> TurnFacts:
    """Return the facts of a turn. Content that cannot be read is ignored and raises no error."""
    facts = TurnFacts(role=turn.role, tokens=turn.token_count)
    if turn.role == USER:
        lines = turn.content[:FOCUS_SCANNED_CHARS].splitlines()
        line = next((line for line in lines if not _MARKER.fullmatch(line)), "")
        focus = "" if _ACKNOWLEDGED.fullmatch(line) else one_line(line, limit=MAX_FOCUS_CHARS)
        statements = find_statements(turn.content)
        # An amount in a rule or a preference is not a separate value.
        values = tuple(
            value
            for value in find_values(turn.content)
            if not any(value.text in text or text in value.text for _, text in statements)
        )
        return replace(facts, focus=focus, statements=statements, values=values)
    if turn.role == ASSISTANT:
        model = read_metadata(turn).get("model") if '"model"' in turn.metadata else ""
        model = storable(model)[:120] if isinstance(model, str) else ""
        # Most answers make no call, so their blocks need not be parsed.
        has_calls = turn.tool_calls or '"tool_use"' in (turn.blocks or "")
        blocks = calls_of(turn)[:MAX_CALLS] if has_calls else []
        calls = tuple(_read_call(call, index) for index, call in enumerate(blocks))
        return replace(facts, model=model, calls=calls)
    if turn.role == TOOL:
        return replace(facts, outcome=_read_outcome(turn))
    metadata = read_metadata(turn)
    paths = metadata.get(FILES_BACK) if metadata.get(MODEL_NOTE) is True else None
    back = paths[:MAX_PUT_BACK_PATHS] if isinstance(paths, list) else []
    return replace(facts, put_back=tuple(path for path in back if isinstance(path, str)))


def _read_call(call: dict[str, Any], place: int) -> PendingCall:
    arguments = an_object(call.get("input"))
    name = storable(str(call.get("name") or "tool"))[:100]
    kind = _kind_of_call(name, arguments)
    paths = tuple(_paths(kind, arguments))
    key = detail = ""
    if kind in (SHELL, GIT):
        command = _git_command(arguments) if kind == GIT else _first_text(arguments, _COMMANDS)
        command = storable(command)
        key = command_key(command)
        # A detail in backticks is a command. Any other detail is the message of a commit.
        detail = commit_message(command) or (f"`{short_command(command)}`" if command else "")
    elif kind == STATE and arguments.get("action") == "note":
        detail = one_line(storable(str(arguments.get("text") or "")), limit=MAX_ITEM_CHARS)
    elif kind == OTHER:
        shown = (f"{name}={str(value)[:40]}" for name, value in islice(arguments.items(), 4))
        key = f"{name} {one_line(storable(', '.join(shown)), limit=MAX_ITEM_CHARS)}"
    return PendingCall(
        id=storable(str(call.get("id") or ""))[:255],
        name=name,
        kind=kind,
        turn=0,
        place=place,
        paths=paths,
        key=f"{name} {paths[0]}" if paths else key,
        detail=detail,
    )


def _kind_of_call(name: str, arguments: dict[str, Any]) -> str:
    plain = name.rsplit("__", 1)[-1].casefold()
    if plain in _EDITORS:
        return _EDITOR_KINDS.get(str(arguments.get("command")), OTHER)
    return KIND_OF.get(plain, OTHER)


def _paths(kind: str, arguments: dict[str, Any]) -> Iterator[str]:
    """Yield the files of a call. For a move, yield the target and then the source."""
    if kind == MOVE:
        ends = (_first_text(arguments, _TARGETS), _first_text(arguments, (*_SOURCES, "path")))
        yield from (_path(end) for end in ends if end)
    elif kind in FILE_KINDS:
        value = next((arguments[name] for name in _PATHS if arguments.get(name)), None)
        for item in value[:MAX_PATHS] if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                item = _first_text(item, _PATHS)
            if isinstance(item, str) and item.strip():
                yield _path(item)


def _path(text: str) -> str:
    path = storable(text).strip()
    path = path.removeprefix("./") or path
    return path if len(path) <= MAX_PATH_CHARS else "…" + path[-(MAX_PATH_CHARS - 1) :]


def _first_text(values: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return the first of these values that is set. A list of words becomes one command."""
    for name in names:
        value = values.get(name)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            if len(value) == 3 and value[0].endswith("sh") and value[1] in ("-c", "-lc"):
                return str(value[2])  # The command that the shell runs.
            return " ".join(_quoted(word) for word in value)
    return ""


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./:=@-]+", word) else "'" + word.replace("'", "'\\''") + "'"


def _git_command(arguments: dict[str, Any]) -> str:
    words = [_first_text(arguments, (name,)) for name in ("subcommand", "action", *_COMMANDS)]
    command = " ".join(word for word in words if word).removeprefix("git ")
    message = arguments.get("message")
    if isinstance(message, str) and command.startswith("commit") and " -m" not in command:
        command = f"commit -m {_quoted(message)}"
    return f"git {command}"


def _read_outcome(turn: AnyTurn) -> CallOutcome:
    name = storable(turn.tool_name or "")
    kind = _kind_of_call(name, {})
    metadata, value = read_metadata(turn), {}
    if turn.content.startswith("{") and len(turn.content) <= MAX_JSON_OUTPUT_CHARS:
        with suppress(ValueError):
            value = load_json(turn.content)
    # Success is read from a result object (``{"success", "output", "error"}``), else from the
    # turn's metadata, else from the beginning of the text.
    output = turn.content
    if isinstance(value.get("success"), bool):
        ok = value["success"]
        text = value.get("output") if ok else value.get("error") or value.get("output")
        output = text if isinstance(text, str) else dump_json(text or "")
    elif isinstance(metadata.get("ok"), bool):
        ok = metadata["ok"]
    else:
        ok = not _LOOKS_FAILED.match(output)
    if ok and kind in (SHELL, GIT, OTHER):
        codes = [
            values[name]
            for values in (metadata, value)
            for name in ("exit_code", "exitCode", "returncode", "exit_status")
            if isinstance(values.get(name), int)
        ]
        ok = not (codes[0] if codes else exit_code(output))
    start = output[:200]
    struck = _STRUCK.match(output) if kind == STATE else None
    says_replaced = not start.startswith("Created ") and _REPLACED.search(start) is not None
    return CallOutcome(
        call_id=turn.tool_call_id or "",
        name=name,
        ok=ok,
        error="" if ok else error_line(storable(output)),
        is_replaced=kind in (WRITE, OTHER) and says_replaced,
        struck=Statement(struck[1], struck[3], int(struck[2]), SAID) if struck else None,
    )


# Adding a turn to the state.
MAX_FIXES = 2


def fold_facts(state: SessionState, number: int, facts: TurnFacts) -> SessionState:
    """Return the state after this turn, which is on the active path."""
    state = state._replace(tokens=state.tokens + facts.tokens)
    if facts.role == USER:
        for index, (kind, text) in enumerate(facts.statements):
            statement = Statement(f"{kind[0]}{number}.{index}", text, number, SAID)
            state = _with_statement(state, kind, statement)
        for index, value in enumerate(facts.values):
            state = _with_value(state, number, index, value)
        focus = StateFocus(facts.focus, number) if facts.focus else state.focus
        return state._replace(focus=focus, calls=())
    if facts.role == ASSISTANT:
        calls = tuple(call._replace(turn=number) for call in facts.calls)
        return state._replace(model=facts.model or state.model, calls=calls)
    if facts.outcome is not None:
        return _fold_outcome(state, facts.outcome)
    # These are files that calls had changed and a person put back.
    paths = set(facts.put_back)
    back = [f for f in state.files if f.path in paths and f.action != READ]
    others = (file for file in state.files if file not in back)
    put_back = (StateFile(file.path, PUT_BACK, number) for file in back)
    return state._replace(files=(*others, *put_back)) if back else state


def _fold_outcome(state: SessionState, outcome: CallOutcome) -> SessionState:
    for call in state.calls:
        # A result without an id belongs to the next call with its name.
        if call.id == outcome.call_id and (call.id or call.name == outcome.name):
            break
    else:
        return state
    state = state._replace(calls=tuple(other for other in state.calls if other is not call))
    if not outcome.ok:
        if not call.key or call.kind == READ:
            return state
        text = outcome.error if call.kind in (SHELL, GIT) else ""
        text = text or f"{call.key}: {outcome.error or 'failed'}"
        others = (failure for failure in state.failures if failure.key != call.key)
        failures = (*others, FailedCall(call.key, call.kind, text, ()))
        return state._replace(failures=failures[-MAX_OPEN_FAILURES:])
    state = _with_failures_resolved(state, call)
    if call.kind in FILE_KINDS:
        return state._replace(files=_touch_files(state.files, call, is_old=outcome.is_replaced))
    if call.kind == STATE and not call.detail:
        return _without_struck(state, outcome.struck) if outcome.struck else state
    is_commit = call.kind in (SHELL, GIT) and call.detail and not call.detail.startswith("`")
    if call.kind == STATE or is_commit:
        source = NOTED if call.kind == STATE else COMMIT
        decision = Statement(f"d{call.turn}.{call.place}", call.detail, call.turn, source)
        return state._replace(decisions=_with_decision(state.decisions, decision))
    return state


def renumber_strike(turn: AnyTurn, find: Callable[[int], int | None]) -> str:
    """Return the text of a copied result.

    If the text names, by its turn, a statement that the model struck, it gets the number of that
    turn's copy, which ``find`` returns. Without a copy it gets 0, which is the number of no turn.
    """
    is_state = turn.role == TOOL and _kind_of_call(turn.tool_name or "", {}) == STATE
    match = _STRUCK.match(turn.content) if is_state else None
    if match is None:
        return turn.content
    old = int(match[2])
    number = find(old) or 0
    if number == old:
        return turn.content
    return f"{turn.content[: match.start(2)]}{number}{turn.content[match.end(2) :]}"


def _without_struck(state: SessionState, struck: Statement) -> SessionState:
    """Return the state without the statement that the model struck.

    The statement is recognised by its text, because turns of an imported history may have other
    numbers. If it was reworded, it is recognised by its id.
    """
    statements = [*state.decisions, *state.rules, *state.preferences]
    statements += [Statement(v.id, v.text, v.turn, SAID, v.times) for v in state.values]
    struck_statements = [
        statement
        for statement in statements
        if statement.text == struck.text
        and (statement.id[0] == struck.id[0] or is_same_item(statement, struck))
    ]
    # A replaced statement may still be in force in the wording that a person gave it.
    statements += [Statement(old.id, old.text, old.turn, old.source) for old in state.replaced]
    if not struck_statements:
        struck_statements = [statement for statement in statements if statement.id == struck.id]
    ids = {statement.id for statement in struck_statements}
    return state._replace(
        decisions=tuple(statement for statement in state.decisions if statement.id not in ids),
        rules=tuple(statement for statement in state.rules if statement.id not in ids),
        preferences=tuple(statement for statement in state.preferences if statement.id not in ids),
        values=tuple(value for value in state.values if value.id not in ids),
        replaced=tuple(statement for statement in state.replaced if statement.id not in ids),
        struck=(*state.struck, *struck_statements)[-MAX_STRUCK:],
    )


def _with_decision(decisions: tuple[Statement, ...], new: Statement) -> tuple[Statement, ...]:
    """Return the decisions with a new one.

    A repeated decision moves to the end and gets the new turn. Beyond the limit, the oldest commit
    is dropped first, so that decisions of a person outlast daily work.
    """
    same = next((d for d in decisions if d.text.casefold() == new.text.casefold()), None)
    new = same._replace(id=new.id, turn=new.turn) if same else new
    kept = [*(d for d in decisions if d is not same), new]
    if len(kept) > MAX_DECISIONS:
        kept.remove(next((d for d in kept if d.source == COMMIT), kept[0]))
    return tuple(kept)


def _with_statement(state: SessionState, kind: str, new: Statement) -> SessionState:
    """Return the state with a statement of the person.

    A repeated statement counts once more, moves to the end and gets the new turn. The statement
    replaces rules and preferences on the same topic (see :func:`gives_way`).
    """
    if kind == DECISION:
        return state._replace(decisions=_with_decision(state.decisions, new))
    replaced = state.replaced
    kept: dict[str, list[Statement]] = {RULE: [], PREFERENCE: []}
    for kept_kind, statements in ((RULE, state.rules), (PREFERENCE, state.preferences)):
        for old in statements:
            is_same = old.text.casefold() == new.text.casefold()
            if kept_kind == kind and (is_same or says_less(old.text, new.text)):
                new = old._replace(id=new.id, turn=new.turn, times=old.times + new.times)
            elif gives_way(kept_kind, kind) and is_same_topic(old.text, new.text):
                replaced += (ReplacedStatement(old.id, kept_kind, *old[1:4], new.turn),)
                new = new._replace(times=new.times + old.times)
            else:
                kept[kept_kind].append(old)
    kept[kind].append(new)
    return state._replace(
        rules=_most_used(kept[RULE], MAX_RULES),
        preferences=_most_used(kept[PREFERENCE], MAX_PREFERENCES),
        replaced=_newest(replaced),
    )


def _newest(replaced: tuple[ReplacedStatement, ...]) -> tuple[ReplacedStatement, ...]:
    """Return the newest replaced values and the newest other replaced statements.

    Each group has its own limit, so that a value that changes often does not displace a replaced
    statement. A rewording of such a statement counts only as long as the statement is here.
    """
    values = [statement for statement in replaced if statement.kind == VALUE]
    others = [statement for statement in replaced if statement.kind != VALUE]
    return (*others[-MAX_REPLACED:], *values[-MAX_REPLACED:])


def _most_used[Said: (Statement, StateValue)](items: list[Said], limit: int) -> tuple[Said, ...]:
    """Return at most ``limit`` items, dropping the oldest of the least frequent ones."""
    kept = list(items)
    while len(kept) > limit:
        kept.remove(min(kept, key=lambda item: (item.times, item.turn)))
    return tuple(kept)


def _kind_of_amounts(amounts: tuple[str, ...]) -> str:
    """Return the kind of the first amount that is not a date, else of the first amount.

    A date beside another amount says when the value holds.
    """
    kinds = [amount.partition(" ")[0] for amount in amounts]
    return next((kind for kind in kinds if kind.removeprefix(AIM) not in DATES), kinds[0])


def _with_value(state: SessionState, number: int, index: int, stated: StatedValue) -> SessionState:
    """Return the state with a value of the person, which replaces values of the same thing."""
    kind = _kind_of_amounts(stated.amounts)
    times, replaced = int(stated.is_changed), state.replaced
    kept: list[StateValue] = []
    for old in state.values:
        is_kind = old.turn != number and kind == _kind_of_amounts(old.amounts)
        if not is_kind or not is_same_value(
            old.text, stated.text, is_date=kind.removeprefix(AIM) in DATES
        ):
            kept.append(old)
        elif old.amounts != stated.amounts:
            times += max(stated.is_own or stated.is_changed, old.times)
            replaced += (ReplacedStatement(old.id, VALUE, old.text, old.turn, SAID, number),)
        else:
            times = max(times, old.times)
    kept.append(StateValue(f"v{number}.{index}", stated.text, number, stated.amounts, times))
    shown = _most_used([value for value in kept if value.times], MAX_VALUES)
    remembered = [value for value in kept if not value.times][-MAX_REMEMBERED_VALUES:]
    return state._replace(values=(*remembered, *shown), replaced=_newest(replaced))


def _touch_files(
    files: tuple[StateFile, ...], call: PendingCall, *, is_old: bool
) -> tuple[StateFile, ...]:
    if call.kind == MOVE:
        files = tuple(file for file in files if file.path not in call.paths[1:])
    for path in call.paths[:1] if call.kind == MOVE else call.paths:
        old = next((file for file in files if file.path == path), None)
        if old and call.kind == READ and old.action not in (READ, DELETE, PUT_BACK):
            continue  # A file that was changed is not shown as only read.
        action = call.kind
        if action == WRITE and (is_old or (old and old.action not in (DELETE, PUT_BACK))):
            action = EDIT
        files = (*(file for file in files if file is not old), StateFile(path, action, call.turn))
    return files[-MAX_FILES:]


_DOING = {WRITE: "creating", EDIT: "editing", DELETE: "deleting", MOVE: "moving"}


def _with_failures_resolved(state: SessionState, call: PendingCall) -> SessionState:
    """Turn the failures that this success resolves into resolved errors.

    For the other failures, the call is remembered as a possible fix.
    """
    fix = ""
    if call.kind in _DOING and call.paths:
        path = call.paths[0]
        fix = f"{_DOING[call.kind]} {path if len(path) <= 60 else '…' + path[-59:]}"
    elif call.kind in (SHELL, GIT) and call.key:
        fix = f"running {call.detail}" if call.detail.startswith("`") else "committing"
    errors = state.errors
    failures: list[FailedCall] = []
    for failure in state.failures:
        if failure.kind != call.kind or not covers(call.key, failure.key):
            if fix:
                fixes = (*(f for f in failure.fixes if f != fix), fix)[-MAX_FIXES:]
                failure = failure._replace(fixes=fixes)
            failures.append(failure)
        # A failed edit that succeeds when it is retried is not worth an error.
        elif failure.fixes or failure.kind in (SHELL, GIT):
            fixes_text = " and ".join(failure.fixes)
            solution = f"fixed by {fixes_text}" if fixes_text else "gone when run again"
            text = one_line(f"{failure.text} — {solution}", limit=MAX_ITEM_CHARS)
            errors += (
                ResolvedError(f"e{call.turn}.{call.place}.{len(failures)}", text, call.turn),
            )
    return state._replace(errors=errors[-MAX_ERRORS:], failures=tuple(failures))
