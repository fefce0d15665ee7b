"""Exports of Open WebUI: one chat, or the list of all.

``history.messages`` is a tree, of which ``currentId`` is the message that the person saw
last; answers of several models to one message are branches, too. Calls of tools and
thinking stand as ``<details>`` in the text of an answer, as the page showed them.
"""

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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

SOURCE = "openwebui"

_OPENING = re.compile(r"<details\s")
_CLOSING = "</details>"
_SPACE = re.compile(r"\s*")
_ATTRIBUTE = re.compile(r'(?<![\w-])([\w-]{1,40})="([^"]*)"')
_QUOTED = re.compile(r"^> ?", re.MULTILINE)
_DATA_ADDRESS = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.ASCII)


def read_openwebui(file: SourceFile, source: ImportSource, archive: Archive) -> Iterator[Item]:
    """Every chat, in the order of the file."""

    def read(item: Object, place: str) -> Iterator[Item]:
        yield from _Chat(item, an_object(item.get("chat")) or item, place, archive).read()

    yield from read_conversations(file, read)


@dataclass(slots=True)
class _Chat:
    """``told`` is the record, ``chat`` what it holds; the same where there is no record."""

    told: Object
    chat: Object
    place: str
    archive: Archive
    messages: dict[str, Object] = field(default_factory=dict)

    def read(self) -> Iterator[Item]:
        history = an_object(self.chat.get("history"))
        id = self.told.get("id") or self.chat.get("id")
        main = own_uuid(SOURCE, id or f"{self.chat.get('timestamp')} {self.chat.get('title')}")
        tree = Tree(main, lambda node: stable_uuid(SOURCE, str(main), node))
        found = an_object(history.get("messages")) or _listed(self.chat.get("messages"))
        ordinals = {
            child: ordinal
            for message in found.values()
            for ordinal, child in enumerate(ids(an_object(message).get("childrenIds")))
        }
        self.messages = {id: message for id, message in found.items() if an_object(message)}
        for node in sorted(self.messages, key=lambda id: ordinals.get(id, 0)):
            tree.parents[node] = an_id(self.messages[node].get("parentId"))
        tree.leaf = an_id(history.get("currentId"))
        yield from tell_paths(
            tree.plan(self.archive),
            self.archive,
            place=self.place,
            header=self._header,
            make=self._make,
        )

    def _header(self, path: Path) -> Object:
        told, chat = self.told, self.chat
        updated = told.get("updated_at") or chat.get("timestamp")
        system = an_object(chat.get("params")).get("system") or chat.get("system")
        left = without(told, "chat", "title", "created_at", "updated_at", "history", "messages")
        return {
            "channel": SOURCE,
            "title": told.get("title") or chat.get("title"),
            "system_prompt": system,
            "created_at": told.get("created_at") or chat.get("timestamp"),
            "last_active_at": updated,
            "archived_at": updated if told.get("archived") is True else None,
            "pinned_at": updated if told.get("pinned") is True and not path.ordinal else None,
            "source": {"format": SOURCE}
            | left
            | ({"chat": without(chat, "title", "history", "messages")} if chat is not told else {}),
        }

    def _make(self, path: Path, node: str) -> Iterator[Made]:
        message = self.messages[node]
        extra: Object = {
            "created_at": message.get("timestamp"),
            "source": without(
                message, "id", "parentId", "childrenIds", "role", "content", "timestamp", "files"
            ),
        }
        files = Files(self.archive.resolve(path.uuid), node)
        text = _read_content(message.get("content"), files)
        for attached in objects(message.get("files")):
            _add_file(attached, files)
        role = message.get("role")
        if role == "user":
            yield Made(user_turn(text, files) | extra, files.lines)
        elif role == "assistant":
            if files.left or files.blocks:
                extra["files"] = [*files.left, *files.blocks]
            model = a_text(message.get("model")) or SOURCE
            if message.get("done") is False:
                extra["complete"] = False
            for turn in _answer(node, text, model):
                yield Made(turn | extra, files.lines)
                extra, files.lines = {"created_at": message.get("timestamp")}, []
        else:
            told = {} if role == "system" else {"original_role": role}
            yield Made({"role": "system", "content": text} | told | extra, files.lines)


def _listed(messages: Any) -> dict[str, Object]:
    """The messages of a chat that has no tree, each below the one before it."""
    found: dict[str, Object] = {}
    for ordinal, message in enumerate(objects(messages)):
        above = next(reversed(found), None)
        found[an_id(message.get("id")) or f"message-{ordinal}"] = {"parentId": above} | message
    return found


def _read_content(content: Any, files: Files) -> str:
    """Text, or a list of parts as the OpenAI API has them."""
    if not isinstance(content, list):
        return a_text(content)
    for part in objects(content):
        address = a_text(an_object(part.get("image_url")).get("url"))
        if address:
            _add_address(address, "image", part, files)
    return join_texts(part.get("text") for part in objects(content))


def _add_file(attached: Object, files: Files) -> None:
    held = an_object(attached.get("file"))
    name = a_text(attached.get("name") or held.get("filename")) or a_text(attached.get("type"))
    text = a_text(an_object(held.get("data")).get("content"))
    address = a_text(attached.get("url"))
    if text:
        files.add(text.encode("utf-8", "replace"), name or "file")
        return
    _add_address(address, name or "file", attached, files)


def _add_address(address: str, name: str, described: Object, files: Files) -> None:
    """A file that is part of its own address; any other stays an address."""
    match = _DATA_ADDRESS.match(address)
    if match:
        files.add_base64(address[match.end() :], name)
        return
    is_image = described.get("type") in ("image", "image_url")
    files.add_missing(name, described, media_type="image/png" if is_image else "")


def _answer(node: str, text: str, model: str) -> Iterator[Object]:
    """The turns of an answer: what was said up to a result, the result, and so on."""
    said: list[Object] = []
    end = 0
    count = 0
    for found in _find_details(text):
        told = {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(found.attributes)}
        if told.get("type") not in ("reasoning", "tool_calls"):
            continue
        said += _words(text[end : found.start])
        end = found.end
        inside = _without_summary(found.inside)
        if told["type"] == "reasoning":
            words = _QUOTED.sub("", html.unescape(inside)).strip()
            said.append(without(told, "done") | {"type": "thinking", "thinking": words})
            continue
        count += 1
        id, name = told.get("id") or f"{node}-{count}", told.get("name") or "tool"
        given = as_input(told.get("arguments", ""))
        rest = without(told, "id", "name", "arguments", "result", "done")
        said.append(rest | {"type": "tool_use", "id": id, "name": name, "input": given})
        yield assistant_turn(said, model=model)
        said = []
        if told.get("done") != "false":
            result = _result(told, html.unescape(inside))
            ok = told.get("status") != "failed" and told.get("error") != "true"
            yield result_turn(result, call_id=id, name=name, ok=ok)
    said += _words(text[end:])
    if said or not count:
        yield assistant_turn(said, model=model)


@dataclass(frozen=True, slots=True)
class _Details:
    start: int
    end: int
    attributes: str
    inside: str


def _find_details(text: str) -> Iterator[_Details]:
    """The ``<details …>…</details>`` of a text, with the white space that follows. Every
    character is looked at once, also where nothing is closed."""
    end = begun = closed = 0
    for opening in _OPENING.finditer(text):
        if opening.start() < end:
            continue
        if begun <= opening.end():
            begun = text.find(">", opening.end()) + 1
        if closed < begun:
            closed = text.find(_CLOSING, begun)
        if not begun or closed < 0:
            return
        found = _SPACE.match(text, closed + len(_CLOSING))
        end = found.end() if found else len(text)
        yield _Details(opening.start(), end, text[opening.end() : begun - 1], text[begun:closed])


def _without_summary(text: str) -> str:
    before, opening, rest = text.partition("<summary>")
    _, closing, after = rest.partition("</summary>")
    return before + after.lstrip() if opening and closing else text


def _words(text: str) -> list[Object]:
    return [{"type": "text", "text": text.strip("\n")}] if text.strip() else []


def _result(told: dict[str, str], inside: str) -> str:
    """A result is JSON: mostly a string, which is meant."""
    text = told.get("result") or inside.strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text
