"""Scenarios: the answers that the server is to give, and their faults.

A scenario comes from ``enqueue()`` in the same process, or from a directive (see
``directive``), so that another process can ask for it.
"""

from dataclasses import dataclass, field, fields
from typing import Any

SENTENCE = (
    "the archive keeps every word that was said and the window shows the model a part of it"
    " so that a long session stays quick and nothing gets lost on the way from turn to turn"
)
WORDS = SENTENCE.split()
FAULT_FIELDS = (
    "times",
    "status",
    "body",
    "refuse",
    "error_after",
    "drop_after",
    "short_after",
    "end_after",
    "hang_after",
    "garbage_after",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool_use block to send. An empty ``id`` is replaced by a generated one.

    ``sealed`` is sent along in Chat Completions, as Gemini does.
    """

    name: str
    input: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    sealed: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One answer. The default is a short echo, as fast as possible.

    A count "after k deltas" counts the content deltas of the whole answer. A fault at 0 comes
    before the first delta. A fault beyond the end comes after the last delta.
    """

    # Content
    text: str | None = None
    words: int | None = None  # that many words instead of ``text``
    deltas: int | None = None  # words for exactly so many deltas instead of ``text``
    thinking: str | int = ""  # a thinking block first: its text, or its number of words
    tools: tuple[ToolCall, ...] = ()  # tool_use blocks, after the text
    rounds: int = 1  # times that ``tools`` are called for one message of the person
    answers_as: str = ""  # the model that the answer names; default: the requested model
    stop_reason: str | None = None  # default: tool_use if there are tools, else end_turn
    stop_details: dict[str, Any] | None = None
    empty: bool = False  # an answer without content
    cut_tool: bool = False  # the last tool's input is cut in the middle (with max_tokens)
    needs_tool: str = ""  # an enqueued scenario waits for a request that offers this tool

    # Pace
    delay: float = 0.0  # seconds before the response's headers
    first_delay: float = 0.0  # seconds between message_start and the first block
    linger: float = 0.0  # seconds between message_stop and the end of the body
    rate: float = 0.0  # deltas a second; 0: as fast as possible
    ahead: int = 0  # deltas that are sent as fast as possible before the rate begins
    chunk: int = 4  # characters in a delta
    stamp: bool = False  # each delta's text is ``~<monotonic_ns>~ `` at its socket write

    # Faults before the stream
    status: int = 0  # an HTTP error
    error_type: str = ""  # type of the HTTP error or error event; default: by status
    error_message: str = ""
    retry_after: str = ""  # the value of the Retry-After header
    headers: dict[str, str] = field(default_factory=dict)  # further headers of the error
    times: int = 0  # how often the fault happens before the answer succeeds; 0: always
    body: str = ""  # 200 with ``html``, ``json`` or the ``whole`` answer instead of a stream
    refuse: bool = False  # close the connection without an answer

    # Faults in mid-stream, after k deltas
    error_after: int | None = None  # an SSE error event of ``error_type``
    drop_after: int | None = None  # reset the connection
    short_after: int | None = None  # close the connection in the middle of the body
    end_after: int | None = None  # end cleanly without message_stop
    hang_after: int | None = None  # silence until the client leaves
    garbage_after: int | None = None  # an event whose data is no JSON

    # Oddities of the wire
    split: int = 0  # bytes in a write; 1: one byte at a time
    glue: int = 0  # events in a write
    crlf: bool = False  # lines end with CRLF
    ping: int = 0  # a ping before every so many deltas
    usage: bool = True  # False: no usage fields at all
    cache_fields: bool = True  # False: usage without the cache fields
    extras: bool = False  # unknown events, blocks, deltas and keys

    @property
    def fails(self) -> bool:
        """Return whether the scenario has a fault that ``times`` counts."""
        faults = (self.error_after, self.drop_after, self.short_after, self.end_after)
        more = (self.hang_after, self.garbage_after)
        return bool(self.status or self.body or self.refuse) or any(
            fault is not None for fault in (*faults, *more)
        )


def without_fault(scenario: Scenario) -> Scenario:
    """Return the scenario without its fault."""
    kept = {f.name: getattr(scenario, f.name) for f in fields(scenario)}
    return Scenario(**{k: v for k, v in kept.items() if k not in FAULT_FIELDS})


def make_words(count: int) -> str:
    """Return ``count`` words in sentences of twelve and paragraphs of sixty words."""
    words = [WORDS[number % len(WORDS)] for number in range(count)]
    sentences = [" ".join(words[at : at + 12]).capitalize() + "." for at in range(0, count, 12)]
    return "\n\n".join(" ".join(sentences[at : at + 5]) for at in range(0, len(sentences), 5))
