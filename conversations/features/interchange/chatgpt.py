"""Exports of ChatGPT: ``conversations.json``, alone or in its archive with the files.

A conversation is a ``mapping`` of nodes with parents, of which ``current_node`` is the one
that the person saw last. A call of a tool is an assistant's message to somebody else than
``all``; its result is a message whose author is the tool.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from conversations.domain.text import dump_json

from .making import (
    Archive,
    Files,
    Item,
    Object,
    as_input,
    assistant_turn,
    join_texts,
    own_uuid,
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
    ids,
    objects,
    read_conversations,
    tell_paths,
)

SOURCE = "chatgpt"
CUT_OFF = ("max_tokens", "interrupted", "client_stopped")
CALLERS = 30
"""Messages above a result among which its call is sought."""

_ASSET = re.compile(r"file[-_][0-9A-Za-z]+")


def read_chatgpt(file: SourceFile, source: ImportSource, archive: Archive) -> Iterator[Item]:
    """Every conversation, in the order of the file."""
    # The files of the archive by the ids with which their names begin.
    matches = ((_ASSET.match(PurePosixPath(file.name).name), file) for file in source.files)
    assets = {match.group(): file for match, file in matches if match}

    def read(item: Object, place: str) -> Iterator[Item]:
        yield from _Conversation(item, place, assets, source, archive).read()

    yield from read_conversations(file, read)


@dataclass(slots=True)
class _Conversation:
    told: Object
    place: str
    assets: dict[str, SourceFile]
    source: ImportSource
    archive: Archive
    messages: dict[str, Object] = field(default_factory=dict)
    tree: Tree = field(init=False)
    _added: set[str] = field(default_factory=set)
    _names: dict[str, str] = field(default_factory=dict)

    def read(self) -> Iterator[Item]:
        id = a_text(self.told.get("conversation_id") or self.told.get("id"))
        known = id or f"{self.told.get('create_time')} {self.told.get('title')}"
        main = own_uuid(SOURCE, known)
        self.tree = Tree(main, lambda node: stable_uuid(SOURCE, str(main), node))
        self._plant(an_object(self.told.get("mapping")))
        yield from tell_paths(
            self.tree.plan(self.archive),
            self.archive,
            place=self.place,
            header=self._header,
            make=self._make,
        )

    def _plant(self, mapping: dict[str, Any]) -> None:
        """The nodes that say something, each below the next one above that does."""
        parents: dict[str, str | None] = {}
        ordinals: dict[str, int] = {}
        for id, node in mapping.items():
            node = an_object(node)
            parents[id] = an_id(node.get("parent"))
            for ordinal, child in enumerate(ids(node.get("children"))):
                parents.setdefault(child, id)
                ordinals[child] = ordinal
            if message := an_object(node.get("message")):
                self.messages[id] = message
        for id in sorted(self.messages, key=lambda id: ordinals.get(id, 0)):
            self.tree.parents[id] = self._above(id, parents)
        leaf = an_id(self.told.get("current_node"))
        self.tree.leaf = leaf if leaf in self.messages else self._above(leaf, parents)

    def _above(self, id: str | None, parents: dict[str, str | None]) -> str | None:
        above = parents.get(id) if id else None
        passed: list[str] = []
        while above is not None and above not in self.messages:
            if len(passed) > len(parents):  # a ring
                above = None
                break
            passed.append(above)
            above = parents.get(above)
        parents |= dict.fromkeys(passed, above)  # they are not walked again
        return above

    def _header(self, path: Path) -> Object:
        told = self.told
        updated = told.get("update_time") or told.get("create_time")
        return {
            "channel": SOURCE,
            "title": told.get("title"),
            "created_at": told.get("create_time"),
            "last_active_at": updated,
            "archived_at": updated if told.get("is_archived") is True else None,
            "source": {"format": SOURCE}
            | without(told, "mapping", "title", "create_time", "update_time", "moderation_results"),
        }

    def _make(self, path: Path, node: str) -> Iterator[Made]:
        message = self.messages[node]
        author, told = an_object(message.get("author")), an_object(message.get("metadata"))
        files = Files(self.archive.resolve(path.uuid), node)
        turn = self._turn(node, message, author, told, files)
        finish = an_object(told.get("finish_details")).get("type")
        content = an_object(message.get("content"))
        told_already = _TOLD.get(a_text(content.get("content_type")), ())
        extra: Object = {
            "created_at": message.get("create_time"),
            "stop_reason": finish,
            "complete": False if finish in CUT_OFF else None,
            "source": without(message, "id", "create_time", "content")
            | {"author": without(author, "role"), "content": without(content, *told_already)},
        }
        if turn["role"] == "system" and author.get("role") != "system":
            extra["original_role"] = author.get("role")
        yield Made({k: v for k, v in extra.items() if v is not None} | turn, files.lines)

    def _turn(
        self, node: str, message: Object, author: Object, told: Object, files: Files
    ) -> Object:
        self._added = set()
        self._names = {
            a_text(attached.get("id")): a_text(attached.get("name"))
            for attached in objects(told.get("attachments"))
        }
        role, content = author.get("role"), an_object(message.get("content"))
        kind = content.get("content_type")
        model = a_text(told.get("model_slug")) or SOURCE
        if kind == "thoughts":
            thoughts = [
                {
                    "type": "thinking",
                    "thinking": join_texts((thought.get("summary"), thought.get("content"))),
                }
                for thought in objects(content.get("thoughts"))
            ]
            return assistant_turn(thoughts, model=model)
        text = self._text(content, files)
        is_hidden = told.get("is_visually_hidden_from_conversation") is True
        if role == "user" and kind != "user_editable_context" and not is_hidden:
            self._add_attachments(told, files)
            return user_turn(text, files)
        if role == "assistant" and kind != "reasoning_recap":
            recipient = a_text(message.get("recipient")) or "all"
            block: Object = {"type": "text", "text": text}
            if recipient != "all":
                given = as_input(text, name="code" if recipient == "python" else "text")
                block = {"type": "tool_use", "id": node, "name": recipient, "input": given}
            return assistant_turn([block], model=model) | _kept(files)
        if role == "tool":
            name = a_text(author.get("name"))
            ok = kind != "system_error"
            call = self._call_of(node, name)
            return result_turn(text, call_id=call, name=name or "tool", ok=ok, files=files)
        return {"role": "system", "content": text} | _kept(files)

    def _call_of(self, node: str, name: str) -> str:
        """The message that called the tool of this result: the nearest one above."""
        above = self.tree.parents.get(node)
        for _ in range(CALLERS):
            if above is None:
                break
            recipient = a_text(self.messages[above].get("recipient"))
            if name and recipient.split(".")[0] == name.split(".")[0]:
                return above
            above = self.tree.parents.get(above)
        return node

    def _text(self, content: Object, files: Files) -> str:
        read = _TEXTS.get(a_text(content.get("content_type")))
        if read is not None:
            return read(content)
        parts = content.get("parts")
        if isinstance(parts, list):
            return join_texts(self._part(part, files) for part in parts)
        return a_text(content.get("text") or content.get("result")) or (
            dump_json(content) if content else ""
        )

    def _part(self, part: Any, files: Files) -> str:
        """A part's text; what is a picture or a sound goes to the files."""
        if not isinstance(part, dict):
            return a_text(part)
        if a_text(part.get("text")):
            return a_text(part.get("text"))
        id = a_text(part.get("asset_pointer")).split("/")[-1]
        self._add_asset(id, self._names.get(id, id), part, files)
        return ""

    def _add_attachments(self, told: Object, files: Files) -> None:
        """What the person attached, but for the pictures that are among the parts."""
        for attached in objects(told.get("attachments")):
            id, name = a_text(attached.get("id")), a_text(attached.get("name"))
            if id not in self._added:
                self._add_asset(id, name or id, attached, files)

    def _add_asset(self, id: str, name: str, described: Object, files: Files) -> None:
        self._added.add(id)
        match = _ASSET.search(id)
        asset = self.assets.get(match.group()) if match else None
        if asset is None or asset.size > MAX_ASSET_BYTES:
            is_image = described.get("content_type") == "image_asset_pointer"
            media_type = "image/png" if is_image else a_text(described.get("mime_type"))
            files.add_missing(name, described, media_type=media_type)
            return
        self.source.used.add(asset.name)
        with asset.open() as stream:
            files.add(stream.read(), name)


MAX_ASSET_BYTES = 50 * 1024 * 1024


def _kept(files: Files) -> Object:
    return {"files": [*files.left, *files.blocks]} if files.left or files.blocks else {}


_TEXTS: dict[str, Callable[[Object], str]] = {
    "tether_quote": lambda content: join_texts(
        content.get(name) for name in ("title", "url", "text")
    ),
    "tether_browsing_display": lambda content: join_texts(
        content.get(name) for name in ("summary", "result")
    ),
    "user_editable_context": lambda content: join_texts(
        content.get(name) for name in ("user_profile", "user_instructions")
    ),
    "model_editable_context": lambda content: a_text(content.get("model_set_context")),
    "system_error": lambda content: join_texts(content.get(name) for name in ("name", "text")),
    "reasoning_recap": lambda content: a_text(content.get("content")),
}

_TOLD = {"text": ("parts",), "code": ("text",), "execution_output": ("text",)}
"""Keys of a content that are in the turn's text."""
