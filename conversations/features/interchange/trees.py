"""Importing conversations with branches as sessions without branches.

In other programs, editing a message or asking again creates a branch, so a conversation is a tree
of messages of which the person sees one path. That path becomes the main session. Each other branch
becomes a session of its own, from the first message on. Its parent is the session from which it
branches.

The same tree always gives the same sessions. A tree that has grown gives the same sessions with
more turns at their ends, because a branch's uuid is made from its first node, and a session that
was imported before keeps its path even if the person now sees another one.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from uuid import UUID

from conversations.domain.errors import Rejected
from conversations.domain.messages import say

from .fields import UnusableLine, read_turn
from .lines import (
    WORDS,
    ImportHistory,
    ImportLine,
    ImportNote,
    Item,
    Object,
    TurnFiles,
    Words,
    stable_uuid,
)
from .sources import DAMAGE, DamagedJson, SourceFile, read_items

# All sessions of a tree together may have MIN_SPREAD_MESSAGES messages plus SPREAD_FACTOR messages
# for each message of the tree, but not more than MAX_SPREAD_MESSAGES. A branch repeats all messages
# before it, so a small file that branches at every message could become millions of turns.
SPREAD_FACTOR, MIN_SPREAD_MESSAGES, MAX_SPREAD_MESSAGES = 200, 10_000, 2_000_000


class TooBranched(Rejected):
    """The sessions of a tree would have too many messages."""


@dataclass(frozen=True, slots=True)
class TreePath:
    """The path of one session through a tree.

    The first ``shared`` of its ``nodes`` are also in ``parent``. ``number`` is the branch number
    in its title, 0 for the main session. If ``is_current``, the person sees this path."""

    uuid: UUID
    nodes: list[str]
    number: int = 0
    parent: UUID | None = None
    shared: int = 0
    is_current: bool = True


@dataclass(slots=True)
class MessageTree:
    """A tree of messages, as a mapping of nodes to their parents.

    A node whose parent is None or missing is a root. ``leaf`` is the node that the person saw
    last."""

    main: UUID
    source: str
    leaf: str | None = None
    parents: dict[str, str | None] = field(default_factory=dict)
    _children: dict[str | None, list[str]] = field(default_factory=dict)

    def plan(self, archive: ImportHistory) -> list[TreePath]:
        """Return the paths of the sessions, each after its parent. Raise TooBranched."""
        order = self._arrange()
        if not order:
            return [TreePath(self.main, [])]
        current = set(self._up_from(self.leaf)) if self.leaf in self.parents else set()
        # The main session begins at the root of its earlier import, else of the current path.
        reached = archive.last_imported_node(self.main)
        if reached is not None and reached[0] in self.parents:
            begin = self._up_from(reached[0])[0]
        else:
            begin = next((node for node in order if node in current), order[0])
        nodes = self._follow(self.main, begin, current, archive)
        paths = [TreePath(self.main, nodes)]
        owners = dict.fromkeys(nodes, self.main)
        room = min(MAX_SPREAD_MESSAGES, MIN_SPREAD_MESSAGES + SPREAD_FACTOR * len(order)) - len(
            nodes
        )
        for node in order:
            if node in owners:
                continue
            uuid = stable_uuid(self.source, str(self.main), node)
            parent = self.parents[node]
            before = self._up_from(parent) if parent is not None else []
            nodes = before + self._follow(uuid, node, current, archive)
            room -= len(nodes)
            if room < 0:
                raise TooBranched(
                    "it has so many branches that it would become millions of messages"
                )
            owner = owners[parent] if parent is not None else self.main
            is_current = nodes[-1] in current
            paths.append(TreePath(uuid, nodes, len(paths) + 1, owner, len(before), is_current))
            owners |= dict.fromkeys(nodes[len(before) :], uuid)
        return paths

    def _arrange(self) -> list[str]:
        """Return all nodes, parents before children. Cut a cycle of parents at its first node."""
        order: list[str] = []
        seen: set[str] = set()
        for node, parent in self.parents.items():
            if parent not in self.parents:
                self.parents[node] = None
            self._children.setdefault(self.parents[node], []).append(node)
        for start in [*self._children.get(None, []), *self.parents]:
            if start in seen:
                continue
            if (parent := self.parents[start]) is not None:
                self._children[parent].remove(start)
                self.parents[start] = None
            stack = [start]
            while stack:
                node = stack.pop()
                if node not in seen:
                    seen.add(node)
                    order.append(node)
                    stack += reversed(self._children.get(node, []))
        return order

    def _up_from(self, node: str | None) -> list[str]:
        nodes: list[str] = []
        while node is not None:
            nodes.append(node)
            node = self.parents.get(node)
        return nodes[::-1]

    def _follow(
        self, uuid: UUID, start: str, current: set[str], archive: ImportHistory
    ) -> list[str]:
        """Return the nodes of a session from ``start`` on.

        Follow the nodes that were imported before, then the current path, then the last children.
        """
        nodes = [start]
        reached = archive.last_imported_node(uuid)
        if reached is not None and reached[0] in self.parents:
            last, is_continued = reached
            way = self._up_from(last)
            if start in way:
                nodes = way[way.index(start) :]
                if is_continued:
                    return nodes
        while children := self._children.get(nodes[-1], []):
            nodes.append(next((child for child in children if child in current), children[-1]))
        return nodes


type Made = tuple[Object, list[Object]]
"""A turn that was made from a node, with its attachment and compaction lines."""


class ConversationReader:
    """A conversation of another program.

    ``data`` is the conversation's object in the file and ``place`` its position there. Subclasses
    build the tree (``read``), return the session line's values (``header``) and make the turns of
    a node (``make``). ``make`` must always give the same turns for the same node."""

    def __init__(self, data: Object, place: str, archive: ImportHistory) -> None:
        self.data = data
        self.place = place
        self.archive = archive
        self.messages: dict[str, Object] = {}
        self.lost: list[str] = []  # Messages about lost files of the last node that was made.

    def files(self, path: TreePath, node: str) -> TurnFiles:
        return TurnFiles(self.archive.resolve(path.uuid), node, lost=self.lost)

    def read(self) -> Iterator[Item]:
        raise NotImplementedError

    def header(self, path: TreePath) -> Object:
        raise NotImplementedError

    def make(self, path: TreePath, node: str) -> Iterator[Made]:
        raise NotImplementedError

    def is_branch(self, path: TreePath) -> bool:
        """Return whether the path is a branch of its parent, not a separate conversation."""
        return True

    def lines_of_tree(self, tree: MessageTree) -> Iterator[Item]:
        """Yield the lines of all sessions.

        If a message has other content than in an earlier import, or stands in another message's
        place, a version of the session is made from there: a fork with a uuid of its own."""
        paths = tree.plan(self.archive)
        number, known_branches = self.archive.imported_branches(tree.main)
        ends: dict[str, int] = {}
        versions: dict[UUID, TreePath] = {}
        for path in paths:
            # Use the version of the parent if it contains the turn at which this path branches.
            while path.parent in versions and versions[path.parent].shared < path.shared:
                path = replace(path, parent=versions[path.parent].uuid)
            while True:
                if path.number and self.archive.resolve(path.uuid) not in known_branches:
                    number += 1  # new branches are numbered after those of earlier imports
                    path = replace(path, number=number)
                changed = yield from self._lines_of_path(path, ends)
                if changed is None:
                    break
                shared, digest = changed
                uuid = stable_uuid("version", str(path.uuid), path.nodes[shared], digest)
                version = TreePath(uuid, path.nodes, number + 1, path.uuid, shared, path.is_current)
                versions[path.uuid] = path = version

    def _lines_of_path(
        self, path: TreePath, ends: dict[str, int]
    ) -> Generator[Item, None, tuple[int, str] | None]:
        """Yield the lines of a path up to the first node that differs from the archive.

        Return that node's index and a digest of its content, or None if no node differs. ``ends``
        is filled with the number of each node's last turn."""
        # Other programs let their models write titles, and most do not say who wrote one.
        line: Object = {"type": "session", "uuid": str(path.uuid), "title_is_chosen": False}
        line |= self.header(path)
        if path.number:
            line["parent"] = str(path.parent)
            if self.is_branch(path):
                line["title"] = f"{line.get('title') or ''} (branch {path.number})".strip()
                line["fork_turn"] = ends[path.nodes[path.shared - 1]] if path.shared else 0
            if not path.is_current:
                line["archived_at"] = line.get("archived_at") or line.get("last_active_at")
        yield ImportLine(self.place, line)
        number, imported_texts = 0, self.archive.imported_words(path.uuid)
        for index, node in enumerate(path.nodes):
            self.lost.clear()
            turns = list(self.make(path, node))
            texts = [words for turn, _ in turns if (words := _words_of(turn)) is not None]
            if any(words != next(imported_texts, words) for words in texts):
                return index, sha256(repr(texts).encode("utf-8", "surrogatepass")).hexdigest()
            place = say("%(place)s, message %(id)s", place=self.place, id=node)
            if index >= path.shared:  # the parent's lines have reported the others
                yield from [ImportNote(place, text) for text in self.lost]
            for turn, lines in turns:
                number += 1
                yield ImportLine(
                    place, {"type": "turn", "number": number, "source_id": node} | turn
                )
                for extra in lines:
                    is_summary = extra["type"] == "compaction"  # covers all turns before it
                    range_columns = (
                        {"from_turn": 1, "to_turn": number - 1} if is_summary else {"turn": number}
                    )
                    yield ImportLine(place, extra | range_columns)
            ends[node] = number
        return None


def _words_of(line: Object) -> Words | None:
    try:
        _, turn, _ = read_turn(line)
    except (UnusableLine, RecursionError):
        return None
    return tuple(getattr(turn, name) for name in WORDS)


# Reading a JSON export that is a list of conversations.


def read_conversations(
    file: SourceFile, conversation: Callable[[Object, str], ConversationReader]
) -> Iterator[Item]:
    """Yield the lines of each conversation in a file.

    A conversation with an unexpected structure is skipped with a note. If the file is damaged,
    reading ends with a note."""
    number = 0
    try:
        with file.open() as stream:
            for number, item in enumerate(read_items(stream), 1):
                place = say("%(file)s: conversation %(number)s", file=file.name, number=number)
                if not isinstance(item, dict):
                    yield ImportNote(place, say("it is not an object"))
                    continue
                try:
                    yield from conversation(item, place).read()
                except TooBranched as error:
                    yield ImportNote(place, error.message)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    text = say("its structure is not as expected (%(reason)s)", reason=reason)
                    yield ImportNote(place, text)
    except (DamagedJson, *DAMAGE) as error:
        place = say("%(file)s: after conversation %(number)s", file=file.name, number=number)
        yield ImportNote(place, error.message if isinstance(error, DamagedJson) else str(error))
