"""Measure what the session state holds after a whole chat: ``python -m benchmarks.state FOLDER``.

FOLDER contains the data of BEAM (arXiv 2510.27246): ``<size>/<n>/chat.json`` with the messages and
``probing_questions.json`` with the facts to find. The chats are read with the product's extraction
and judged by the YAML that a model receives.
"""

import argparse
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from conversations.domain.search_tokens import STOP_WORDS, read_tokens
from conversations.domain.session_state import SessionState, StateItem, list_items, write_yaml
from conversations.domain.session_state.facts import fold_facts, read_facts
from conversations.domain.session_state.topics import name_value
from conversations.domain.text import estimate_tokens
from conversations.domain.turns import USER, NewTurn

from .chats import read_questions

INSTRUCTION, PREFERENCE, VALUE = "instructions", "preferences", "changed values"
MIN_WORD_SHARE = 0.7  # an instruction is held if a line has this share of its words
# BEAM states a preference with its reasons, which the person often leaves out. It is held if a line
# shares this part of the words of the shorter text, and at least this number of words. Stop words
# do not count.
MIN_SHARED_SHARE, MIN_SHARED_WORDS = 0.6, 3
_WORD = re.compile(r"\w+(?:['’.,/:]\w+)*")
_NUMBER = re.compile(r"\d[\d,.]*(?::\d\d)?")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")
_MARK = re.compile(r"\s*->->.*\Z", re.DOTALL)


class Asked(NamedTuple):
    """A fact that the state should hold: an item's text, or a value with its question."""

    kind: str
    text: str
    question: str = ""


def read_messages(chat: Any) -> Iterator[dict[str, Any]]:
    """Yield the messages of a chat in order, at any depth of nesting."""
    if isinstance(chat, dict) and "role" in chat and "content" in chat:
        yield chat
    elif isinstance(chat, dict | list):
        for part in chat.values() if isinstance(chat, dict) else chat:
            yield from read_messages(part)


class Change(NamedTuple):
    """A text that the turn ``by`` replaced, and the texts (``later``) that this turn stated."""

    text: str
    by: int
    later: tuple[str, ...]


class Folded(NamedTuple):
    """The result of a chat. ``said`` holds the person's sentences."""

    state: SessionState
    turns: int
    changes: list[Change]
    said: list[str]


def fold_chat(folder: Path) -> Folded:
    """Return the state after the chat in this folder."""
    state, number = SessionState(), 0
    changes: dict[str, Change] = {}
    said: list[str] = []
    for message in read_messages(json.loads((folder / "chat.json").read_text())):
        number += 1
        content = _MARK.sub("", message["content"])
        said += _SENTENCE.split(content) if message["role"] == USER else []
        state = fold_facts(
            state, number, read_facts(NewTurn(role=message["role"], content=content))
        )
        said_now = [(one.text, one.turn) for one in (*state.rules, *state.preferences)]
        said_now += [(value.text, value.turn) for value in state.values]
        later = tuple(text for text, turn in said_now if turn == number)
        for gone in state.replaced:
            if gone.by == number:
                changes[gone.id] = Change(gone.text, number, later)
    return Folded(state, number, [*changes.values()], said)


def read_asked(folder: Path) -> Iterator[Asked]:
    asked = read_questions(folder)
    for question in asked.get("instruction_following", []):
        yield Asked(INSTRUCTION, question["instruction_being_tested"])
    for question in asked.get("preference_following", []):
        yield Asked(PREFERENCE, question["preference_being_tested"])
    for question in asked.get("knowledge_update", []):
        if _NUMBER.search(question.get("answer", "")):
            yield Asked(VALUE, question["answer"], question["question"])


def words_of(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


def is_held(asked: Asked, lines: list[str]) -> bool:
    """Return whether a line holds what was asked for.

    Instructions and preferences are compared by their words. A value is held if a line has its
    first number and a word of the question or answer that is not a stop word.
    """
    if asked.kind == INSTRUCTION:
        words = words_of(asked.text)
        return any(len(words & words_of(line)) >= MIN_WORD_SHARE * len(words) for line in lines)
    if asked.kind == PREFERENCE:
        words = words_of(asked.text) - STOP_WORDS
        return any(_is_same(words, line.partition(" (turn ")[0]) for line in lines)
    number = _NUMBER.findall(asked.text)[0].rstrip(".,")
    words = _tokens_of(asked.question + " " + asked.text)
    found = re.compile(rf"(?<![\d.,]){re.escape(number)}(?!\d|[.,]\d)")
    return any(
        found.search(line) and words & _tokens_of(line)
        for line in (line.partition(" (turn ")[0] for line in lines)
    )


def holds_newer(asked: Asked, changes: list[Change], lines: list[str]) -> bool:
    """Return whether a line holds a later statement that replaced the value asked for.

    The later statement must contain all words that the question and the replaced one share.
    """
    whole = "\n".join(lines)
    words = name_value(asked.question)
    seen = [change for change in changes if is_held(asked, [change.text])]
    for change in seen:
        common = words & name_value(change.text)
        for text in change.later:
            if not common <= name_value(text):
                continue
            if text in whole:
                return True
            seen += [one for one in changes if one.text == text and one.by > change.by]
    return False


def _tokens_of(text: str) -> set[str]:
    return {token for token in read_tokens(text) if token.isalpha()} - STOP_WORDS


def _is_same(words: set[str], line: str) -> bool:
    said = words_of(line) - STOP_WORDS
    least = max(MIN_SHARED_WORDS, MIN_SHARED_SHARE * min(len(words), len(said)))
    return len(words & said) >= least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("odd", "even"))
    parser.add_argument("--missed", action="store_true", help="print what is not held")
    parser.add_argument("--items", action="store_true", help="print every item found")
    parser.add_argument("--sample", type=int, default=0, help="print so many items at random")
    options = parser.parse_args()
    held: dict[tuple[str, str], list[tuple[bool, ...]]] = defaultdict(list)
    most: dict[str, int] = defaultdict(int)
    items: list[tuple[str, StateItem]] = []
    for path in sorted(options.folder.glob("*/*/chat.json")):
        folder = path.parent
        size, number = folder.parent.name, int(folder.name)
        if options.only and (number % 2 == 1) is not (options.only == "odd"):
            continue
        state, turns, changes, said = fold_chat(folder)
        text = write_yaml(state, session="0" * 36, workspace="/srv/chat", turn_count=turns)
        register = [item.text for item in list_items(state)[0]]
        most[size] = max(most[size], estimate_tokens(text))
        items += [(f"{size}/{number}", item) for item in list_items(state)[0]]
        for asked in read_asked(folder):
            is_given, is_kept, is_said = (
                is_held(asked, texts) for texts in (text.splitlines(), register, said)
            )
            is_newer = is_given or holds_newer(asked, changes, text.splitlines())
            held[size, asked.kind].append((is_given, is_kept, is_said, is_newer and is_said))
            if options.missed and not is_given:
                history = [change.text for change in changes]
                where = [
                    *(["only kept"] if is_kept else []),
                    *(["replaced"] if is_held(asked, history) else []),
                    *(["newer one held"] if is_newer else []),
                    *([] if is_said else ["never said"]),
                ]
                told = ", ".join(where) or "missed"
                print(f"{told} {size}/{number} {asked.kind}: {asked.question} {asked.text}")
    if options.items or options.sample:
        stated = [pair for pair in items if pair[1].kind in ("rule", "preference", "value")]
        chosen = random.Random(1).sample(stated, min(options.sample, len(stated))) or stated
        for chat, item in chosen:
            print(f"{chat} {item.turn} {item.kind}: {item.text}")
    for (size, kind), found in sorted(held.items()):
        given, kept, of_them, newest = (sum(column) for column in zip(*found, strict=True))
        print(
            f"{size:>5} {kind:<15} given {given:>3} of {len(found):<3} {given / len(found):.2f}"
            f"   kept {kept:>3} {kept / len(found):.2f}   given or newer, of those said"
            f" {newest:>3} of {of_them:<3} {newest / max(of_them, 1):.2f}"
        )
    for size, tokens in sorted(most.items()):
        print(f"{size:>5} tokens, at most {tokens}")


if __name__ == "__main__":
    main()
