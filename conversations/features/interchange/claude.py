"""Exports of Claude.ai: ``conversations.json``, alone or in its archive.

A message of the assistant holds all that came of one question, calls and results included:
it becomes as many turns. Messages name their parents in newer exports; in older ones each
follows the one before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .making import (
    Archive,
    Files,
    Item,
    Object,
    add_source,
    assistant_turn,
    join_texts,
    left_of_blocks,
    own_uuid,
    read_result,
    result_turn,
    stable_uuid,
    user_turn,
    without,
)
from .opening import ImportSource, SourceFile
from .trees import (
    Made,
    Path,
    Tree,
    a_text,
    an_id,
    an_object,
    objects,
    read_conversations,
    tell_paths,
)

SOURCE = "claude"


def read_claude(file: SourceFile, source: ImportSource, archive: Archive) -> Iterator[Item]:
    """Every conversation, in the order of the file."""

    def read(item: Object, place: str) -> Iterator[Item]:
        yield from _Conversation(item, place, archive).read()

    yield from read_conversations(file, read)


@dataclass(slots=True)
class _Conversation:
    told: Object
    place: str
    archive: Archive
    messages: dict[str, Object] = field(default_factory=dict)

    def read(self) -> Iterator[Item]:
        main = own_uuid(SOURCE, self.told.get("uuid") or self.told.get("created_at"))
        tree = Tree(main, lambda node: stable_uuid(SOURCE, str(main), node))
        last: str | None = None
        for ordinal, message in enumerate(objects(self.told.get("chat_messages"))):
            id = a_text(message.get("uuid")) or f"message-{ordinal}"
            tree.parents[id] = an_id(message.get("parent_message_uuid")) or last
            self.messages[id], last = message, id
        leaf = an_id(self.told.get("current_leaf_message_uuid"))
        tree.leaf = leaf if leaf in self.messages else last
        yield from tell_paths(
            tree.plan(self.archive),
            self.archive,
            place=self.place,
            header=self._header,
            make=self._make,
        )

    def _header(self, path: Path) -> Object:
        told = self.told
        return {
            "channel": SOURCE,
            "title": told.get("name"),
            "model": told.get("model"),
            "created_at": told.get("created_at"),
            "last_active_at": told.get("updated_at"),
            "source": {"format": SOURCE}
            | without(told, "chat_messages", "name", "created_at", "updated_at"),
        }

    def _make(self, path: Path, node: str) -> Iterator[Made]:
        message = self.messages[node]
        when = {"created_at": message.get("created_at")}
        blocks = objects(message.get("content"))
        if message.get("sender") == "human":
            yield self._user(path, node, message, blocks, when)
            return
        text = a_text(message.get("text"))
        if text and not any(block.get("text") for block in blocks):
            blocks = [*blocks, {"type": "text", "text": text}]
        left: Object = {"source": without(message, *_TOLD)}
        files = self._files(path, node)
        self._attach(message, files)
        if files.left or files.blocks:
            left["files"] = [*files.left, *files.blocks]
        for made in self._answer(path, node, blocks):
            yield Made(made.turn | when | left, [*made.lines, *files.lines])
            left, files.lines = {}, []

    def _user(
        self, path: Path, node: str, message: Object, blocks: list[Object], when: Object
    ) -> Made:
        texts = [block.get("text") for block in blocks if block.get("type") == "text"]
        files = self._files(path, node)
        for block in blocks:
            if block.get("type") in ("image", "document") and an_object(block.get("source")):
                add_source(files, block)
        self._attach(message, files)
        turn = user_turn(join_texts(texts) or a_text(message.get("text")), files)
        left = without(message, *_TOLD)
        others = left_of_blocks(b for b in blocks if b.get("type") not in ("image", "document"))
        if others:
            left["blocks"] = others
        return Made(turn | when | {"source": left}, files.lines)

    def _attach(self, message: Object, files: Files) -> None:
        for attached in objects(message.get("attachments")):
            name = a_text(attached.get("file_name")) or "pasted.txt"
            text = a_text(attached.get("extracted_content"))
            if text:
                files.add(text.encode("utf-8", "replace"), name)
            else:
                files.add_missing(name, attached)
        for attached in objects(message.get("files")):
            files.add_missing(a_text(attached.get("file_name")) or "file", attached)

    def _files(self, path: Path, node: str) -> Files:
        return Files(self.archive.resolve(path.uuid), node)

    def _answer(self, path: Path, node: str, blocks: list[Object]) -> Iterator[Made]:
        """Turns in the order of the blocks: each result ends the answer before it."""
        said: list[Object] = []
        calls: list[tuple[str, str]] = []
        has_said = False
        for ordinal, block in enumerate(blocks):
            if block.get("type") == "tool_result":
                if said:
                    yield Made(self._said(said))
                    said, has_said = [], True
                yield self._result(path, f"{node}-{ordinal}", block, calls)
            elif block.get("type") == "tool_use":
                id = a_text(block.get("id")) or f"{node}-{ordinal}"
                calls.append((id, a_text(block.get("name")) or "tool"))
                given = block.get("input")
                said.append(block | {"id": id, "input": given if given is not None else {}})
            else:
                said.append(block)
        if said or not has_said:
            yield Made(self._said(said))

    def _said(self, blocks: list[Object]) -> Object:
        return assistant_turn(blocks, model=a_text(self.told.get("model")) or SOURCE)

    def _result(self, path: Path, node: str, block: Object, calls: list[tuple[str, str]]) -> Made:
        """A result without the id of its call is that of the first open one of its name."""
        name, id = a_text(block.get("name")), a_text(block.get("tool_use_id"))
        fitting = [c for c in calls if c[0] == id] or [c for c in calls if not id and c[1] == name]
        call = (fitting or [c for c in calls if not id] or [(id or node, name or "tool")])[0]
        if call in calls:
            calls.remove(call)
        files = self._files(path, node)
        text = read_result(block.get("content"), files)
        ok = block.get("is_error") is not True
        turn = result_turn(text, call_id=call[0], name=name or call[1], ok=ok, files=files)
        left = without(block, "type", "tool_use_id", "name", "content", "is_error")
        return Made(turn | ({"left_of_blocks": [left]} if left else {}), files.lines)


_TOLD = ("uuid", "text", "content", "created_at", "sender", "attachments", "files")
