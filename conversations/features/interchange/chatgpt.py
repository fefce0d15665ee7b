"""Reading exports of ChatGPT: ``conversations.json``, alone or in its archive with the files.

A conversation is a ``mapping`` of nodes with parents. ``current_node`` is the node that the person
saw last. A tool call is an assistant message whose recipient is not ``all``. Its result is a
message whose author is the tool.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath

from conversations.domain.messages import say
from conversations.domain.text import an_object, dump_json

from .lines import (
    ImportHistory,
    Item,
    Object,
    TurnFiles,
    a_text,
    as_input,
    assistant_turn,
    ids,
    join_texts,
    objects,
    own_uuid,
    result_turn,
    user_turn,
    without,
)
from .sources import DAMAGE, ImportSource, SourceFile
from .trees import ConversationReader, Made, MessageTree, TreePath, read_conversations

SOURCE = "chatgpt"
CUT_OFF = ("max_tokens", "interrupted", "client_stopped")
MAX_CALL_DISTANCE_MESSAGES = 30  # How far above a result its call is searched for.
MAX_ASSET_BYTES = 50 * 1024 * 1024

_ASSET = re.compile(r"file[-_][0-9A-Za-z]+")

# The keys of a content's text by content type, if the text is not in ``parts``.
_TEXTS = {
    "tether_quote": ("title", "url", "text"),
    "tether_browsing_display": ("summary", "result"),
    "user_editable_context": ("user_profile", "user_instructions"),
    "model_editable_context": ("model_set_context",),
    "system_error": ("name", "text"),
    "reasoning_recap": ("content",),
}

# Keys of a content that the turn's text contains already, by content type.
_TOLD = {"text": ("parts",), "code": ("text",), "execution_output": ("text",)}


def read_chatgpt(file: SourceFile, source: ImportSource, archive: ImportHistory) -> Iterator[Item]:
    # The files of the archive by the ids at the beginning of their names.
    matches = ((_ASSET.match(PurePosixPath(file.name).name), file) for file in source.files)
    assets = {match.group(): file for match, file in matches if match}

    conversation = partial(_ChatGpt, archive=archive, assets=assets, source=source)
    return read_conversations(file, conversation)


class _ChatGpt(ConversationReader):
    def __init__(
        self,
        data: Object,
        place: str,
        archive: ImportHistory,
        assets: dict[str, SourceFile],
        source: ImportSource,
    ) -> None:
        super().__init__(data, place, archive)
        self.assets = assets
        self.source = source
        id = a_text(data.get("conversation_id") or data.get("id"))
        identity = id or f"{data.get('create_time')} {data.get('title')}"
        self.tree = MessageTree(own_uuid(SOURCE, identity), SOURCE)

    def read(self) -> Iterator[Item]:
        """Yield the lines of the sessions.

        Nodes without a message are left out: the parent of a node is the nearest one above that
        has a message."""
        parents: dict[str, str | None] = {}
        ordinals: dict[str, int] = {}
        for id, node in an_object(self.data.get("mapping")).items():
            node = an_object(node)
            parents[id] = a_text(node.get("parent")) or None
            for ordinal, child in enumerate(ids(node.get("children"))):
                parents.setdefault(child, id)
                ordinals[child] = ordinal
            if message := an_object(node.get("message")):
                self.messages[id] = message
        for id in sorted(self.messages, key=lambda id: ordinals.get(id, 0)):
            self.tree.parents[id] = self._above(id, parents)
        leaf = a_text(self.data.get("current_node")) or None
        self.tree.leaf = leaf if leaf in self.messages else self._above(leaf, parents)
        yield from self.lines_of_tree(self.tree)

    def _above(self, id: str | None, parents: dict[str, str | None]) -> str | None:
        above = parents.get(id) if id else None
        passed: list[str] = []
        while above is not None and above not in self.messages:
            if len(passed) > len(parents):  # a cycle
                above = None
                break
            passed.append(above)
            above = parents.get(above)
        parents |= dict.fromkeys(passed, above)  # so that no node is passed twice
        return above

    def header(self, path: TreePath) -> Object:
        data = self.data
        updated = data.get("update_time") or data.get("create_time")
        return {
            "channel": SOURCE,
            "title": data.get("title"),
            "created_at": data.get("create_time"),
            "last_active_at": updated,
            "archived_at": updated if data.get("is_archived") is True else None,
            "source": {"format": SOURCE}
            | without(data, "mapping", "title", "create_time", "update_time", "moderation_results"),
        }

    def make(self, path: TreePath, node: str) -> Iterator[Made]:
        message = self.messages[node]
        author, metadata = an_object(message.get("author")), an_object(message.get("metadata"))
        content = _content_of(message)
        files = self.files(path, node)
        turn = self._turn(node, message, metadata, files)
        finish = an_object(metadata.get("finish_details")).get("type")
        used_keys = _TOLD.get(a_text(content.get("content_type")), ())
        extra: Object = {
            "created_at": message.get("create_time"),
            "stop_reason": finish,
            "complete": False if finish in CUT_OFF else None,
            "source": without(message, "id", "create_time", "content")
            | {"author": without(author, "role"), "content": without(content, *used_keys)},
        }
        if turn["role"] == "system" and author.get("role") != "system":
            extra["original_role"] = author.get("role")
        yield {k: v for k, v in extra.items() if v is not None} | turn, files.lines

    def _turn(self, node: str, message: Object, metadata: Object, files: TurnFiles) -> Object:
        author, content = an_object(message.get("author")), _content_of(message)
        role, kind = author.get("role"), content.get("content_type")
        model = a_text(metadata.get("model_slug")) or SOURCE
        if kind == "thoughts":
            thoughts = objects(content.get("thoughts"))
            texts = [
                join_texts((thought.get("summary"), thought.get("content"))) for thought in thoughts
            ]
            return assistant_turn([{"type": "thinking", "thinking": t} for t in texts], model=model)
        attached = objects(metadata.get("attachments"))
        added: set[str] = set()
        text = self._text(content, attached, added, files)
        is_hidden = metadata.get("is_visually_hidden_from_conversation") is True
        if role == "user" and kind != "user_editable_context" and not is_hidden:
            for thought in attached:
                id, name = a_text(thought.get("id")), a_text(thought.get("name"))
                if id not in added:  # pictures are also in the parts
                    self._add_asset(id, name or id, thought, files)
            return user_turn(text, files)
        if role == "assistant" and kind != "reasoning_recap":
            recipient = a_text(message.get("recipient")) or "all"
            block: Object = {"type": "text", "text": text}
            if recipient != "all":
                tool_input = as_input(text, name="code" if recipient == "python" else "text")
                block = {"type": "tool_use", "id": node, "name": recipient, "input": tool_input}
            return assistant_turn([block], model=model) | files.all()
        if role == "tool":
            name = a_text(author.get("name"))
            ok = kind != "system_error"
            call = self._call_of(node, name)
            return result_turn(text, call_id=call, name=name or "tool", ok=ok, files=files)
        return {"role": "system", "content": text} | files.all()

    def _call_of(self, node: str, name: str) -> str:
        # A result's call is the nearest message above it that calls its tool.
        above = self.tree.parents.get(node)
        for _ in range(MAX_CALL_DISTANCE_MESSAGES):
            if above is None:
                break
            recipient = a_text(self.messages[above].get("recipient"))
            if name and recipient.split(".")[0] == name.split(".")[0]:
                return above
            above = self.tree.parents.get(above)
        return node

    def _text(
        self, content: Object, attached: list[Object], added: set[str], files: TurnFiles
    ) -> str:
        """Return the text of the content.

        Add its pictures and sounds to ``files``, and the ids of their assets to ``added``."""
        kind, parts = a_text(content.get("content_type")), content.get("parts")
        if kind in _TEXTS:
            return join_texts(content.get(name) for name in _TEXTS[kind])
        if not isinstance(parts, list):
            text = a_text(content.get("text") or content.get("result"))
            return text or (dump_json(content) if content else "")
        names = {a_text(file.get("id")): a_text(file.get("name")) for file in attached}
        texts: list[str] = []
        for part in parts:
            if text := a_text(part.get("text") if isinstance(part, dict) else part):
                texts.append(text)
            elif isinstance(part, dict):
                for pointer in _pointers_of(part):
                    id = a_text(pointer.get("asset_pointer")).split("/")[-1]
                    added.add(id)
                    self._add_asset(id, names.get(id, id), pointer, files)
        return join_texts(texts)

    def _add_asset(self, id: str, name: str, described: Object, files: TurnFiles) -> None:
        match = _ASSET.search(id)
        asset = self.assets.get(match.group()) if match else None
        if asset is not None and asset.size <= MAX_ASSET_BYTES:
            self.source.used.add(asset.name)
            try:
                with asset.open() as stream:
                    data = stream.read()
            except DAMAGE as error:
                text = say(
                    "the file %(name)s cannot be read: %(error)s", name=name, error=str(error)
                )
                files.lost.append(text)
            else:
                files.add(data, name)
                return
        is_image = described.get("content_type") == "image_asset_pointer"
        media_type = "image/png" if is_image else a_text(described.get("mime_type"))
        files.add_missing(name, described, media_type=media_type)


def _pointers_of(part: Object) -> list[Object]:
    """Return the objects that name the files of a part: the audio and video in it, or itself."""
    pointers = [part.get("audio_asset_pointer"), part.get("video_container_asset_pointer")]
    return objects(pointers) + objects(part.get("frames_asset_pointers")) or [part]


def _content_of(message: Object) -> Object:
    content = message.get("content")
    text: Object = {"content_type": "text", "parts": [content]}
    return text if a_text(content) else an_object(content)
