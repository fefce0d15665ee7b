"""Reading exports of Open WebUI: one chat, or the list of all chats.

``history.messages`` is a tree. ``currentId`` is the message that the person saw last. Answers of
several models to one message are branches too. Tool calls and thinking are ``<details>`` elements
in the text of an answer, as the page showed them.
"""

import html
import re
from collections.abc import Iterator
from functools import partial

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
    load_given,
    objects,
    own_uuid,
    result_turn,
    user_turn,
    without,
)
from .sources import ImportSource, SourceFile
from .trees import ConversationReader, Made, MessageTree, TreePath, read_conversations

SOURCE = "openwebui"

_OPENING = re.compile(r"<details\s")
_CLOSING = "</details>"
_SPACE = re.compile(r"\s*")
_ATTRIBUTE = re.compile(r'(?<![\w-])([\w-]{1,40})="([^"]*)"')
_QUOTED = re.compile(r"^> ?", re.MULTILINE)
_FENCED = re.compile(r"```(\w*)\n(.*?)\n?```", re.DOTALL)
_DATA_ADDRESS = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.ASCII)


def read_openwebui(
    file: SourceFile, source: ImportSource, archive: ImportHistory
) -> Iterator[Item]:
    return read_conversations(file, partial(_OpenWebUi, archive=archive))


class _OpenWebUi(ConversationReader):
    def __init__(self, data: Object, place: str, archive: ImportHistory) -> None:
        super().__init__(data, place, archive)
        self.chat = an_object(data.get("chat")) or data  # some exports have only the chat itself

    def read(self) -> Iterator[Item]:
        history = an_object(self.chat.get("history"))
        id = self.data.get("id") or self.chat.get("id")
        identity = id or f"{self.chat.get('timestamp')} {self.chat.get('title')}"
        tree = MessageTree(own_uuid(SOURCE, identity), SOURCE)
        messages = an_object(history.get("messages"))
        if not messages:  # a list: each message is the parent of the next one
            above: str | None = None
            for ordinal, message in enumerate(objects(self.chat.get("messages"))):
                node = a_text(message.get("id")) or f"message-{ordinal}"
                messages[node] = {"parentId": above} | message
                above = node
        ordinals = {
            child: ordinal
            for message in messages.values()
            for ordinal, child in enumerate(ids(an_object(message).get("childrenIds")))
        }
        self.messages = {id: message for id, message in messages.items() if an_object(message)}
        for node in sorted(self.messages, key=lambda id: ordinals.get(id, 0)):
            tree.parents[node] = a_text(self.messages[node].get("parentId")) or None
        tree.leaf = a_text(history.get("currentId")) or None
        yield from self.lines_of_tree(tree)

    def header(self, path: TreePath) -> Object:
        data, chat = self.data, self.chat
        updated = data.get("updated_at") or chat.get("timestamp")
        system = an_object(chat.get("params")).get("system") or chat.get("system")
        left_out = without(data, "chat", "title", "created_at", "updated_at", "history", "messages")
        return {
            "channel": SOURCE,
            "title": data.get("title") or chat.get("title"),
            "system_prompt": system,
            "created_at": data.get("created_at") or chat.get("timestamp"),
            "last_active_at": updated,
            "archived_at": updated if data.get("archived") is True else None,
            "pinned_at": updated if data.get("pinned") is True and not path.number else None,
            "source": {"format": SOURCE}
            | left_out
            | ({"chat": without(chat, "title", "history", "messages")} if chat is not data else {}),
        }

    def make(self, path: TreePath, node: str) -> Iterator[Made]:
        message = self.messages[node]
        extra: Object = {
            "created_at": message.get("timestamp"),
            "source": without(
                message, "id", "parentId", "childrenIds", "role", "content", "timestamp", "files"
            ),
        }
        files = self.files(path, node)
        content, role = message.get("content"), message.get("role")
        text = a_text(content)
        if isinstance(content, list):  # a list of parts, as in the OpenAI API
            for part in objects(content):
                address = a_text(an_object(part.get("image_url")).get("url"))
                if address:
                    _add_address(address, "image", part, files)
            text = join_texts(part.get("text") for part in objects(content))
        for attached in objects(message.get("files")):
            _add_file(attached, files)
        if role == "user":
            yield user_turn(text, files) | extra, files.lines
        elif role == "assistant":
            extra |= files.all()
            model = a_text(message.get("model")) or SOURCE
            if message.get("done") is False:
                extra["complete"] = False
            for turn in _answer(node, text, model):
                yield turn | extra, files.lines
                extra, files.lines = {"created_at": message.get("timestamp")}, []
        else:
            original_role = {} if role == "system" else {"original_role": role}
            yield {"role": "system", "content": text} | original_role | extra, files.lines


def _add_file(attached: Object, files: TurnFiles) -> None:
    file = an_object(attached.get("file"))
    name = a_text(attached.get("name") or file.get("filename")) or a_text(attached.get("type"))
    text = a_text(an_object(file.get("data")).get("content"))
    if text:
        files.add(text.encode("utf-8", "replace"), name or "file")
    else:
        _add_address(a_text(attached.get("url")), name or "file", attached, files)


def _add_address(address: str, name: str, described: Object, files: TurnFiles) -> None:
    # A data: URL contains the file. The content behind any other URL is not in the export.
    match = _DATA_ADDRESS.match(address)
    if match:
        files.add_base64(address[match.end() :], name)
        return
    is_image = described.get("type") in ("image", "image_url")
    files.add_missing(name, described, media_type="image/png" if is_image else "")


def _answer(node: str, text: str, model: str) -> Iterator[Object]:
    blocks: list[Object] = []
    end = count = 0
    for start, after, attributes, inside in _find_details(text):
        values = {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(attributes)}
        kind = values.get("type")
        if kind not in ("reasoning", "tool_calls", "code_interpreter"):
            continue
        blocks += _words(text[end:start])
        end = after
        before, opening, after_opening = inside.partition("<summary>")
        _, closing, following = after_opening.partition("</summary>")
        if opening and closing:
            inside = before + following.lstrip()
        if kind == "code_interpreter":  # its code is not HTML-escaped
            values["name"] = kind
            values["arguments"] = dump_json(_code_of(inside.strip()))
            values["result"] = values.pop("output", "")
            inside = ""
        inside = html.unescape(inside)
        if kind == "reasoning":
            words = _QUOTED.sub("", inside).strip()
            blocks.append(without(values, "done") | {"type": "thinking", "thinking": words})
            continue
        count += 1
        yield from _call(values, inside.strip(), f"{node}-{count}", blocks, model)
        blocks = []
    blocks += _words(text[end:])
    if blocks or not count:
        yield assistant_turn(blocks, model=model)


def _call(
    attributes: dict[str, str], inside: str, own_id: str, blocks: list[Object], model: str
) -> Iterator[Object]:
    """Yield the answer up to a tool call, and the call's result if the call has ended."""
    id = attributes.get("id") or own_id
    name = attributes.get("name") or "tool"
    is_done = attributes.get("done") != "false"
    result = attributes.get("result", "")
    if is_done and not result:
        result = inside
        inside = ""
    extra: Object = without(attributes, "id", "name", "arguments", "result", "done")
    extra |= without({"result": "" if is_done else result, "inside": inside})
    tool_input = as_input(_unquote(attributes.get("arguments", "")))
    call = extra | {"type": "tool_use", "id": id, "name": name, "input": tool_input}
    yield assistant_turn([*blocks, call], model=model)
    if is_done:
        result = _unquote(result)
        ok = attributes.get("status") != "failed" and attributes.get("error") != "true"
        yield result_turn(result, call_id=id, name=name, ok=ok)


def _unquote(text: str) -> str:
    """Decode a text that is a JSON string; return any other text unchanged.

    Arguments of models and results of tools are mostly texts that Open WebUI encoded again."""
    try:
        value = load_given(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _code_of(fenced: str) -> Object:
    match = _FENCED.fullmatch(fenced)
    return without({"code": match[2], "language": match[1]}) if match else {"code": fenced}


def _find_details(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield the start, end, attributes and inner text of each ``<details …>…</details>``.

    The end includes the white space after the element."""
    end = begun = closed = 0
    # Search every character only once, even if elements are not closed.
    for opening in _OPENING.finditer(text):
        if opening.start() < end:
            continue
        if begun <= opening.end():
            begun = text.find(">", opening.end()) + 1
        if closed < begun:
            closed = text.find(_CLOSING, begun)
        if not begun or closed < 0:
            return
        end = _SPACE.match(text, closed + len(_CLOSING)).end()  # type: ignore[union-attr]
        yield opening.start(), end, text[opening.end() : begun - 1], text[begun:closed]


def _words(text: str) -> list[Object]:
    return [{"type": "text", "text": text.strip("\n")}] if text.strip() else []
