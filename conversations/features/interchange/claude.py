"""Reading exports of Claude.ai: ``conversations.json``, alone or in its archive.

An assistant message holds the whole answer to a question, with tool calls and results, so it
becomes several turns. Messages name their parents in newer exports. In older exports each message
follows the one before it.
"""

from collections.abc import Iterator
from functools import partial

from .lines import (
    FILE_KINDS,
    ImportHistory,
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
    user_turn,
    without,
)
from .sources import ImportSource, SourceFile
from .trees import ConversationReader, Made, MessageTree, TreePath, read_conversations

SOURCE = "claude"

_TOLD = ("uuid", "text", "content", "created_at", "sender", "attachments", "files")


def read_claude(file: SourceFile, source: ImportSource, archive: ImportHistory) -> Iterator[Item]:
    return read_conversations(file, partial(_Claude, archive=archive))


class _Claude(ConversationReader):
    def read(self) -> Iterator[Item]:
        tree = MessageTree(
            own_uuid(SOURCE, self.data.get("uuid") or self.data.get("created_at")), SOURCE
        )
        last_id: str | None = None
        for ordinal, message in enumerate(objects(self.data.get("chat_messages"))):
            id = a_text(message.get("uuid")) or f"message-{ordinal}"
            earlier = self.messages.get(id, message)
            if earlier is not message:  # another message with this uuid, or a duplicate
                if earlier == message:
                    continue
                id = f"{id}-{ordinal}"
            tree.parents[id] = a_text(message.get("parent_message_uuid")) or last_id
            self.messages[id], last_id = message, id
        leaf = a_text(self.data.get("current_leaf_message_uuid"))
        tree.leaf = leaf if leaf in self.messages else last_id
        yield from self.lines_of_tree(tree)

    def header(self, path: TreePath) -> Object:
        data = self.data
        return {
            "channel": SOURCE,
            "title": data.get("name"),
            "model": data.get("model"),
            "created_at": data.get("created_at"),
            "last_active_at": data.get("updated_at"),
            "source": {"format": SOURCE}
            | without(data, "chat_messages", "name", "created_at", "updated_at"),
        }

    def make(self, path: TreePath, node: str) -> Iterator[Made]:
        message = self.messages[node]
        created_at: Object = {"created_at": message.get("created_at")}
        blocks = blocks_of(message.get("content"))
        files = self.files(path, node)
        if message.get("sender") == "human":
            texts = [block.get("text") for block in blocks if block.get("type") == "text"]
            files.add_sources(blocks)
            _attach(message, files)
            turn = user_turn(join_texts(texts) or a_text(message.get("text")), files)
            others = (block for block in blocks if block.get("type") not in FILE_KINDS)
            source = without(message, *_TOLD) | left_of_blocks(others, name="blocks")
            yield turn | created_at | {"source": source}, files.lines
            return
        text = a_text(message.get("text"))
        if text and not any(block.get("text") for block in blocks):
            blocks = [*blocks, {"type": "text", "text": text}]
        _attach(message, files)
        extra: Object = {"source": without(message, *_TOLD)} | files.all()
        for turn, lines in self._answer(path, node, blocks):
            # Data of the message as a whole goes with its first turn.
            yield turn | created_at | extra, [*lines, *files.lines]
            extra, files.lines = {}, []

    def _answer(self, path: TreePath, node: str, blocks: list[Object]) -> Iterator[Made]:
        """Yield turns in the order of the blocks. A tool result ends the answer before it."""
        model = a_text(self.data.get("model")) or SOURCE
        answer_blocks: list[Object] = []
        calls: list[tuple[str, str]] = []
        has_answer = False
        for ordinal, block in enumerate(blocks):
            if block.get("type") == "tool_result":
                if answer_blocks:
                    yield assistant_turn(answer_blocks, model=model), []
                    answer_blocks, has_answer = [], True
                yield self._result(path, f"{node}-{ordinal}", block, calls)
            elif block.get("type") == "tool_use":
                id = a_text(block.get("id")) or f"{node}-{ordinal}"
                calls.append((id, a_text(block.get("name")) or "tool"))
                tool_input = block.get("input")
                answer_blocks.append(
                    block | {"id": id, "input": tool_input if tool_input is not None else {}}
                )
            else:
                answer_blocks.append(block)
        if answer_blocks or not has_answer:
            yield assistant_turn(answer_blocks, model=model), []

    def _result(
        self, path: TreePath, node: str, block: Object, calls: list[tuple[str, str]]
    ) -> Made:
        # A result without a call id belongs to the first open call of that name.
        name, id = a_text(block.get("name")), a_text(block.get("tool_use_id"))
        matching = [c for c in calls if c[0] == id] or [c for c in calls if not id and c[1] == name]
        call = (matching or [c for c in calls if not id] or [(id or node, name or "tool")])[0]
        if call in calls:
            calls.remove(call)
        files = self.files(path, node)
        text = read_result(block.get("content"), files)
        ok = block.get("is_error") is not True
        turn = result_turn(text, call_id=call[0], name=name or call[1], ok=ok, files=files)
        left_out = without(block, "type", "tool_use_id", "name", "content", "is_error")
        return turn | ({"left_of_blocks": [left_out]} if left_out else {}), files.lines


def _attach(message: Object, files: TurnFiles) -> None:
    for attached in objects(message.get("attachments")):
        name = a_text(attached.get("file_name")) or "pasted.txt"
        text = a_text(attached.get("extracted_content"))
        if text:
            files.add(text.encode("utf-8", "replace"), name)
        else:
            files.add_missing(name, attached)
    for attached in objects(message.get("files")):
        files.add_missing(a_text(attached.get("file_name")) or "file", attached)
