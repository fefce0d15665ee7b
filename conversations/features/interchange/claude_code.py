"""Sessions of Claude Code: one JSON object a line, each naming the line before it.

What the model answers at once stands on several lines of one message id, calls among them,
and the results of calls that ran side by side hang on different lines of it. So these lines
are one node: the answer with its results. What branches then are prompts that were asked
anew. Side chains are sessions of their own, whether they stand in the file or in one of
their own.

The file is read twice: once for its shape, of which little is kept, then line by line in
the order of each session.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, BinaryIO

from conversations.domain.text import load_json, one_line

from .making import (
    Archive,
    Files,
    Item,
    Note,
    Object,
    Skipped,
    add_source,
    assistant_turn,
    left_of_blocks,
    own_uuid,
    read_result,
    result_turn,
    stable_uuid,
    user_turn,
    without,
)
from .opening import DAMAGE, ImportSource, SourceFile
from .trees import Made, Path, TooBranched, Tree, a_text, an_object, objects, tell_paths

SOURCE = "claude-code"
MAX_LINE_BYTES = 64 * 1024 * 1024

TITLES = {"custom-title": "customTitle", "ai-title": "aiTitle"}
"""Lines that name the session, the one that counts most first. After them the summaries
count, of which only those are meant that name a line of the file as their leaf."""

QUEUED = "queued_command"

_TOLD = ("uuid", "parentUuid", "sessionId", "timestamp", "message", "type", "userType", "content")


def read_claude_code(file: SourceFile, source: ImportSource, archive: Archive) -> Iterator[Item]:
    """The file's session, its branches and its side chains."""
    try:
        with file.on_disk() as path, path.open("rb") as stream:
            yield from _Session(stream, file.name, archive).read()
    except DAMAGE as error:
        yield Skipped(file.name, f"it cannot be read: {error}")
    except TooBranched as error:
        yield Skipped(file.name, str(error))


@dataclass(slots=True)
class _Node:
    """Lines that belong together, by where they begin in the file."""

    above: str | None
    is_side: bool
    lines: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Session:
    stream: BinaryIO
    name: str
    archive: Archive
    nodes: dict[str, _Node] = field(default_factory=dict)
    above: dict[str, str | None] = field(default_factory=dict)
    node_of: dict[str, str] = field(default_factory=dict)
    caller_of: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    summaries: dict[str, str] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    told: Object = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)
    model: str = ""
    last: str | None = None

    def read(self) -> Iterator[Item]:
        for number, offset, raw in self._raw_lines():
            try:
                value = load_json(raw.decode("utf-8", "surrogateescape"))
                if not isinstance(value, dict):
                    raise ValueError("no object")
            except ValueError as error:
                yield Skipped(f"{self.name}:{number}", f"not JSON ({error})")
                continue
            self._index(value, offset)
        if self.left:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.left.items()))
            yield Note(self.name, f"left out, since they are no part of the conversation: {kinds}")
        yield from self._tell()

    def _raw_lines(self) -> Iterator[tuple[int, int, bytes]]:
        number = offset = 0
        while raw := self.stream.readline(MAX_LINE_BYTES):
            number += 1
            if raw.strip():
                yield number, offset, raw.removeprefix(b"\xef\xbb\xbf")
            offset += len(raw)

    def _index(self, value: Object, offset: int) -> None:
        kind, uuid = a_text(value.get("type")), a_text(value.get("uuid"))
        if kind in TITLES:
            self.titles[kind] = a_text(value.get(TITLES[kind]))
            return
        if kind == "summary":
            self.summaries[a_text(value.get("leafUuid"))] = a_text(value.get("summary"))
            return
        if not uuid or uuid in self.above:
            self.left[kind or "other"] += not uuid
            return
        above = a_text(value.get("parentUuid") or value.get("logicalParentUuid")) or None
        is_side = value.get("isSidechain") is True
        if above is None and not is_side and _is_compaction(value):
            above = self.last
        self.above[uuid] = above
        if kind == "progress":
            self.left[kind] += 1
            return
        self._remember(value)
        id = self._node_for(value, uuid)
        self.node_of[uuid] = id
        node = self.nodes.setdefault(id, _Node(above, is_side))
        node.lines.append(offset)
        self.last = self.last if is_side else uuid

    def _remember(self, value: Object) -> None:
        for name in ("sessionId", "agentId", "cwd", "gitBranch", "version"):
            if value.get(name):
                self.told.setdefault(name, value[name])
        moment = a_text(value.get("timestamp"))
        if moment:
            self.ends = [*self.ends[:1], moment]
        self.model = a_text(an_object(value.get("message")).get("model")) or self.model

    def _node_for(self, value: Object, uuid: str) -> str:
        """The node of a line: that of its message, of the call that it answers, its own."""
        message = an_object(value.get("message"))
        blocks = objects(message.get("content"))
        if value.get("type") == "assistant":
            id = self._answer_for(a_text(message.get("id")), uuid)
            for block in blocks:
                if block.get("type") == "tool_use":
                    self.caller_of[a_text(block.get("id"))] = id
            return id
        for block in blocks:
            if block.get("type") == "tool_result":
                return self.caller_of.get(a_text(block.get("tool_use_id")), uuid)
        return uuid

    def _answer_for(self, message: str, uuid: str) -> str:
        """The node of a line of this message. Some gateways give all messages one id: a
        line that does not follow the others of its id is another message."""
        known = self.answers.get(message) if message else None
        above = self.above[uuid]
        if known is not None and above != self.nodes[known].above:
            for _ in range(len(self.above)):
                if above is None or above in self.node_of:
                    break
                above = self.above.get(above)
            known = known if above is not None and self.node_of.get(above) == known else None
        id = known or (message if message and message not in self.nodes else uuid)
        self.answers[message] = id
        return id

    def _tell(self) -> Iterator[Item]:
        if not self.nodes:
            return
        session, agent = a_text(self.told.get("sessionId")), a_text(self.told.get("agentId"))
        is_agent = bool(agent) and all(node.is_side for node in self.nodes.values())
        main = own_uuid(SOURCE, session or self.name)
        if is_agent:
            self.told["parent"], main = str(main), stable_uuid(SOURCE, str(main), agent)
        tree = Tree(main, lambda node: stable_uuid(SOURCE, str(main), node))
        for id, node in self.nodes.items():
            tree.parents[id] = self._node_above(id, node)
        tree.leaf = self.node_of.get(self.last) if self.last else list(self.nodes)[-1]
        yield from tell_paths(
            tree.plan(self.archive),
            self.archive,
            place=self.name,
            header=self._header,
            make=self._make,
        )

    def _node_above(self, id: str, node: _Node) -> str | None:
        """The node above, past lines that are none."""
        above = node.above
        for _ in range(len(self.above)):
            if above is None or self.node_of.get(above, id) != id:
                break
            above = self.above.get(above)
        return self.node_of.get(above) if above is not None else None

    def _header(self, path: Path) -> Object:
        named = [self.titles[kind] for kind in TITLES if self.titles.get(kind)]
        told = [text for leaf, text in self.summaries.items() if leaf in self.above]
        title = next(iter([*named, *told[::-1]]), None)
        if self.nodes[path.nodes[0]].is_side:
            title = f"Side chain: {one_line(self._first_words(path), limit=150)}"
        return {
            "workspace": PurePath(a_text(self.told.get("cwd"))).name,
            "channel": SOURCE,
            "title": title,
            "model": self.model if self.model.startswith("claude") else None,
            "created_at": self.ends[0] if self.ends else None,
            "last_active_at": self.ends[-1] if self.ends else None,
            "parent": self.told.get("parent"),
            "source": {"format": SOURCE, "summaries": list(self.summaries.values())}
            | without(self.told, "parent"),
        }

    def _first_words(self, path: Path) -> str:
        for made in self._make(path, path.nodes[0]):
            return a_text(made.turn.get("content"))
        return ""

    def _values(self, node: str) -> Iterator[Object]:
        for offset in self.nodes[node].lines:
            self.stream.seek(offset)
            raw = self.stream.readline(MAX_LINE_BYTES).removeprefix(b"\xef\xbb\xbf")
            yield load_json(raw.decode("utf-8", "surrogateescape"))

    def _make(self, path: Path, node: str) -> Iterator[Made]:
        values = list(self._values(node))
        said = [value for value in values if value.get("type") == "assistant"]
        names: dict[str, str] = {}
        if said:
            blocks = [block for value in said for block in _blocks_of(value)]
            names = {a_text(b.get("id")): a_text(b.get("name")) for b in blocks if "name" in b}
            yield Made(_answer(said, blocks))
        for value in values:
            if value.get("type") != "assistant":
                yield from self._other(path, node, value, names)

    def _other(self, path: Path, node: str, value: Object, names: dict[str, str]) -> Iterator[Made]:
        extra = {"created_at": value.get("timestamp"), "source": without(value, *_TOLD)}
        content = an_object(value.get("message")).get("content")
        files = Files(self.archive.resolve(path.uuid), a_text(value.get("uuid")) or node)
        rest: list[Object] = []
        for block in objects(content):
            if block.get("type") == "tool_result":
                yield self._result(path, block, names, extra)
                extra = {"created_at": value.get("timestamp")}
            else:
                rest.append(block)
        if rest or not isinstance(content, list):
            yield Made(
                _prompt(value, content, rest, files) | extra, self._lines(path, value, files)
            )

    def _result(self, path: Path, block: Object, names: dict[str, str], extra: Object) -> Made:
        id = a_text(block.get("tool_use_id"))
        files = Files(self.archive.resolve(path.uuid), id)
        text = read_result(block.get("content"), files)
        ok = block.get("is_error") is not True
        turn = result_turn(text, call_id=id, name=names.get(id) or "tool", ok=ok, files=files)
        return Made(turn | extra, files.lines)

    def _lines(self, path: Path, value: Object, files: Files) -> list[Object]:
        """What is attached, and the summary of a compaction."""
        if value.get("isCompactSummary") is not True:
            return files.lines
        session = str(self.archive.resolve(path.uuid))
        return [
            *files.lines,
            {
                "type": "compaction",
                "uuid": str(stable_uuid(session, a_text(value.get("uuid")))),
                "summary": _text_of(an_object(value.get("message")).get("content")),
                "reason": "threshold",
                "created_at": value.get("timestamp"),
            },
        ]


def _blocks_of(value: Object) -> list[Object]:
    content = an_object(value.get("message")).get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _is_compaction(value: Object) -> bool:
    return value.get("subtype") == "compact_boundary" or value.get("isCompactSummary") is True


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [a_text(block.get("text")) for block in objects(content)]
    return "\n\n".join(text for text in texts if text)


def _answer(values: list[Object], blocks: list[Object]) -> Object:
    """The turn of an answer that stands on several lines."""
    message = an_object(values[-1].get("message"))
    turn = assistant_turn(blocks, model=a_text(message.get("model")))
    told = without(message, "id", "type", "role", "content", "stop_reason", "model")
    return turn | {
        "created_at": values[0].get("timestamp"),
        "stop_reason": message.get("stop_reason"),
        "source": without(values[-1], *_TOLD) | {"message": told},
    }


def _prompt(value: Object, content: Any, rest: list[Object], files: Files) -> Object:
    """The turn of a line that is no answer and no result."""
    queued = an_object(value.get("attachment"))
    if queued.get("type") == QUEUED:
        return _queued(queued, files)
    if value.get("type") != "user":
        text = a_text(value.get("content")) or _text_of(content)
        return {"role": "system", "content": text, "original_type": value.get("type")}
    _attach(rest, files)
    text = content if isinstance(content, str) else _text_of(rest)
    if value.get("isCompactSummary") is True:
        return {"role": "system", "content": text, "metadata": {"user_facing": True}}
    if value.get("isMeta") is True:
        return {"role": "system", "content": text}
    others = left_of_blocks(b for b in rest if b.get("type") not in ("image", "document"))
    return user_turn(text, files) | ({"left_of_blocks": others} if others else {})


def _attach(blocks: list[Object], files: Files) -> None:
    for block in blocks:
        if block.get("type") in ("image", "document") and an_object(block.get("source")):
            add_source(files, block)


def _queued(queued: Object, files: Files) -> Object:
    """What was typed while the model worked, or what the program said to it then."""
    prompt = queued.get("prompt")
    if queued.get("commandMode", "prompt") != "prompt":
        return {"role": "system", "content": _text_of(prompt)}
    _attach(objects(prompt), files)
    return user_turn(_text_of(prompt), files)
