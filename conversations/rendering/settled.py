"""Which rows of a page a later one of the same call stands for.

A call's rows are: started, asked, decided, completed. The browser finds the same
(``marks.js``) whenever rows come or go; a page has it from the start, so that nothing
moves when the scripts begin, and where there are none.
"""

import re
from collections.abc import Sequence

STAY = {"1": "1", "2": "2", "3": "13", "4": "4"}
"""The steps of a call that stay, by its last one."""

_STEP = re.compile(
    r'<article class="(?P<class>[^"]*)"[^>]*'
    r' data-call="(?P<call>[^"]*)" data-step="(?P<step>[1-4])"'
)


def mark_settled(rows: Sequence[str]) -> list[str]:
    """The rows, with a class for those that others stand for."""
    marked = list(rows)
    for steps in _calls(rows):
        stay = STAY[steps[-1][1]["step"]]
        for place, found in steps:
            if found["step"] not in stay:
                end = found.end("class")
                marked[place] = f"{rows[place][:end]} settled{rows[place][end:]}"
    return marked


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
