"""How much work one text may be to render, counted and not timed.

A text that anybody wrote can be a thousand times the work of an ordinary one of the same
length. So each step of the parser is counted against a budget, and a text that uses it up
is shown as it was written. Counts are the same on every machine, so a row has the same
HTML wherever and whenever it is rendered.
"""

from dataclasses import dataclass, field

MAX_STEPS = 60_000
"""Steps for one text. A step is one try of the parser's rules at one place, one token, or
200 characters of HTML; what takes longer counts as several. A step takes 2 to 6 µs of CPU
time, so a text takes at most about 0.35 s. 100,000 characters of ordinary text take 15,000
to 30,000 steps."""

MAX_CODE_CHARS = 10_000
"""The longest code that is coloured. A lexer can take the square of its length, so all of
a text's code counts by its square: a hundred blocks of a tenth of the length are as much."""

MAX_FRAME_STEPS, MAX_FRAME_CODE_CHARS = 5_000, 3_000
"""The same for what one frame of a streaming text makes final, at most about 30 ms. It is
made on the event loop, which serves nobody else meanwhile."""

STEPS_FOR_CHAR = 20
"""Steps that each character of a streaming text adds, up to those of one frame."""

MAX_OPEN_STEPS = 1_500
"""Steps for the block that is being written, which is laid out again in every frame."""

STEPS_OF_ADDRESS, CHARS_OF_ADDRESS_IN_A_STEP, CHARS_OF_A_SIGN = 12, 40, 12
"""For spelling an address as browsers do, which reads it sign by sign. One that is not
ASCII becomes up to CHARS_OF_A_SIGN times as long."""

STEPS_OF_CODE_BLOCK, STEPS_OF_COLOURS, CHARS_OF_COLOURS_IN_A_STEP = 10, 20, 4


class TooMuchWork(Exception):
    """The budget is used up."""


@dataclass(slots=True)
class Work:
    """What is left of a budget; ``spend`` raises TooMuchWork when that is nothing."""

    left: int = MAX_STEPS
    code_chars: int = MAX_CODE_CHARS
    code_squares: int = field(init=False)

    def __post_init__(self) -> None:
        self.code_squares = self.code_chars**2

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork

    def spend_on_address(self, url: str) -> None:
        size = len(url) if url.isascii() else CHARS_OF_A_SIGN * len(url)
        self.spend(STEPS_OF_ADDRESS + size // CHARS_OF_ADDRESS_IN_A_STEP)

    def take_code(self, chars: int) -> bool:
        """Count a code block of that length, and say whether it may be coloured."""
        if chars**2 > self.code_squares:
            self.spend(STEPS_OF_CODE_BLOCK)
            return False
        self.code_squares -= chars**2
        self.spend(STEPS_OF_COLOURS + chars // CHARS_OF_COLOURS_IN_A_STEP)
        return True

    def refill(self, chars: int) -> None:
        """For the next frame of a stream, which brings so many characters."""
        self.left = min(MAX_FRAME_STEPS, max(self.left, 0) + STEPS_FOR_CHAR * chars)
        self.code_squares = self.code_chars**2
