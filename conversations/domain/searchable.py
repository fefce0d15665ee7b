"""What of a turn can be searched: what was said, the names of what was attached, what
tools were given and gave, and the paths that occur. Thinking is left out, and so is
looking things up, whose results would otherwise be found in place of what they quote.
What else a turn can be found by (its role, tools, model, its failure, when it was
written) are marks: words that no text has."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .date_tokens import marks_of
from .turns import (
    ASSISTANT,
    ROLES,
    TOOL,
    USER,
    StoredTurn,
    attached_names,
    calls_of,
    read_metadata,
    read_tool_outcome,
)
from .words import read_tokens

RECALL_TOOL = "conversation_recall"

MAX_PATHS = 300  # Paths of one turn that ``in:path`` knows.

_RUN = re.compile(r"[\w.@~+/\\-]+")
_EXTENSION = re.compile(r"\w\.[A-Za-z]\w{0,7}\Z")
_ROLE_MARK, _TOOL_MARK, _OTHER, _MODEL_MARK = "\ue000", "\ue001", "\ue002", "\ue004"
_OWNER_MARK, _WORKSPACE_MARK = "\ue006", "\ue007"
ERROR_MARK = "\ue005"  # Of a result of a tool that failed, and of an answer that broke off.


@dataclass(frozen=True, slots=True, kw_only=True)
class Searchable:
    """Texts as written: ``said``; ``tools`` with names, input and output. ``names``
    are the tools that the turn calls or answers for."""

    role: str
    said: str = ""
    tools: str = ""
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it, for showing where something was found."""
        return "\n".join(part for part in (self.said, self.tools) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchableTurn:
    """A turn's words, normalised and separated by spaces, as the index keeps them."""

    said: str
    tools: str
    paths: str
    marks: str

    @property
    def length(self) -> int:
        return sum(1 + text.count(" ") for text in (self.said, self.tools) if text)


def role_mark(role: str) -> str:
    return _ROLE_MARK + role


ROLE_MARKS = tuple(role_mark(role) for role in ROLES)  # Every entry has one of these.


def tool_mark(name: str) -> str:
    """One word for any name of a tool, whatever characters it has."""
    return _TOOL_MARK + _one_word(name)


def model_mark(name: str) -> str:
    """The same for a model."""
    return _MODEL_MARK + _one_word(name)


def owner_mark(user_pk: int) -> str:
    """Of all turns of a session that is this person's."""
    return f"{_OWNER_MARK}{user_pk}"


def workspace_mark(workspace_pk: int) -> str:
    """Of all turns of the sessions in a workspace."""
    return f"{_WORKSPACE_MARK}{workspace_pk}"


def _one_word(name: str) -> str:
    return "".join(c if c.isalnum() else _OTHER for c in name.strip().casefold())


def read_searchable(turn: StoredTurn, *, call_name: str | None = None) -> Searchable:
    """``call_name`` is the tool that a result without a name of its own answers for."""
    if turn.role == TOOL:
        name = turn.tool_name or call_name or ""
        if name == RECALL_TOOL:
            return Searchable(role=turn.role)
        tools = "\n".join(part for part in (name, turn.content) if part)
        return Searchable(role=turn.role, tools=tools, names=(name,) if name else ())
    calls = [call for call in calls_of(turn) if call.get("name") != RECALL_TOOL]
    names = tuple(str(call.get("name") or "tool") for call in calls)
    inputs = ((name, *_texts(call.get("input"))) for name, call in zip(names, calls, strict=True))
    return Searchable(
        role=turn.role,
        said="\n".join([*(attached_names(turn) if turn.role == USER else ()), turn.content]),
        tools="\n".join("\n".join(texts) for texts in inputs),
        names=names,
    )


def make_entry(
    turn: StoredTurn, searchable: Searchable, *, owner: int, workspace: int
) -> SearchableTurn:
    """``owner`` and ``workspace`` are the keys of the session's, which it has for ever."""
    marks = [
        role_mark(searchable.role),
        *(tool_mark(name) for name in searchable.names),
        *_fact_marks(turn),
        *marks_of(turn.created_at),
        owner_mark(owner),
        workspace_mark(workspace),
    ]
    text = searchable.text
    found = (
        run.rstrip(".")
        for run in _RUN.findall(text)
        if "/" in run or "\\" in run or ("." in run and _EXTENSION.search(run.rstrip(".")))
    )
    paths = islice(dict.fromkeys(found), MAX_PATHS)
    return SearchableTurn(
        said=" ".join(read_tokens(searchable.said)),
        tools=" ".join(read_tokens(searchable.tools)),
        paths=" ".join(token for path in paths for token in read_tokens(path)),
        marks=" ".join(dict.fromkeys(marks)),
    )


def _fact_marks(turn: StoredTurn) -> Iterator[str]:
    if turn.role == TOOL and read_tool_outcome(turn)[0] is False:
        yield ERROR_MARK
    if turn.role == ASSISTANT:
        model = read_metadata(turn).get("model")
        if isinstance(model, str) and model.strip():
            yield model_mark(model)
        if not turn.complete:
            yield ERROR_MARK


def _texts(value: Any) -> Iterator[str]:
    """The texts in a tool's input, without the names of its fields."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += reversed(item.values())
        elif isinstance(item, list):
            waiting += reversed(item)
        elif item is not None:
            yield item if isinstance(item, str) else str(item)
