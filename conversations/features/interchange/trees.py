"""Conversations that branch, as sessions that do not.

Editing a message and asking again make branches: a tree of messages, of which the person
sees one path. That path is the session. Each other branch is a session of its own, from the
first message on, with the session that it leaves as its parent.

The same tree always gives the same sessions, and a grown one the same sessions with more at
their ends: a branch is named by its first node, and a session that was imported before keeps
to its path, wherever the person is now.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from uuid import UUID

from conversations.domain.errors import Rejected
from conversations.domain.messages import say

from .fields import UnusableLine, read_turn
from .making import (
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
from .opening import DAMAGE, DamagedJson, SourceFile, read_items

# How many times as many messages all sessions of a tree may have together as the tree has,
# and how many in any case. A branch brings along all that stands before it: of a tree that
# branches at every message few bytes would become millions of turns.
SPREAD_FACTOR, MIN_SPREAD_MESSAGES, MAX_SPREAD_MESSAGES = 200, 10_000, 2_000_000


class TooBranched(Rejected):
    """The sessions of a tree would be too large; the message says so."""


@dataclass(frozen=True, slots=True)
class TreePath:
    """One session: its nodes from the first on, the first ``shared`` of which are those of
    ``parent``. ``number`` is that of its name, 0 for the main one;
    ``is_current``: the person is there."""

    uuid: UUID
    nodes: list[str]
    number: int = 0
    parent: UUID | None = None
    shared: int = 0
    is_current: bool = True


@dataclass(slots=True)
class MessageTree:
    """Nodes by their parents; one without a parent, or with one that is not there, is a
    root. ``leaf`` is where the person is."""

    main: UUID
    source: str
    leaf: str | None = None
    parents: dict[str, str | None] = field(default_factory=dict)
    _children: dict[str | None, list[str]] = field(default_factory=dict)

    def plan(self, archive: ImportHistory) -> list[TreePath]:
        """The sessions, each after its parent. Raises TooBranched."""
        order = self._arrange()
        if not order:
            return [TreePath(self.main, [])]
        current = set(self._up_from(self.leaf)) if self.leaf in self.parents else set()
        # The main session begins where it began before, or where the person is.
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
        """All nodes, parents before children; a ring of parents is cut at its first node."""
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
        found: list[str] = []
        while node is not None:
            found.append(node)
            node = self.parents.get(node)
        return found[::-1]

    def _follow(
        self, uuid: UUID, start: str, current: set[str], archive: ImportHistory
    ) -> list[str]:
        """From a node to the end of a session: through what was imported before, then with
        the person, then along the newest."""
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
"""A turn that a node gives, with the lines that belong to it: attachments, and a
summary that stands for the turns before it."""


class ConversationReader:
    """A conversation of another program. ``data`` is what the file has of it, ``place`` where.
    A reader plants its tree (``read``), and says what its sessions are (``header``) and which
    turns a node gives (``make``), always the same."""

    def __init__(self, told: Object, place: str, archive: ImportHistory) -> None:
        self.data = told
        self.place = place
        self.archive = archive
        self.messages: dict[str, Object] = {}
        self.lost: list[str] = []  # Of the files of the node that was made last.

    def files(self, path: TreePath, node: str) -> TurnFiles:
        return TurnFiles(self.archive.resolve(path.uuid), node, lost=self.lost)

    def read(self) -> Iterator[Item]:
        raise NotImplementedError

    def header(self, path: TreePath) -> Object:
        raise NotImplementedError

    def make(self, path: TreePath, node: str) -> Iterator[Made]:
        raise NotImplementedError

    def is_branch(self, path: TreePath) -> bool:
        """Whether it was said in the place of something else."""
        return True

    def lines_of_tree(self, tree: MessageTree) -> Iterator[Item]:
        """The lines of the sessions.

        A message that says something else than it did in an earlier import, or that stands
        where another one stood, begins a version of the session: a fork of its own."""
        paths = tree.plan(self.archive)
        number, known = self.archive.imported_branches(tree.main)
        ends: dict[str, int] = {}
        versions: dict[UUID, TreePath] = {}
        for path in paths:
            # Below the version of its parent, where that has the turn which it leaves.
            while path.parent in versions and versions[path.parent].shared < path.shared:
                path = replace(path, parent=versions[path.parent].uuid)
            while True:
                if path.number and self.archive.resolve(path.uuid) not in known:
                    number += 1  # after those of earlier exports, wherever it is in the tree
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
        """Up to the first node that is not as it is in the archive: its place, and a digest
        of what it says. ``ends`` gets the number of each node's last turn."""
        line: Object = {"type": "session", "uuid": str(path.uuid)} | self.header(path)
        if path.number:
            line["parent"] = str(path.parent)
            if self.is_branch(path):
                line["title"] = f"{line.get('title') or ''} (branch {path.number})".strip()
                line["fork_turn"] = ends[path.nodes[path.shared - 1]] if path.shared else 0
            if not path.is_current:
                line["archived_at"] = line.get("archived_at") or line.get("last_active_at")
        yield ImportLine(self.place, line)
        number, told = 0, self.archive.imported_words(path.uuid)
        for index, node in enumerate(path.nodes):
            self.lost.clear()
            made = list(self.make(path, node))
            said = [words for turn, _ in made if (words := _words_of(turn)) is not None]
            if any(words != next(told, words) for words in said):
                return index, sha256(repr(said).encode("utf-8", "surrogatepass")).hexdigest()
            place = say("%(place)s, message %(id)s", place=self.place, id=node)
            if index >= path.shared:  # its parent has told the others
                yield from [ImportNote(place, text) for text in self.lost]
            for turn, lines in made:
                number += 1
                yield ImportLine(
                    place, {"type": "turn", "number": number, "source_id": node} | turn
                )
                for extra in lines:
                    is_summary = extra["type"] == "compaction"  # it stands for all turns before it
                    at = {"from_turn": 1, "to_turn": number - 1} if is_summary else {"turn": number}
                    yield ImportLine(place, extra | at)
            ends[node] = number
        return None


def _words_of(line: Object) -> Words | None:
    try:
        _, turn, _ = read_turn(line)
    except (UnusableLine, RecursionError):
        return None
    return tuple(getattr(turn, name) for name in WORDS)


# What the readers of JSON exports have in common: a list of conversations in a file.


def read_conversations(
    file: SourceFile, conversation: Callable[[Object, str], ConversationReader]
) -> Iterator[Item]:
    """Each conversation's lines, in the order of the file. One that is not what it should be
    is skipped, with what went wrong; damage of the file ends it."""
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
