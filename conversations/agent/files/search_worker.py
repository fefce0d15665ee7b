"""Matches lines against an expression, in a process of its own: the search of servers that have no
ripgrep, and of expressions that it does not know.

An expression can keep Python busy for ever, which holds up every thread of a process and cannot be
stopped from inside; this process can be ended.

It is started as a script and imports nothing of ours. In: a line of JSON with ``expression`` and
``ignores_case``, then for each file a line with its size in bytes and its text as UTF-8. Out: a
line of JSON: ``true`` or what is wrong with the expression; then for each file the numbers of its
lines that match.
"""

import json
import re
import sys

MAX_LINES = 10_000  # Of one file


def main() -> None:
    source, target = sys.stdin.buffer, sys.stdout.buffer
    asked = json.loads(source.readline())
    try:
        flags = re.IGNORECASE if asked["ignores_case"] else re.NOFLAG
        expression = re.compile(asked["expression"], flags)
    except (re.error, RecursionError, OverflowError) as error:
        target.write(json.dumps(str(error)).encode() + b"\n")
        return
    target.write(b"true\n")
    target.flush()
    while head := source.readline():
        text = source.read(int(head)).decode("utf-8", "surrogatepass")
        target.write(json.dumps(find_lines(expression, text)).encode() + b"\n")
        target.flush()


def find_lines(expression: re.Pattern[str], text: str) -> list[int]:
    found = []
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, 1):
        if expression.search(line.removesuffix("\r")):
            found.append(number)
            if len(found) == MAX_LINES:
                break
    return found


if __name__ == "__main__":
    main()
