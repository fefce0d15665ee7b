"""Matches lines against an expression, in a process of its own: the search of servers that have no
ripgrep, and of expressions that it does not know.

An expression can keep Python busy for ever, which holds up every thread of a process and cannot be
stopped from inside; this process can be ended.

It is started as a script and imports nothing of ours. In: a line of JSON with ``expression`` and
``ignores_case``, then for each file a line with its size in bytes and its text as UTF-8. Out: a
line of JSON: ``true`` or what is wrong with the expression; then for each file the numbers of its
lines that match, or ``null`` if that takes too much memory.
"""

import json
import re
import resource
import sys

MAX_LINES = 10_000  # Of one file
MAX_MEMORY_BYTES = 512 * 2**20
MAX_CPU_SECONDS = 30  # Should the server die before it can end this


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
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
        data = source.read(int(head))
        try:
            found: list[int] | None = find_lines(expression, data)
        except MemoryError:
            found = None
        target.write(json.dumps(found).encode() + b"\n")
        target.flush()


def find_lines(expression: re.Pattern[str], data: bytes) -> list[int]:
    found = []
    lines = data.decode("utf-8", "surrogatepass").split("\n")
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
