"""Finds the tokens of code: a program of its own, since many lexers take the square of the length
of what they do not find the end of.

It reads from its input a JSON list of the lexer's module, its class and a list of codes, and writes
for each code the list of its tokens: what kind, and their text. It knows nothing of the product, so
that it starts fast.
"""

import json
import resource
import sys
from importlib import import_module

MAX_CPU_SECONDS, MAX_MEMORY_BYTES = 3, 500_000_000


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    module, name, codes = json.loads(sys.stdin.buffer.read())
    lexer = getattr(import_module(module), name)(stripnl=False, ensurenl=False)
    lexed = [[(".".join(kind), text) for kind, text in lexer.get_tokens(code)] for code in codes]
    print(json.dumps(lexed))


if __name__ == "__main__":
    main()
