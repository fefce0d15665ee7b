"""Conversations of two public benchmarks, with questions whose evidence is known.

BEAM (arXiv 2510.27246) has chats of a person with an assistant, in a folder ``chats`` with
``<size>/<number>/``. LoCoMo (Maharana et al., ACL 2024) has chats of two people, in one JSON file.
Neither is part of this repository.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from conversations.domain.turns import NewTurn

START = datetime(2024, 1, 1, 9, tzinfo=UTC)  # of conversations without a date

# The end of a person's message in BEAM: its place in the plan from which it was generated.
_PLACE = re.compile(r"\s*->->\s*[\d,.\s]*\Z")
_LOCOMO_TURN = re.compile(r"D\d+:\d+")
LOCOMO_KINDS = {
    1: "several hops",
    2: "time",
    3: "open domain",
    4: "single hop",
    5: "adversarial",
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question. ``evidence`` holds the numbers of the turns that contain the answer."""

    text: str
    kind: str
    evidence: frozenset[int]


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation. ``group`` is its size, or the name of its benchmark."""

    name: str
    group: str
    turns: list[NewTurn]
    questions: list[Question]


def read_chats(path: Path, *, only: str = "") -> Iterator[Chat]:
    """Yield the chats of a BEAM folder or a LoCoMo file.

    ``only`` selects BEAM's chats with ``odd`` or ``even`` numbers. It has no effect on LoCoMo.
    """
    if path.is_file():
        yield from map(_read_locomo, json.loads(path.read_text()))
        return
    found = [file for file in path.rglob("chat.json") if file.parent.name.isdigit()]
    for file in sorted(found, key=lambda file: (file.parts[-3], int(file.parts[-2]))):
        if only in ("", ("even", "odd")[int(file.parts[-2]) % 2]):
            yield _read_beam(file)


def read_questions(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return BEAM's questions about the chat in this folder, by kind."""
    [file] = folder.rglob("probing_questions.json")
    questions: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())
    return questions


def _read_beam(file: Path) -> Chat:
    size, number = file.parts[-3:-1]
    turns: list[NewTurn] = []
    numbers: dict[int, int] = {}
    at = START
    for batch in json.loads(file.read_text()):
        for message in (message for turn in batch["turns"] for message in turn):
            at += timedelta(minutes=1)
            if anchor := message.get("time_anchor"):
                day = datetime.strptime(anchor, "%B-%d-%Y").replace(hour=9, tzinfo=UTC)
                at = day if not turns else max(at, day)
            numbers[int(message["id"])] = len(turns) + 1
            content = _PLACE.sub("", message["content"])
            turns.append(NewTurn(role=message["role"], content=content, created_at=at))
    questions = []
    for kind, items in read_questions(file.parent).items():
        for item in items:
            named = item.get("source_chat_ids")
            named = ast.literal_eval(named) if isinstance(named, str) else named
            evidence = frozenset(numbers[pk] for pk in _whole_numbers(named) if pk in numbers)
            if evidence:
                text = item["question"]
                questions.append(Question(text, kind.replace("_", " "), evidence))
    return Chat(f"{size}/{number}", size, turns, questions)


def _whole_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _whole_numbers(item)


def _read_locomo(sample: dict[str, Any]) -> Chat:
    talk = sample["conversation"]
    turns: list[NewTurn] = []
    numbers: dict[str, int] = {}
    for place in _sessions_in_order(talk):
        moment = datetime.strptime(f"{talk[place + '_date_time']} Z", "%I:%M %p on %d %B, %Y %z")
        for step, message in enumerate(talk[place]):
            speaker = message["speaker"]
            numbers[message["dia_id"]] = len(turns) + 1
            turns.append(
                NewTurn(
                    role="user" if speaker == talk["speaker_a"] else "assistant",
                    content=f"{speaker}: {message['text']}",
                    created_at=moment + timedelta(minutes=step),
                )
            )
    questions = []
    for item in sample["qa"]:
        named = {turn for text in item.get("evidence", ()) for turn in _LOCOMO_TURN.findall(text)}
        if named and named <= numbers.keys():
            evidence = frozenset(numbers[turn] for turn in named)
            questions.append(Question(item["question"], LOCOMO_KINDS[item["category"]], evidence))
    return Chat(sample["sample_id"], "LoCoMo", turns, questions)


def _sessions_in_order(talk: Iterable[str]) -> list[str]:
    found = [name for name in talk if re.fullmatch(r"session_\d+", name)]
    return sorted(found, key=lambda name: int(name.removeprefix("session_")))
