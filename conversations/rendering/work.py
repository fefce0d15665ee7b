"""How much work one text may be to render, counted and not timed.

A text that anybody wrote can be a thousand times the work of an ordinary one of the same
length. So each step of the parser is counted against a budget, and a text that uses it up
is shown as it was written. Counts are the same on every machine, so a row has the same
HTML wherever and whenever it is rendered.
"""

from dataclasses import dataclass

MAX_STEPS = 60_000
"""Steps for one text. A step is one try of the parser's rules at one place, one token, or
200 characters of HTML, and takes 1 to 15 µs. An ordinary text takes a step for each 10
characters, so that half a megabyte of it is laid out."""

MAX_CODE_CHARS = 100_000
"""Characters of code that are coloured in one text."""

MAX_FRAME_STEPS, MAX_FRAME_CODE_CHARS = 10_000, 20_000
"""The same for what one frame of a streaming text makes final. It is made on the event
loop, which serves nobody else meanwhile."""

STEPS_FOR_CHAR = 20
"""Steps that each character of a streaming text adds, up to those of one frame."""

MAX_OPEN_STEPS = 1_500
"""Steps for the block that is being written, which is laid out again in every frame."""


class TooMuchWork(Exception):
    """The budget is used up."""


@dataclass(slots=True)
class Work:
    """What is left of a budget; ``spend`` raises TooMuchWork when that is nothing."""

    left: int = MAX_STEPS
    code_chars: int = MAX_CODE_CHARS

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork

    def take_code(self, chars: int) -> bool:
        """Whether code of that length may be coloured."""
        if chars > self.code_chars:
            return False
        self.code_chars -= chars
        return True

    def refill(self, chars: int) -> None:
        """For the next frame of a stream, which brings so many characters."""
        self.left = min(MAX_FRAME_STEPS, max(self.left, 0) + STEPS_FOR_CHAR * chars)
        self.code_chars = MAX_FRAME_CODE_CHARS
