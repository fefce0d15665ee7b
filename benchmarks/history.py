"""Sessions of any length, written through the archive in large transactions."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import batched, cycle, islice
from random import Random

from conversations.archive.append import NewEvent, PreparedEvent, append, prepare_event
from conversations.domain.events import (
    AssistantText,
    Payload,
    ToolCallCompleted,
    ToolCallStarted,
    TurnSeparator,
    UserMessage,
)
from conversations.domain.text import dump_json, estimate_tokens
from conversations.domain.turns import NewTurn
from conversations.models import Session

EXCHANGES_AT_ONCE = 100
TURNS_PER_EXCHANGE, ROWS_PER_EXCHANGE = 4, 6
DISTINCT_EXCHANGES = 120
"""Enough for a page to contain none twice, so that it compresses like prose."""

SYLLABLES = "bacedifogulamenioruraset"
"""Twelve pairs of letters. Three pairs make a word."""

CODE = """
```python
def {0}({1}: str) -> list[str]:
    \"\"\"{2}.\"\"\"
    return [f"{{{1}}} {3}" for _ in range({4})]
```
"""

type Rows = list[tuple[int, PreparedEvent]]
"""Prepared rows, each with the index of its turn."""


def write_history(session: Session, *, turns: int) -> None:
    """Append exchanges of four turns and six rows each."""
    exchanges = list(_exchanges(session))
    endless = islice(cycle(exchanges), turns // TURNS_PER_EXCHANGE)
    for batch in batched(endless, EXCHANGES_AT_ONCE, strict=False):
        new_turns: list[NewTurn] = []
        events: list[PreparedEvent] = []
        for made_turns, rows in batch:
            first = len(new_turns)
            new_turns += made_turns
            for index, prepared in rows:
                event = replace(prepared.event, new=first + index)
                events.append(replace(prepared, event=event))
        append(session.pk, session_uuid=session.uuid, turns=new_turns, events=events)
    session.refresh_from_db()


def make_answer(random: Random) -> str:
    """Return some paragraphs of Markdown. A third of the answers has a list, and a third code."""
    parts = [_sentences(random, random.randint(2, 7)) for _ in range(random.randint(1, 3))]
    if random.random() < 1 / 3:
        parts.append("\n".join(f"- **{_words(random, 2)}** {_words(random, 9)}" for _ in range(4)))
    if random.random() < 1 / 3:
        names = [_word(random) for _ in range(2)]
        parts.append(
            CODE.format(*names, _words(random, 5), _words(random, 3), random.randint(2, 99))
        )
    return "\n\n".join(parts)


def _word(random: Random) -> str:
    number = int(random.triangular(0, 12**3, 0))  # some words are frequent, as in prose
    return "".join(SYLLABLES[number // 12**place % 12 * 2 :][:2] for place in range(3))


def _words(random: Random, count: int) -> str:
    return " ".join(_word(random) for _ in range(count))


def _sentences(random: Random, count: int) -> str:
    return " ".join(_words(random, random.randint(6, 16)).capitalize() + "." for _ in range(count))


def _exchanges(session: Session) -> Iterator[tuple[list[NewTurn], Rows]]:
    """Yield the distinct exchanges, each rendered once."""
    random = Random(1)
    for number in range(DISTINCT_EXCHANGES):
        question = _sentences(random, random.randint(1, 3))
        said, answer = _sentences(random, 1), make_answer(random)
        output = "\n".join(f"{n}: {_words(random, 7)}" for n in range(random.randint(1, 30)))
        call_id, arguments = f"toolu_{number}", {"path": f"{_word(random)}/{_word(random)}.md"}
        calls = [{"type": "tool_use", "id": call_id, "name": "read_file", "input": arguments}]
        blocks = [{"type": "text", "text": said}, *calls]
        payloads: list[tuple[int, Payload]] = [
            (0, UserMessage(text=question)),
            (1, AssistantText(text=said)),
            (1, ToolCallStarted(call_id=call_id, name="read_file", arguments=arguments)),
            (2, ToolCallCompleted(call_id=call_id, name="read_file", ok=True, output=output)),
            (3, AssistantText(text=answer)),
            (3, TurnSeparator(run="", stop_reason="end_turn", input_tokens=900, output_tokens=200)),
        ]
        turns = [
            _turn("user", question),
            _turn("assistant", said, blocks=dump_json(blocks), calls=dump_json(calls)),
            _turn("tool", output, call_id=call_id),
            _turn("assistant", answer, blocks=dump_json([{"type": "text", "text": answer}])),
        ]
        yield turns, [(index, _prepared(session, payload)) for index, payload in payloads]


def _turn(
    role: str,
    content: str,
    *,
    blocks: str | None = None,
    calls: str | None = None,
    call_id: str | None = None,
) -> NewTurn:
    return NewTurn(
        role=role,
        content=content,
        blocks=blocks,
        tool_calls=calls,
        tool_call_id=call_id,
        tool_name="read_file" if call_id else None,
        token_count=estimate_tokens(content),
    )


def _prepared(session: Session, payload: Payload) -> PreparedEvent:
    return prepare_event(NewEvent(payload=payload), session_uuid=session.uuid)
