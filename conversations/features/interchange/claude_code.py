"""Reading sessions of Claude Code: one JSON object a line, each with the uuid of its parent line.

One answer of the model takes several lines with the same message id, including its tool calls. The
results of parallel calls have different lines of the answer as parents. An answer with its results
is therefore one node of the tree, so that only prompts that were sent again make branches. Side
chains become sessions of their own, whether they are in the same file or in a file of their own.

The file is read twice: first to build the tree, of which little is kept in memory, then line by
line in the order of each session.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, BinaryIO

from conversations.domain.messages import say
from conversations.domain.text import an_object, one_line

from .fields import MAX_LINE_BYTES, UnusableLine, parse_object
from .lines import (
    FILE_KINDS,
    ImportHistory,
    ImportNote,
    Item,
    Object,
    TurnFiles,
    a_text,
    assistant_turn,
    blocks_of,
    join_texts,
    left_of_blocks,
    objects,
    own_uuid,
    read_result,
    result_turn,
    stable_uuid,
    user_turn,
    without,
)
from .sources import DAMAGE, ImportSource, SourceFile
from .trees import ConversationReader, Made, MessageTree, TooBranched, TreePath

SOURCE = "claude-code"

# Types of lines with the session's title, in order of precedence. If there is none, the title is
# the last summary whose leaf is a line of this file.
TITLES = {"custom-title": "customTitle", "ai-title": "aiTitle"}

QUEUED = "queued_command"

_BOM = b"\xef\xbb\xbf"
_TOLD = ("uuid", "parentUuid", "sessionId", "timestamp", "message", "type", "userType", "content")


def read_claude_code(
    file: SourceFile, source: ImportSource, archive: ImportHistory
) -> Iterator[Item]:
    """Yield the lines of the file's session, its branches and its side chains."""
    try:
        with file.on_disk() as path, path.open("rb") as stream:
            yield from _ClaudeCode(stream, file.name, archive).read()
    except DAMAGE as error:
        yield ImportNote(file.name, say("it cannot be read: %(error)s", error=str(error)))
    except TooBranched as error:
        yield ImportNote(file.name, error.message)


class _ClaudeCode(ConversationReader):
    """A Claude Code session. ``data`` has the values that lines give for the whole session."""

    def __init__(self, stream: BinaryIO, name: str, archive: ImportHistory) -> None:
        super().__init__({}, name, archive)
        self.stream = stream
        # For each node: its parent line, whether it is in a side chain, and the offsets of its
        # lines in the file.
        self.nodes: dict[str, tuple[str | None, bool, list[int]]] = {}
        # ``above`` and ``node_of`` map the uuid of a line to its parent line and to its node.
        # ``caller_of`` maps the id of a tool call to its node, ``answers`` the id of a message to
        # the node of its last line.
        self.above: dict[str, str | None] = {}
        self.node_of: dict[str, str] = {}
        self.caller_of: dict[str, str] = {}
        self.answers: dict[str, str] = {}
        self.titles: dict[str, str] = {}
        self.summaries: dict[str, str] = {}
        self.left = Counter[str]()
        self.ends: list[str] = []
        self.model = ""
        self.last: str | None = None

    def read(self) -> Iterator[Item]:
        number = offset = 0
        while raw := self.stream.readline(MAX_LINE_BYTES):
            number += 1
            try:
                if raw.strip():
                    self._index(_parse(raw), offset)
            except UnusableLine as error:
                yield ImportNote(f"{self.place}:{number}", error.message)
            offset += len(raw)
        if self.left:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.left.items()))
            text = say(
                "skipped because they are not part of the conversation: %(kinds)s", kinds=kinds
            )
            yield ImportNote(self.place, text, is_skipped=False)
        if not self.nodes:
            return
        session, agent = a_text(self.data.get("sessionId")), a_text(self.data.get("agentId"))
        main = own_uuid(SOURCE, session or self.place)
        if agent and all(is_side for _, is_side, _ in self.nodes.values()):
            self.data["parent"], main = str(main), stable_uuid(SOURCE, str(main), agent)
        tree = MessageTree(main, SOURCE)
        for id, (above, _, _) in self.nodes.items():
            # Find the parent node, skipping lines of this node and lines without a node.
            for _ in range(len(self.above)):
                if above is None or self.node_of.get(above, id) != id:
                    break
                above = self.above.get(above)
            tree.parents[id] = self.node_of.get(above) if above is not None else None
        tree.leaf = self.node_of.get(self.last) if self.last else list(self.nodes)[-1]
        yield from self.lines_of_tree(tree)

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
        is_compaction = value.get("subtype") == "compact_boundary" or _is_summary(value)
        if above is None and not is_side and is_compaction:
            above = self.last
        self.above[uuid] = above
        if kind == "progress":
            self.left[kind] += 1
            return
        for name in ("sessionId", "agentId", "cwd", "gitBranch", "version"):
            if value.get(name):
                self.data.setdefault(name, value[name])
        if moment := a_text(value.get("timestamp")):
            self.ends = [*self.ends[:1], moment]
        self.model = a_text(an_object(value.get("message")).get("model")) or self.model
        id = self._node_for(value, uuid)
        self.node_of[uuid] = id
        _, _, offsets = self.nodes.setdefault(id, (above, is_side, []))
        offsets.append(offset)
        self.last = self.last if is_side else uuid

    def _node_for(self, value: Object, uuid: str) -> str:
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
        # Some gateways give all messages the same id, so a line that does not follow the other
        # lines with its id is another message.
        node = self.answers.get(message) if message else None
        parent = self.above[uuid]
        if node is not None and parent != self.nodes[node][0]:
            for _ in range(len(self.above)):
                if parent is None or parent in self.node_of:
                    break
                parent = self.above.get(parent)
            node = node if parent is not None and self.node_of.get(parent) == node else None
        id = node or (message if message and message not in self.nodes else uuid)
        self.answers[message] = id
        return id

    def is_branch(self, path: TreePath) -> bool:
        _, is_side, _ = self.nodes[path.nodes[0]]
        return path.shared > 0 or not is_side

    def header(self, path: TreePath) -> Object:
        titles = [self.titles[kind] for kind in TITLES if self.titles.get(kind)]
        summaries = [text for leaf, text in self.summaries.items() if leaf in self.above]
        title = next(iter([*titles, *summaries[::-1]]), None)
        _, is_side, _ = self.nodes[path.nodes[0]]
        if is_side:
            turn, _ = next(self.make(path, path.nodes[0]), ({}, []))
            title = f"Side chain: {one_line(a_text(turn.get('content')), limit=150)}"
        return {
            "workspace": PurePath(a_text(self.data.get("cwd"))).name,
            "channel": SOURCE,
            "title": title,
            "title_is_chosen": not is_side and bool(self.titles.get("custom-title")),
            "model": self.model if self.model.startswith("claude") else None,
            "created_at": self.ends[0] if self.ends else None,
            "last_active_at": self.ends[-1] if self.ends else None,
            "parent": self.data.get("parent"),
            "source": {"format": SOURCE, "summaries": list(self.summaries.values())}
            | without(self.data, "parent"),
        }

    def make(self, path: TreePath, node: str) -> Iterator[Made]:
        values: list[Object] = []
        for offset in self.nodes[node][2]:
            self.stream.seek(offset)
            values.append(_parse(self.stream.readline(MAX_LINE_BYTES)))
        answers = [value for value in values if value.get("type") == "assistant"]
        names: dict[str, str] = {}
        if answers:
            blocks: list[Object] = []
            for value in answers:
                content = an_object(value.get("message")).get("content")
                is_text = isinstance(content, str)
                blocks += [{"type": "text", "text": content}] if is_text else blocks_of(content)
            names = {a_text(b.get("id")): a_text(b.get("name")) for b in blocks if "name" in b}
            message = an_object(answers[-1].get("message"))
            left_out = without(message, "id", "type", "role", "content", "stop_reason", "model")
            extra = {
                "created_at": answers[0].get("timestamp"),
                "stop_reason": message.get("stop_reason"),
                "source": without(answers[-1], *_TOLD) | {"message": left_out},
            }
            yield assistant_turn(blocks, model=a_text(message.get("model"))) | extra, []
        for value in values:
            if value.get("type") != "assistant":
                yield from self._other(path, node, value, names)

    def _other(
        self, path: TreePath, node: str, value: Object, names: dict[str, str]
    ) -> Iterator[Made]:
        extra = {"created_at": value.get("timestamp"), "source": without(value, *_TOLD)}
        content = an_object(value.get("message")).get("content")
        if isinstance(content, dict | list):
            content = blocks_of(content)
        other_blocks: list[Object] = []
        for block in objects(content):
            if block.get("type") != "tool_result":
                other_blocks.append(block)
                continue
            id = a_text(block.get("tool_use_id"))
            files = self.files(path, id)
            text, ok = read_result(block.get("content"), files), block.get("is_error") is not True
            name = names.get(id) or "tool"
            turn = result_turn(text, call_id=id, name=name, ok=ok, files=files)
            yield turn | extra, files.lines
            extra = {"created_at": value.get("timestamp")}
        if isinstance(content, list) and not other_blocks:
            return
        files = self.files(path, a_text(value.get("uuid")) or node)
        turn = _prompt(value, content, other_blocks, files)
        if _is_summary(value):
            files.lines.append(
                {
                    "type": "compaction",
                    "uuid": str(stable_uuid(str(files.session), a_text(value.get("uuid")))),
                    "summary": _text_of(content),
                    "reason": "threshold",
                    "created_at": value.get("timestamp"),
                }
            )
        yield turn | extra, files.lines


def _parse(raw: bytes) -> Object:
    return parse_object(raw.removeprefix(_BOM))


def _is_summary(value: Object) -> bool:
    return value.get("isCompactSummary") is True


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return join_texts(block.get("text") for block in objects(content))


def _prompt(value: Object, content: Any, other_blocks: list[Object], files: TurnFiles) -> Object:
    queued = an_object(value.get("attachment"))
    if queued.get("type") == QUEUED:  # sent by the person or the program while the model worked
        prompt = queued.get("prompt")
        if queued.get("commandMode", "prompt") != "prompt":
            return {"role": "system", "content": _text_of(prompt)}
        files.add_sources(objects(prompt))
        return user_turn(_text_of(prompt), files)
    if value.get("type") != "user":
        text = a_text(value.get("content")) or _text_of(content)
        return {"role": "system", "content": text, "original_type": value.get("type")}
    files.add_sources(other_blocks)
    text = content if isinstance(content, str) else _text_of(other_blocks)
    if _is_summary(value):
        return {"role": "system", "content": text, "metadata": {"user_facing": True}}
    if value.get("isMeta") is True:
        return {"role": "system", "content": text}
    unsent = (block for block in other_blocks if block.get("type") not in FILE_KINDS)
    return user_turn(text, files) | left_of_blocks(unsent)
