"""What the blocks of a streaming text have in common while they are being written."""

from dataclasses import dataclass, field
from typing import Protocol

from .work import TooMuchWork, Work


class Pieces:
    """A string that is cheap to append to."""

    def __init__(self, text: str = "") -> None:
        self._pieces = [text]
        self.size = len(text)

    def append(self, text: str) -> None:
        self._pieces.append(text)
        self.size += len(text)

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


class OpenText(Protocol):
    """The end of a streaming text that is not final."""

    @property
    def source(self) -> str:
        """Its text."""

    def take(self, text: str, work: Work) -> "Taken":
        """Take more text and say what has become of it. Raises TooMuchWork, with the text
        taken."""

    def html(self, work: Work) -> str:
        """The HTML of what is open, as if the text ended here. Raises TooMuchWork."""

    def close(self, work: Work) -> list[str]:
        """The text of each block in it, now that the text has ended. Raises TooMuchWork."""


class OpenPlain:
    """A text that takes too much work: no block is looked for in it until its end."""

    def __init__(self, text: str) -> None:
        self._text = Pieces(text)

    @property
    def source(self) -> str:
        return self._text.text

    def take(self, text: str, work: Work) -> "Taken":
        self._text.append(text)
        return Taken(self)

    def html(self, work: Work) -> str:
        raise TooMuchWork

    def close(self, work: Work) -> list[str]:
        return [self._text.text]


@dataclass(slots=True)
class Taken:
    """What has become of text: blocks that are ``final``, ``rest`` to be taken by
    whoever is ``next``. Without a ``next`` nothing is open any more."""

    next: OpenText | None
    final: list[str] = field(default_factory=list)
    rest: str = ""
