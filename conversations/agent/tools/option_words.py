"""The options of a program's command line, read by the grammar that git's parse-options and GNU's
getopt_long share, against a list of the options that are allowed.

A list is a text of words: ``-n`` is a flag, ``-m=`` takes a value (``-mx``, ``-m x``),
``-U?`` may have one in the same word, ``--merged~`` takes the next word if there is one,
``-#`` is a number such as ``-20``. ``--strategy=ort|ours`` takes one of these values. An
allowed ``--name`` also allows ``--no-name``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

_MARKS = "=?~"


class NotAllowed(Exception):
    """A word that the list does not allow. The message is a sentence that names it."""


@dataclass(frozen=True, slots=True)
class ReadWords:
    """``options`` are (name as written, value or None), ``plain`` the other words."""

    options: list[tuple[str, str | None]] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    has_dashes: bool = False

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.options)


@cache
def read_list(text: str) -> Mapping[str, str]:
    """The allowed options with their marks. Of two of one name the later counts."""
    allowed = {}
    for word in text.split():
        at = min((at for mark in _MARKS if (at := word.find(mark)) > 0), default=len(word))
        allowed[word[:at]] = word[at:]
    return allowed


def read_words(words: Sequence[str], allowed: Mapping[str, str]) -> ReadWords:
    """Raises NotAllowed for every word that begins with ``-`` and is no allowed option, behind
    ``--`` and in the place of a value as well: so it does not matter when the program's own idea of
    which option takes a value is another one."""
    found, rest = ReadWords(), iter(enumerate(words))
    for at, word in rest:
        if word == "--":
            return _read_behind_dashes(found, words[at + 1 :])
        if word == "-" or not word.startswith("-"):
            found.plain.append(word)
            continue
        following = words[at + 1] if at + 1 < len(words) else None
        read = _read_long if word[1] == "-" else _read_bundle
        options = list(read(word, allowed))
        found.options.extend((name, value) for name, value, _ in options)
        name, value, mark = options[-1]  # only the last of a bundle can have a value
        if value is None and mark[:1] in ("=", "~") and (mark[0] == "=" or _is_value(following)):
            if following is None:
                raise NotAllowed(f"The option {name} needs a value.")
            if not _is_value(following):
                joined = (
                    f"{name}={_shorten(following)}"
                    if name.startswith("--")
                    else f"{name}{_shorten(following)}"
                )
                raise NotAllowed(f"Write {joined} for a value that begins with '-'.")
            found.options[-1] = (name, following)
            next(rest)
        _check_choice(*found.options[-1], mark)
    return found


def _read_behind_dashes(found: ReadWords, words: Sequence[str]) -> ReadWords:
    for word in words:
        if word.startswith("-") and word != "-":
            raise NotAllowed(f"Write ./{_shorten(word)} for a path that begins with '-'.")
    return ReadWords(found.options, [*found.plain, *words], has_dashes=True)


def _read_long(word: str, allowed: Mapping[str, str]) -> Iterator[tuple[str, str | None, str]]:
    name, equals, value = word.partition("=")
    mark = allowed.get(name)
    if mark is None and name.startswith("--no-") and f"--{name[5:]}" in allowed:
        mark = ""
    if mark is None or (equals and not mark):
        raise NotAllowed(_explain(name, allowed))
    yield name, value if equals else None, mark


def _read_bundle(word: str, allowed: Mapping[str, str]) -> Iterator[tuple[str, str | None, str]]:
    if word[1:].isdecimal() and word.isascii() and "-#" in allowed:
        yield "-#", word[1:], ""
        return
    for at, letter in enumerate(word[1:], start=2):
        mark = allowed.get(f"-{letter}")
        if mark is None:
            raise NotAllowed(_explain(f"-{letter}", allowed, within=word))
        value = word[at:] if mark and at < len(word) else None
        yield f"-{letter}", value, mark
        if value is not None:
            return


def _is_value(word: str | None) -> bool:
    return word is not None and (word == "-" or not word.startswith("-"))


def _check_choice(name: str, value: str | None, mark: str) -> None:
    choices = mark[1:]
    if choices and value is not None and value not in choices.split("|"):
        one_of = ", ".join(choices.split("|"))
        raise NotAllowed(f"The option {name} is only taken with one of: {one_of}.")


def _explain(name: str, allowed: Mapping[str, str], *, within: str = "") -> str:
    shown = _shorten(name)
    if within and within != name:
        return f"The option {shown} (in {_shorten(within)}) is not taken here."
    full = [known for known in allowed if known.startswith(name)] if len(name) > 2 else []
    if full and name not in allowed:
        return f"The option {shown} is not taken: write options in full, as in {full[0]}."
    return f"The option {shown} is not taken here."


def _shorten(word: str) -> str:
    return word[:100]
