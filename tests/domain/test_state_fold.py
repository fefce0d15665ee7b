"""The facts that tool calls, messages and results add to the session state."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.session_state import (
    MAX_PREFERENCES,
    MAX_STATE_TOKENS,
    PREFERENCE,
    RULE,
    VALUE,
    SessionState,
    dump_state,
    list_items,
    load_state,
    write_yaml,
)
from conversations.domain.session_state.facts import fold_facts, read_facts
from conversations.domain.text import dump_json, estimate_tokens
from conversations.domain.turns import NewTurn
from tests.archive.state_story import answer, calls, message, result, used
from tests.properties import costly

_NAMES = """
id name input arguments args path paths command action text from to type tool_use model ok success
exit_code read_file move_file shell_execute git session_state
"""
_names = st.text(max_size=5) | st.sampled_from(_NAMES.split())


def fold(*turns: NewTurn) -> SessionState:
    """Return the state after these turns. Check after each turn that it can be stored."""
    state = SessionState()
    for number, turn in enumerate(turns, start=1):
        state = fold_facts(state, number, read_facts(turn))
        assert load_state(dump_state(state)) == state
    return state


def files(*turns: NewTurn) -> list[tuple[str, str, int]]:
    return [tuple(file) for file in fold(*turns).files]


def decisions(*turns: NewTurn) -> list[str]:
    return [decision.text for decision in fold(*turns).decisions]


def errors(*turns: NewTurn) -> list[str]:
    return [f"{error.text} ({error.turn})" for error in fold(*turns).errors]


def shell(command: str, output: str = "", *, ok: bool | None = True) -> list[NewTurn]:
    return used("shell_execute", {"command": command}, output, ok=ok)


def edit(path: str) -> list[NewTurn]:
    return used("edit_file", {"path": path})


def put_back(*paths: str) -> NewTurn:
    metadata = dump_json({"model_note": True, "files_back": list(paths)})
    return NewTurn(role="system", content="Put back.", metadata=metadata)


def test_a_file_that_a_person_put_back_is_no_longer_edited() -> None:
    turns = (*edit("a.py"), *edit("b.py"), put_back("a.py", "unknown.py"))
    assert files(*turns) == [("b.py", "edited", 3), ("a.py", "put back", 5)]
    assert files(*turns, *edit("a.py"))[-1] == ("a.py", "edited", 6)
    read = used("read_file", {"path": "a.py"})
    assert files(*turns, *read)[-1] == ("a.py", "read", 6)


@pytest.mark.parametrize(
    ("name", "arguments", "touched"),
    [
        ("write_file", {"path": "a.py", "content": "x"}, [("a.py", "created", 1)]),
        ("edit_file", {"path": "./src/a.py"}, [("src/a.py", "edited", 1)]),
        ("delete_file", {"path": "a.py"}, [("a.py", "deleted", 1)]),
        ("read_file", {"path": "a.py"}, [("a.py", "read", 1)]),
        ("move_file", {"source": "a.py", "destination": "b.py"}, [("b.py", "moved", 1)]),
        ("rename_file", {"old_path": "a.py", "new_path": "b.py"}, [("b.py", "moved", 1)]),
        ("Write", {"file_path": "a.py"}, [("a.py", "created", 1)]),
        ("Edit", {"file_path": "a.py"}, [("a.py", "edited", 1)]),
        ("mcp__files__read_file", {"filename": "a.py"}, [("a.py", "read", 1)]),
        ("str_replace_editor", {"command": "create", "path": "a.py"}, [("a.py", "created", 1)]),
        ("str_replace_editor", {"command": "view", "path": "a.py"}, [("a.py", "read", 1)]),
        ("read_file", {"paths": ["a.py", "b.py"]}, [("a.py", "read", 1), ("b.py", "read", 1)]),
        ("read_file", {"paths": [{"path": "a.py"}]}, [("a.py", "read", 1)]),
        ("read_file", {}, []),
        ("read_file", {"path": ""}, []),
        ("read_file", {"path": 7}, []),
        ("list_files", {"path": "src"}, []),
        ("search_files", {"path": "src", "query": "x"}, []),
    ],
)
def test_only_a_successful_call_adds_its_file(
    name: str, arguments: Mapping[str, Any], touched: list[tuple[str, str, int]]
) -> None:
    assert files(*used(name, arguments)) == touched
    assert files(*used(name, arguments, ok=False)) == []


def test_calls_in_the_format_of_other_programs_are_read() -> None:
    openai = NewTurn(
        role="assistant",
        content="",
        tool_calls=dump_json(
            [{"id": "c0", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}]
        ),
    )
    assert files(openai, result(name="read_file", ok=None)) == [("a.py", "read", 1)]


def test_results_are_matched_to_their_calls() -> None:
    made = calls(("edit_file", {"path": "a.py"}), ("edit_file", {"path": "b.py"}))
    done = [result(name="edit_file", place=1), result(name="edit_file", place=0, ok=False)]
    assert files(made, *done) == [("b.py", "edited", 1)]


@pytest.mark.parametrize(
    ("output", "ok", "is_touched"),
    [
        ("", None, True),
        ("Error: no such file", None, False),
        ("Traceback (most recent call last):", None, False),
        ('{"success": false, "error": "gone"}', None, False),
        ('{"success": true, "output": "text"}', None, True),
        ('{"error": "a file may hold this"}', None, True),
        ("Errors are explained in this text", True, True),
    ],
)
def test_an_unrecorded_outcome_is_read_from_the_output(
    output: str, ok: bool | None, is_touched: bool
) -> None:
    assert bool(files(*used("read_file", {"path": "a.py"}, output, ok=ok))) is is_touched


def test_a_file_is_listed_once_with_its_last_change() -> None:
    turns = [*used("read_file", {"path": "a.py"}), *used("read_file", {"path": "b.py"})]
    assert files(*turns, *edit("a.py")) == [("b.py", "read", 3), ("a.py", "edited", 5)]
    again = used("read_file", {"path": "a.py"})
    assert files(*turns, *edit("a.py"), *again) == [("b.py", "read", 3), ("a.py", "edited", 5)]


def test_writing_an_existing_file_is_an_edit() -> None:
    wrote = used("write_file", {"path": "a.py"})
    assert files(*used("read_file", {"path": "a.py"}), *wrote) == [("a.py", "edited", 3)]
    assert files(*used("write_file", {"path": "a.py"}, "Overwrote a.py")) == [("a.py", "edited", 1)]
    updated = {"path": "src/updated.py"}
    done = "The file src/updated.py has been updated."
    for new in ("Created src/updated.py: 3 lines.", "Created already existed: 1 line."):
        assert files(*used("write_file", updated, new)) == [("src/updated.py", "created", 1)]
    for new in ("Wrote src/updated.py.", "File src/replaced-old/updated/x made."):
        assert files(*used("write", updated, new)) == [("src/updated.py", "created", 1)]
    assert files(*used("write", updated, done)) == [("src/updated.py", "edited", 1)]
    gone = used("delete_file", {"path": "a.py"})
    assert files(*wrote, *gone, *wrote) == [("a.py", "created", 5)]


def test_a_moved_file_is_listed_by_its_new_name() -> None:
    moved = used("move_file", {"source": "a.py", "destination": "b.py"})
    assert files(*edit("a.py"), *moved) == [("b.py", "moved", 3)]


def test_a_call_or_a_result_without_the_other_is_ignored() -> None:
    assert files(result(name="read_file"), calls(("edit_file", {"path": "a"})), message("x")) == []
    assert files(calls(("edit_file", {"path": "a"})), message("x"), result()) == []


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("git_command", {"command": "commit -m 'Plant roses'"}, "Plant roses"),
        ("git_command", {"args": ["commit", "-m", "Plant it's roses"]}, "Plant it's roses"),
        ("git_command", {"subcommand": "commit", "args": ["-am", "Plant"]}, "Plant"),
        ("git_command", {"action": "commit", "message": "Plant roses"}, "Plant roses"),
        ("git_command", {"command": "git commit --message=Plant"}, "Plant"),
        ("git_command", {"command": "status"}, None),
        ("git_command", {"command": "log --grep commit -m x"}, None),
        ("shell_execute", {"command": 'git add -A && git commit -qm "Plant"'}, "Plant"),
        ("shell_execute", {"command": "git -C sub commit -m Plant && git push"}, "Plant"),
        ("Bash", {"command": "git commit -m \"$(cat <<'EOF'\nPlant\n\nMore.\nEOF\n)\""}, "Plant"),
        ("shell", {"command": ["bash", "-lc", "git commit -m 'Plant'"]}, "Plant"),
        ("shell_execute", {"command": "git commit --amend --no-edit"}, None),
        ("shell_execute", {"command": "echo git commit"}, None),
        ("shell_execute", {"command": "git commit -m 'unclosed"}, None),
    ],
)
def test_a_commit_is_a_decision(name: str, arguments: dict[str, Any], text: str | None) -> None:
    assert decisions(*used(name, arguments)) == ([text] if text else [])
    assert decisions(*used(name, arguments, ok=False)) == []
    assert decisions(*used(name, arguments, "exit code: 1")) == []


def test_the_model_can_note_and_strike_decisions() -> None:
    noted = used("session_state", {"action": "note", "text": "Roses stay"}, "Noted: Roses stay")
    assert decisions(*noted) == ["Roses stay"]
    struck = used("session_state", {"action": "strike", "text": "roses"}, "Struck d1.0: Roses stay")
    state = fold(*noted, *struck)
    assert (state.decisions, [d.text for d in state.struck]) == ((), ["Roses stay"])
    assert decisions(*used("session_state", {"action": "note", "text": "x"}, ok=False)) == []


def test_ten_decisions_are_kept_and_commits_are_dropped_first() -> None:
    rules = [message(f"We decided to plant row {n}") for n in range(9)]
    commits = [used("git_command", {"command": f"commit -m 'Step {n}'"}) for n in range(5)]
    found = decisions(*rules, *(turn for pair in commits for turn in pair))
    assert found == [*(f"We decided to plant row {n}" for n in range(9)), "Step 4"]
    more = [message(f"We decided to plant row {n}") for n in range(14)]
    assert decisions(*more)[0] == "We decided to plant row 4"


def test_a_repeated_decision_counts_as_new() -> None:
    rules = [message(f"We decided to plant row {n}") for n in range(10)]
    found = decisions(*rules, message("we decided to plant row 0"), message("We use tabs"))
    assert found[-2:] == ["We decided to plant row 0", "We use tabs"]
    assert "We decided to plant row 1" not in found


def test_twenty_files_and_five_errors_are_kept() -> None:
    assert [path for path, _, _ in files(*(t for n in range(25) for t in edit(f"{n}.py")))] == [
        f"{n}.py" for n in range(5, 25)
    ]
    turns = [
        turn
        for n in range(7)
        for turn in (*shell(f"make {n}", f"Error {n}", ok=False), *shell(f"make {n}"))
    ]
    assert [error.split(" ")[1] for error in errors(*turns)] == ["2", "3", "4", "5", "6"]


OUTPUT = """\
tests/test_auth.py:1: in <module>
    import jwt
E   ImportError: No module named 'jwt'
exit code: 2"""


@pytest.mark.parametrize("ok", [True, False, None])
def test_an_error_is_resolved_by_the_actions_before_the_success(ok: bool | None) -> None:
    turns = [
        *shell("pytest tests/test_auth.py -x", OUTPUT, ok=ok),
        *used("read_file", {"path": "setup.py"}),
        *edit("requirements.txt"),
        *shell("pip install -r requirements.txt", "fine"),
        *shell("pytest tests/test_auth.py", "3 passed"),
    ]
    assert errors(*turns) == [
        "ImportError: No module named 'jwt' — fixed by editing requirements.txt"
        " and running `pip install -r requirements.txt` (9)"
    ]


def test_colour_codes_are_removed_from_an_error() -> None:
    failed = shell("make", "ok\n\x1b[31mValueError: \x1b[1mlate\x1b[0m\nbye", ok=False)
    assert errors(*failed, *edit("a.c"), *shell("make")) == [
        "ValueError: late — fixed by editing a.c (5)"
    ]


def test_actions_before_a_repeated_failure_are_not_called_a_fix() -> None:
    turns = [*shell("make", "Error 1", ok=False), *edit("a.c"), *shell("make", "Error 2", ok=False)]
    assert errors(*turns, *edit("b.c"), *shell("make")) == ["Error 2 — fixed by editing b.c (9)"]


def test_a_run_of_all_tests_resolves_the_error_of_a_part() -> None:
    failed = shell("cd app && pytest tests/a.py", "AssertionError: 1", ok=False)
    assert errors(*failed, *shell("pytest tests/b.py")) == []
    assert errors(*failed, *shell("FOO=1 uv run pytest -q 2>&1 | tail -3")) == [
        "AssertionError: 1 — gone when run again (3)"
    ]


@pytest.mark.parametrize("command", ["grep x a.py", "ls gone", "git diff --exit-code", "cat x"])
def test_a_search_without_results_is_no_error(command: str) -> None:
    assert errors(*shell(command, "exit code: 1", ok=False), *shell(command)) == []


def test_errors_of_other_tools_are_resolved_too() -> None:
    failed = used("fetch_url", {"url": "x"}, "ConnectionError: refused", ok=False)
    assert errors(*failed, *used("fetch_url", {"url": "x"})) == []
    assert errors(*failed, *edit("hosts"), *used("fetch_url", {"url": "x"})) == [
        "fetch_url url=x: ConnectionError: refused — fixed by editing hosts (5)"
    ]


@pytest.mark.parametrize(
    ("text", "focus"),
    [
        ("Add refresh tokens", "Add refresh tokens"),
        ("\n  First line  \nsecond", "First line"),
        ("x" * 300, "x" * 99 + "…"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("<context>\nFirst line", "First line"),
        ("ok", "before"),
        ("Yes, go ahead!", "before"),
        ("thanks", "before"),
        ("👍", "before"),
        ("", "before"),
        ("ok, now the tests", "ok, now the tests"),
    ],
)
def test_the_focus_is_the_first_line_of_the_newest_message(text: str, focus: str) -> None:
    state = fold(message("before"), message(text), answer())
    assert state.focus
    assert state.focus.text == focus


@pytest.mark.parametrize(
    "turn",
    [
        NewTurn(role="assistant", content="", tool_calls="[broken"),
        NewTurn(role="assistant", content="", blocks='[{"type":"tool_use"}]'),
        NewTurn(role="assistant", content="", tool_calls='[{"name": 7, "input": [1]}]'),
        NewTurn(role="assistant", content="", metadata="no"),
        NewTurn(role="tool", content="{" * 5000, tool_name="write_file"),
        NewTurn(role="tool", content="", metadata="[]"),
        NewTurn(role="tool", content='{"success": true, "output": {"a": 1}}'),
        NewTurn(role="system", content="x", metadata='{"ok": 1}'),
        NewTurn(role="user", content="\x85\u2028 \ufeff"),
    ],
)
def test_a_damaged_turn_can_be_folded(turn: NewTurn) -> None:
    fold(turn, *used("edit_file", {"path": "a\ud800\x00.py"}), turn)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=12,
)


@costly
@given(
    calls=st.lists(st.dictionaries(_names, _json, max_size=5), max_size=4) | _json,
    content=st.text() | _json.map(dump_json),
    name=_names | st.none(),
    metadata=_json,
    role=st.sampled_from(["user", "assistant", "tool", "system", "ghost"]),
)
def test_any_json_can_be_folded(
    calls: Any, content: str, name: str | None, metadata: Any, role: str
) -> None:
    told = {"tool_calls": dump_json(calls), "metadata": dump_json(metadata)}
    turn = NewTurn(role=role, content=content, tool_name=name, **told)
    fold(turn, NewTurn(role="assistant", content="", **told), turn, *edit("a.py"))


@pytest.mark.parametrize(
    "line",
    [
        "exit code: 3",
        "[exit code 3]",
        "(exit 3)",
        "Exit status 3",
        "Process exited with code 3",
        "Command failed with exit code 3",
        "returncode=3",
        "exit_code: 3",
    ],
)
def test_an_exit_code_in_the_output_marks_a_failure(line: str) -> None:
    failed = shell("make", f"Error here\n{line}\n")
    assert errors(*failed, *edit("a.c"), *shell("make", f"fine\n{line.replace('3', '0')}")) == [
        "Error here — fixed by editing a.c (5)"
    ]


def test_items_have_stable_ids() -> None:
    items, struck = list_items(fold(message("We use tabs. Never use eval."), *edit("a.py")))
    assert struck == ()
    assert [item.id for item in items] == ["ff0de093a8c24f6a3", "d1.0", "r1.1", "c1"]


def told(*messages: str) -> tuple[list[str], list[tuple[str, str, int]]]:
    """Return the statements in force, and the replaced ones with the turn that replaced them."""
    items, struck = list_items(fold(*map(message, messages)))
    shown = [item.text for item in items if item.kind in (RULE, PREFERENCE, VALUE)]
    return shown, [(item.text, item.struck_by, item.replaced_in) for item in struck]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("Use tabs, not spaces", "From now on use spaces, not tabs"),
        ("Use 2 spaces of indentation", "Please use 4 spaces of indentation everywhere"),
        ("Always answer in German", "Please answer in English"),
        ("Always include version numbers", "Never include version numbers"),
        ("Always answer in German", "Stop answering in German"),
        (
            "Always answer in German when I write in German",
            "Always answer in English when I write in German",
        ),
        # A clause with "even if" is no condition.
        (
            "Always answer in German, even if I write in English",
            "Always answer in English, even if I write in German",
        ),
        (
            "Antworte immer auf Deutsch, auch wenn ich Englisch schreibe",
            "Antworte immer auf Englisch, auch wenn ich Deutsch schreibe",
        ),
        (
            "Réponds toujours en français, même si j'écris en anglais",
            "Réponds toujours en anglais, même si j'écris en français",
        ),
        (
            "Responde siempre en español, incluso si escribo en inglés",
            "Responde siempre en inglés, incluso si escribo en español",
        ),
        ("All dates must be UTC", "All dates must be local"),
        (
            "Always use the 24-hour format for meetings",
            "Always use the 12-hour format for meetings",
        ),
        ("I prefer tabs over spaces", "I prefer spaces over tabs"),
        ("I prefer morning meetings", "I prefer evening meetings"),
        ("I prefer tabs over spaces", "Use spaces, not tabs"),
        (
            "Never push to the main branch without asking me",
            "From now on push to the main branch",
        ),
    ],
)
def test_a_later_statement_replaces_one_on_the_same_matter(earlier: str, later: str) -> None:
    if earlier.startswith("Use 2"):
        earlier = f"Please {earlier.lower()} everywhere"
    assert told(earlier, "Thanks.", later) == ([later], [(earlier, "later", 3)])


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("Always include prices when I ask about phones", "Always include prices in USD"),
        (
            "Always provide detailed timelines when I ask about training",
            "Always provide detailed timelines when I ask about visa deadlines",
        ),
        ("I prefer Android phones", "I prefer quiet libraries"),
        ("Always use tabs", "I prefer spaces to tabs"),
        ("Always write line 1", "Always write line 2"),
        # The later statement opposes a part of the earlier one.
        ("Always use mocks in the tests of the payment module", "Never use mocks in tests"),
        (
            "Always add type hints and docstrings to every function",
            "Never add docstrings to functions",
        ),
        (
            "Schreibe immer Tests, Typen und Kommentare in den Code",
            "Schreibe niemals Kommentare in den Code",
        ),
        # The conditions are different.
        (
            "Always answer in English when I write in English",
            "Always answer in German when I write in German",
        ),
        (
            "When I write in English, always answer in English",
            "When I write in German, always answer in German",
        ),
        # The amounts are of different things.
        ("Always use 2 spaces in YAML files", "Always use 4 spaces in Python files"),
    ],
)
def test_statements_on_other_matters_stay(earlier: str, later: str) -> None:
    assert told(earlier, later) == ([earlier, later], [])


def test_a_repeated_rule_has_its_last_turn_and_a_count() -> None:
    state = fold(
        message("Always quote paths"), message("Never use eval"), message("always quote paths")
    )
    assert [(rule.text, rule.turn, rule.times) for rule in state.rules] == [
        ("Never use eval", 2, 1),
        ("Always quote paths", 3, 2),
    ]


def test_repeating_a_part_of_a_preference_keeps_the_whole() -> None:
    whole = "I prefer step-by-step explanations with concrete examples over definitions"
    state = fold(message(whole), message("As I prefer step-by-step explanations, show me one?"))
    assert [(wish.text, wish.times) for wish in state.preferences] == [(whole, 2)]


def test_the_newest_value_replaces_the_one_before() -> None:
    shown, struck = told(
        "The dashboard API has an average response time of 300 ms, is that good?",
        "My Zotero library has 45 sources, how do I sort them?",
        "The response time of the dashboard API is now 250 ms, what else can I do?",
        "I added 52 sources to my Zotero library, what now?",
    )
    assert shown == [
        "response time of the dashboard API is now 250 ms",
        "added 52 sources to my Zotero library",
    ]
    assert sorted(turn for _, _, turn in struck) == [3, 4]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("The deadline is now March 20.", "The deadline is now the 2nd of April."),
        ("The budget went up to $5,000.", "The budget is $6k now."),
        ("We moved the planning meeting to Friday.", "We moved the planning meeting to Monday."),
        ("The API limit is 1,000 requests a day.", "The API limit is 1,200 requests a day now."),
        ("The build time is now 30 minutes.", "The build time is now 45 min."),
        ("The request timeout is now 30 s.", "The request timeout is now 45 seconds."),
        ("The budget is now $4,500.", "The budget is now 5000 EUR."),
    ],
)
def test_the_later_of_two_short_statements_of_a_value_holds(earlier: str, later: str) -> None:
    shown, struck = told(earlier, later)
    assert shown == [later.removeprefix("The ").removeprefix("We ").rstrip(".")]
    assert len(struck) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "I increased my monthly Roth contributions to $475 starting May 1",
            "I increased my monthly phone budget to $60 starting May 1",
        ),
        (
            "The LDL cholesterol of my father is now 98 mg",
            "The goal for the LDL cholesterol of my father is now 90 mg",
        ),
        (
            "The login response time dropped to 120 ms under 20 users",
            "The import of the archive was extended to 50 users",
        ),
    ],
)
def test_values_of_different_things_do_not_replace_each_other(one: str, other: str) -> None:
    shown, struck = told(one, other)
    assert (len(shown), struck) == (2, [])


def test_a_value_in_another_spelling_of_its_unit_is_the_same() -> None:
    state = fold(
        message("The build time is now 30 minutes."), message("The build time is now 30 min.")
    )
    assert [(value.turn, value.times) for value in state.values] == [(2, 1)]
    assert state.replaced == ()


def test_milliseconds_are_no_metres() -> None:
    one, other = "The reach of the robot arm is now 5 m", "The reach of the robot arm is now 9 ms"
    shown, struck = told(one, other)
    assert (len(shown), struck) == (2, [])


def test_a_weekday_alone_is_no_value() -> None:
    assert told("The meeting is on Friday", "The meeting is on Monday") == ([], [])


def test_a_value_at_the_end_of_a_long_clause_is_not_cut_off() -> None:
    [shown], _ = told(
        "I want to see how the counting logic of the camera in the hall of my house reduces"
        " the total latency of a frame, which is currently at 180 ms"
    )
    assert shown.endswith("is currently at 180 ms")


def test_a_value_that_did_not_change_is_remembered_but_not_shown() -> None:
    shown, struck = told("My Zotero library has 45 sources, how do I sort them?")
    assert (shown, struck) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        "What is the probability of a sum of 7 with 2 dice?",
        "Solve x^2 + 3x = 10 for me",
        "We use Python 3.13 and PostgreSQL 16",
        "On March 5 I went to the park with Sam",
        "```\nthe response time is now 250 ms\n```",
        "Is a 54-year-old allowed to drive a bus there?",
    ],
)
def test_other_numbers_are_not_read_as_values(text: str) -> None:
    assert told(text, text.replace("3", "4").replace("7", "8"))[0] == []


def test_a_rule_survives_any_number_of_preferences() -> None:
    said = [
        "Never push to main",
        *(
            f"I prefer the plant {word(n)} for the garden of {word(n)}s in the long summer here"
            for n in range(90)
        ),
    ]
    state = fold(*map(message, said))
    assert [rule.text for rule in state.rules] == ["Never push to main"]
    assert len(state.preferences) == MAX_PREFERENCES
    text = write_yaml(state, session="id", workspace="/srv/garden", turn_count=91)
    assert "Never push to main" in text
    assert all(f"plant {word(n)}" in text for n in range(50, 90))


def test_long_texts_are_shortened_before_anything_is_left_out() -> None:
    wishes = [
        f"I prefer {word(n)} with {word(n + 100)} and {word(n + 200)} over {word(n + 300)} or"
        f" {word(n + 400)} with {word(n + 500)} because of the water in the yard"
        for n in range(36)
    ]
    state = fold(message("Never push to main, not even in a hurry"), *map(message, wishes))
    text = write_yaml(state, session="id", workspace="/srv/garden", turn_count=37)
    assert estimate_tokens(text) <= MAX_STATE_TOKENS
    assert "Never push to main, not even in a hurry (turn 1)" in text
    assert text.count("… (turn ") == 36
    assert state.preferences[0].text == wishes[0]


def word(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:04}") * 2


@pytest.mark.parametrize("was", ["r1.0", "d1.0"])  # Rules were decisions in earlier versions.
def test_the_model_can_strike_a_rule_like_a_decision(was: str) -> None:
    strike = used(
        "session_state", {"action": "strike", "text": "tabs"}, f"Struck {was}: Always use tabs"
    )
    items, struck = list_items(fold(message("Always use tabs"), *strike))
    assert [item for item in items if item.kind == RULE] == []
    assert [(item.id, item.kind, item.struck_by) for item in struck] == [("r1.0", RULE, "model")]


@pytest.mark.parametrize("was", ["v1.0", "v3.0", "v5.0"])  # Its id differs in other histories.
def test_the_model_can_strike_a_value_by_its_text(was: str) -> None:
    output = f"Struck {was}: response time is now 250 ms"
    values = map(message, ("The response time is now 250 ms", "Ok", "The budget is now $300"))
    items, struck = list_items(fold(*values, *used("session_state", {"action": "strike"}, output)))
    assert [item.text for item in items if item.kind == VALUE] == ["budget is now $300"]
    assert [item.id for item in struck] == ["v1.0"]


def test_only_the_person_states_rules() -> None:
    turns = (answer(text="Always use tabs."), *shell("cat rules", "Never use eval"), message("ok"))
    assert fold(*turns).rules == ()


def test_hostile_values_are_bounded() -> None:
    state = fold(message(" ".join(f"the price of item {n} is now ${n}," for n in range(3_000))))
    assert len(state.values) <= 4
    for text in ("1" * 9_000, "1 " * 4_500, "the cost is now $1 " * 500, "a-" * 4_000 + "1 ms"):
        fold(message(text))
