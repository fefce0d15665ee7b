"""What a shell command means to the register: when two try the same thing, what a
commit says, and which line of an output tells the error."""

import re
import shlex
from collections.abc import Sequence

from conversations.domain.text import one_line

from .values import ITEM_CHARS

COMMAND_CHARS, LINE_CHARS = 60, 80
SCANNED_CHARS = 8_000
"""Of an output: so much of its beginning, and of its end."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LOOKING = _set(
    "awk cat cd command curl diff dir du echo egrep env fd file find grep head jq ls printf ps"
    " pwd rg sed stat tail test tree true type wc which whoami ["
)
"""Programs whose failure says that nothing was found, not that something is wrong."""

_LOOKING_GIT = _set("blame branch diff grep log ls-files rev-parse show status")
_WRAPPERS = _set("command env exec hatch nice nohup pdm pipenv poetry sudo time uv")
_CHECKERS = _set(
    "cargo dotnet eslint flake8 go gradle jest make mocha mvn mypy nox npm phpunit pnpm pylint"
    " pyright pytest rspec ruff tox tsc vitest yarn"
)
"""Programs for which a run over more proves a run over less."""

_SEGMENT = re.compile(r"\s*(?:&&|\|\||;|\n)\s*")
_REDIRECT = re.compile(r"\d?>>?&?\s*\S*|<\s*\S+")
_ASSIGNMENT = re.compile(r"\w+=")
_COMMIT_TEXT = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n\s*(.+?)\s*(?:\n|$)")
_ERROR_NAME = re.compile(
    r"^(?:E\s+)?((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)\b:?.*)$"
)
_ERROR_WORD = re.compile(
    r"\b(?:error|fatal|failed|failure|panic|cannot|not found|no such)\b", re.IGNORECASE
)
_EXIT = re.compile(
    r"^\W*(?:the |process |command |failed |with )*(?:exit(?:ed|_code)?|return(?:ed)?[ _]?code)"
    r"(?: with| by)?(?: non-zero)?(?: (?:code|status))?\W*[:= ]\s*(-?\d+)\W*$",
    re.IGNORECASE,
)


def main_words(command: str) -> list[str]:
    """The words of the command that does the work: the last one of a sequence, what
    changes the folder or wraps it left out, without options and redirections."""
    for segment in reversed(_SEGMENT.split(command.strip()[:2000])):
        words = _words(_REDIRECT.sub(" ", segment.split("|")[0]))
        if words and words[0] not in ("cd", "true", "echo"):
            return words
    return []


def _words(segment: str) -> list[str]:
    try:
        words = shlex.split(segment)
    except ValueError:
        words = segment.split()
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in _WRAPPERS):
        words = words[2:] if words[:2] == ["uv", "run"] or words[1:2] == ["run"] else words[1:]
    if len(words) > 2 and re.fullmatch(r"python[\d.]*|py", words[0]) and words[1] == "-m":
        words = words[2:]
    return words[:1] + [word for word in words[1:] if not word.startswith("-")]


def command_key(command: str) -> str:
    """Equal for two commands that try the same thing; empty where a failure would
    not be an error."""
    words = main_words(command)
    if not words or words[0] in _LOOKING:
        return ""
    if words[0] == "git" and words[1:2] and words[1] in _LOOKING_GIT:
        return ""
    return one_line(" ".join(words), limit=ITEM_CHARS)


def covers(done: str, failed: str) -> bool:
    """Whether success of the command ``done`` settles failure of ``failed`` (keys)."""
    if done == failed:
        return bool(done)
    program, *asked = done.split(" ")
    return (
        program in _CHECKERS
        and failed.split(" ")[0] == program
        and set(asked) <= set(failed.split(" ")[1:])
    )


def short_command(command: str) -> str:
    """A command as it is named in a sentence."""
    words = [part for part in _SEGMENT.split(command.strip()) if not part.startswith("cd ")]
    return one_line(" && ".join(words).replace("`", "'"), limit=COMMAND_CHARS)


def commit_message(command: str) -> str:
    """The first line of the message of a ``git commit`` in this command, else empty."""
    if "commit" not in command:
        return ""
    here = _COMMIT_TEXT.search(command)
    if here and "git commit" in command:
        return one_line(here[2], limit=ITEM_CHARS)
    try:
        words = shlex.split(command[:20_000])
    except ValueError:
        return ""
    for place, word in enumerate(words):
        if word == "commit" and place and _is_git(words[:place]):
            return one_line(_message_of(words[place + 1 :]).split("\n")[0], limit=ITEM_CHARS)
    return ""


def _is_git(before: Sequence[str]) -> bool:
    """Whether the words before ``commit`` end as ``git [-C folder] [-c x=y]``."""
    words = list(before)
    while words and (words[-1].startswith("-") or (len(words) > 1 and words[-2] in ("-C", "-c"))):
        words.pop()
    return bool(words) and words[-1] in ("git", "/usr/bin/git")


def _message_of(words: Sequence[str]) -> str:
    for place, word in enumerate(words):
        if word.startswith("--message="):
            return word.partition("=")[2].strip()
        if word == "--message" or re.fullmatch(r"-[a-z]*m", word):
            return words[place + 1].strip() if place + 1 < len(words) else ""
        if re.match(r"-m\S", word):
            return word[2:].strip()
        if word in ("&&", ";", "||"):
            return ""
    return ""


def exit_code(output: str) -> int | None:
    """The exit code that the first or the last line of an output reports."""
    lines = output[:200].lstrip().split("\n", 1)[:1] + output[-200:].rstrip().rsplit("\n", 1)[-1:]
    found = [match for line in lines if (match := _EXIT.match(line.strip()))]
    return int(found[-1][1]) if found else None


def error_line(output: str) -> str:
    """The line that says what went wrong."""
    text = output
    if len(output) > 2 * SCANNED_CHARS:
        text = f"{output[:SCANNED_CHARS]}\n{output[-SCANNED_CHARS:]}"
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _EXIT.match(line)]
    named = [match[1] for line in lines if (match := _ERROR_NAME.match(line))]
    worded = [line for line in lines if _ERROR_WORD.search(line)]
    best = named[-1:] or worded[:1] or lines[-1:]
    return one_line(best[0], limit=LINE_CHARS) if best else ""
