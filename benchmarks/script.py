"""A scripted session: messages, tool calls with results of random size, and answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from conversations.agent.tools.tool import Tool, ToolContext, ToolResult
from tests.wire.scenario import Scenario, ToolCall, make_words

TOOL = "read_sample"
MAX_RESULT_CHARS = 60_000
"""About half of a window of 32,000 tokens."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message and the ``scenarios`` that answer its model calls, in order."""

    text: str
    scenarios: list[Scenario]


def make_script(exchanges: int, *, seed: int = 1) -> Iterator[Exchange]:
    """Yield exchanges, the same ones for the same seed.

    About half of them call tools, in up to four rounds of one or two calls. Most results are short,
    and a few are very long.
    """
    random = Random(seed)
    for number in range(exchanges):
        text = f"Message {number}: {make_words(random.randint(4, 60))}"
        rounds = random.choice((0, 0, 0, 1, 1, 2, 4))
        scenarios = [
            Scenario(
                text=make_words(random.randint(3, 20)),
                tools=tuple(_make_call(random) for _ in range(random.choice((1, 1, 2)))),
            )
            for _ in range(rounds)
        ]
        yield Exchange(text, [*scenarios, Scenario(text=make_words(random.randint(10, 150)))])


def _make_call(random: Random) -> ToolCall:
    size = min(MAX_RESULT_CHARS, int(random.lognormvariate(6.5, 1.3)))
    return ToolCall(name=TOOL, input={"size": size, "seed": random.randrange(10**6)})


async def _read_sample(context: ToolContext, arguments: dict[str, Any]) -> ToolResult:
    return ToolResult(ok=True, output=make_sample(arguments["size"], seed=arguments["seed"]))


def make_sample(size: int, *, seed: int) -> str:
    """Return ``size`` characters of mixed code, JSON and prose."""
    random = Random(seed)
    lines: list[str] = []
    length = 0
    while length < size:
        word = make_words(3).replace(" ", random.choice("_-"))
        line = random.choice(
            (
                f"    def {word}(self, value_{random.randrange(99)}: int) -> None:",
                f'{{"name": "{word}", "count": {random.randrange(10**6)}, "ok": true}}',
                f"{random.randrange(10**4)}: {make_words(random.randint(3, 18))}",
            )
        )
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)[:size]


SAMPLE_TOOL = Tool(
    name=TOOL,
    description="Read a sample of text.",
    arguments={
        "type": "object",
        "properties": {"size": {"type": "integer"}, "seed": {"type": "integer"}},
        "required": ["size", "seed"],
    },
    run=_read_sample,
)
