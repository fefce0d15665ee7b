"""A program that matches lines against a regular expression.

It is used on servers without ripgrep, and for expressions that ripgrep does not support. An
expression can keep Python busy for ever, which blocks every thread of a process and cannot be
stopped from inside. A separate process can be killed.

It is started as a script and imports none of our modules. Input: a line of JSON with ``expression``
and ``ignores_case``; then for each file a line with its size in bytes, and its text as UTF-8.
Output: a line of JSON, which is ``true`` or an error message about the expression; then for each
file the numbers of its matching lines, or ``null`` if matching takes too much memory.
"""

import json
import re
import resource
import sys

MAX_LINES = 10_000  # Per file
MAX_MEMORY_BYTES = 512 * 2**20
MAX_CPU_SECONDS = 30  # In case the server dies before it can kill this process


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    query = json.loads(source.readline())
    try:
        flags = re.IGNORECASE if query["ignores_case"] else re.NOFLAG
        expression = re.compile(query["expression"], flags)
    except (re.error, RecursionError, OverflowError) as error:
        target.write(json.dumps(str(error)).encode() + b"\n")
        return
    target.write(b"true\n")
    target.flush()
    while head := source.readline():
        data = source.read(int(head))
        try:
            numbers: list[int] | None = find_lines(expression, data)
        except MemoryError:
            numbers = None
        target.write(json.dumps(numbers).encode() + b"\n")
        target.flush()


def find_lines(expression: re.Pattern[str], data: bytes) -> list[int]:
    numbers = []
    lines = data.decode("utf-8", "surrogatepass").split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, 1):
        if expression.search(line.removesuffix("\r")):
            numbers.append(number)
            if len(numbers) == MAX_LINES:
                break
    return numbers


if __name__ == "__main__":
    main()
