"""Which rows of a page a later one of the same call stands for.

A call's rows are: started, asked, decided, completed. The browser finds the same
(``marks.js``) whenever rows come or go; a page has it from the start, so that nothing
moves when the scripts begin, and where there are none.

A result that came with nothing but itself (of a turn without a journal, of another
program's journal) is shown with what its call was asked, which only the first row says.
"""

import re
from collections.abc import Sequence

STAY = {"1": "1", "2": "2", "3": "13", "4": "4"}
"""The steps of a call that stay, by its last one."""

_STEP = re.compile(
    r'<article class="(?P<class>[^"]*)"[^>]*'
    r' data-call="(?P<call>[^"]*)" data-step="(?P<step>[1-4])"'
)

_BARE = "</b><small>"
"""A line that does not say what the call was about."""

_RECORD = 'data-action="panel"'
"""The link to the record of a call that was carried out here, whose results say it all."""

_ASKED = re.compile(
    r"</b>(?P<argument><code>.*?</code>)<small>.*?</summary>(?P<arguments>.*)</details></article>",
    re.DOTALL,
)


def mark_settled(rows: Sequence[str]) -> list[str]:
    """The rows, with a class for those that others stand for."""
    marked = list(rows)
    for steps in _calls(rows):
        stay = STAY[steps[-1][1]["step"]]
        first, last = steps[0], steps[-1]
        if (first[1]["step"], last[1]["step"]) == ("1", "4"):
            marked[last[0]] = _with_arguments(rows[last[0]], rows[first[0]])
        for place, found in steps:
            if found["step"] not in stay:
                end = found.end("class")
                marked[place] = f"{rows[place][:end]} settled{rows[place][end:]}"
    return marked


def _with_arguments(completed: str, started: str) -> str:
    """Where the row does not say what was asked, it says what the one before it says."""
    asked = _ASKED.search(started) if _BARE in completed else None
    if asked is None or _RECORD in asked["arguments"]:
        return completed
    told = completed.replace("</b>", f"</b>{asked['argument']}", 1)
    return told.replace("</summary>", f"</summary>{asked['arguments']}", 1)


def _calls(rows: Sequence[str]) -> list[list[tuple[int, re.Match[str]]]]:
    """The rows of each call. An id may come again: in another answer, or empty."""
    calls: list[list[tuple[int, re.Match[str]]]] = []
    newest: dict[str, list[tuple[int, re.Match[str]]]] = {}
    for place, html in enumerate(rows):
        found = _STEP.match(html)
        if found is None:
            continue
        steps = newest.get(found["call"])
        if steps is None or found["step"] == "1" or steps[-1][1]["step"] == "4":
            steps = newest[found["call"]] = []
            calls.append(steps)
        steps.append((place, found))
    return calls
