"""A program that splits code into tokens.

It is a separate process because many lexers take time quadratic in the length of a construct whose
end they do not find.

It reads a JSON list from standard input: the lexer's module, its class, and a list of code texts.
It writes the list of tokens of each text, as pairs of token type and text. It imports no module of
the product, so that it starts fast.
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
