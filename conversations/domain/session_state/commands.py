"""Reading of shell commands for the session state.

The functions tell whether two commands try the same thing, find the message of a commit, and find
the line of an output that names the error.
"""

import re
import shlex
from collections.abc import Sequence

from conversations.domain.text import one_line, strip_terminal_codes

from . import MAX_ITEM_CHARS

MAX_COMMAND_CHARS, MAX_LINE_CHARS = 60, 80
SCANNED_OUTPUT_CHARS = 8_000  # Of the beginning of an output, and of its end.


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Programs whose failure means that they found nothing, not that something is wrong.
_LOOKING = _word_set(
    "awk cat cd command curl diff dir du echo egrep env fd file find grep head jq ls printf ps"
    " pwd rg sed stat tail test tree true type wc which whoami ["
)

_LOOKING_GIT = _word_set("blame branch diff grep log ls-files rev-parse show status")
_WRAPPERS = _word_set("command env exec hatch nice nohup pdm pipenv poetry sudo time uv")
# Programs for which success with fewer arguments, which check more, implies success with more.
_CHECKERS = _word_set(
    "cargo dotnet eslint flake8 go gradle jest make mocha mvn mypy nox npm phpunit pnpm pylint"
    " pyright pytest rspec ruff tox tsc vitest yarn"
)

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


def command_key(command: str) -> str:
    """Return a key that is equal for two commands that try the same thing.

    The key is empty if a failure would not be an error. For a sequence of commands, it is made from
    the last command that does work. It has no options, redirections, assignments or wrappers.
    """
    words: list[str] = []
    for segment in reversed(_SEGMENT.split(command.strip()[:2000])):
        segment = _REDIRECT.sub(" ", segment.split("|")[0])
        words = _split_words(segment) or segment.split()
        while words and (_ASSIGNMENT.match(words[0]) or words[0] in _WRAPPERS):
            words = words[2:] if words[:2] == ["uv", "run"] or words[1:2] == ["run"] else words[1:]
        if len(words) > 2 and re.fullmatch(r"python[\d.]*|py", words[0]) and words[1] == "-m":
            words = words[2:]
        if words and words[0] not in ("cd", "true", "echo"):
            break
        words = []
    words = words[:1] + [word for word in words[1:] if not word.startswith("-")]
    if not words or words[0] in _LOOKING:
        return ""
    if words[0] == "git" and not _LOOKING_GIT.isdisjoint(words[1:2]):
        return ""
    return one_line(" ".join(words), limit=MAX_ITEM_CHARS)


def _split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


def covers(done: str, failed: str) -> bool:
    """Whether the success of the command ``done`` resolves the failure of ``failed`` (keys)."""
    if done == failed:
        return bool(done)
    program, *arguments = done.split(" ")
    return (
        program in _CHECKERS
        and failed.split(" ")[0] == program
        and set(arguments) <= set(failed.split(" ")[1:])
    )


def short_command(command: str) -> str:
    """Return a short form of a command, for a sentence."""
    words = [part for part in _SEGMENT.split(command.strip()) if not part.startswith("cd ")]
    return one_line(" && ".join(words).replace("`", "'"), limit=MAX_COMMAND_CHARS)


def commit_message(command: str) -> str:
    """Return the first line of the message of a ``git commit`` in this command, else empty."""
    if "commit" not in command:
        return ""
    heredoc = _COMMIT_TEXT.search(command)
    if heredoc and "git commit" in command:
        return one_line(heredoc[2], limit=MAX_ITEM_CHARS)
    words = _split_words(command[:20_000])
    for index, word in enumerate(words):
        if word != "commit":
            continue
        before = words[:index]
        # Options may stand between the two words: git [-C folder] [-c x=y] commit
        while before and (before[-1].startswith("-") or before[-2:-1] in (["-C"], ["-c"])):
            before.pop()
        if before and before[-1] in ("git", "/usr/bin/git"):
            return one_line(_message_of(words[index + 1 :]).split("\n")[0], limit=MAX_ITEM_CHARS)
    return ""


def _message_of(words: Sequence[str]) -> str:
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word in ("&&", ";", "||"):
            break
        if word == "--message" or re.fullmatch(r"-[a-z]*m", word):
            return following.strip()
        option = re.match(r"--message=|-m(?=\S)", word)
        if option:
            return word[option.end() :].strip()
    return ""


def exit_code(output: str) -> int | None:
    """Return the exit code that the first or the last line of an output reports, or None."""
    lines = output[:200].lstrip().split("\n", 1)[:1] + output[-200:].rstrip().rsplit("\n", 1)[-1:]
    matches = [match for line in lines if (match := _EXIT.match(line.strip()))]
    return int(matches[-1][1]) if matches else None


def error_line(output: str, *, limit: int = MAX_LINE_CHARS) -> str:
    """Return the line of an output that names the error."""
    text = output
    if len(output) > 2 * SCANNED_OUTPUT_CHARS:
        text = f"{output[:SCANNED_OUTPUT_CHARS]}\n{output[-SCANNED_OUTPUT_CHARS:]}"
    lines = [line.strip() for line in strip_terminal_codes(text).splitlines()]
    lines = [line for line in lines if line and not _EXIT.match(line)]
    named = [match[1] for line in lines if (match := _ERROR_NAME.match(line))]
    worded = [line for line in lines if _ERROR_WORD.search(line)]
    best = named[-1:] or worded[:1] or lines[-1:]
    return one_line(best[0], limit=limit) if best else ""
