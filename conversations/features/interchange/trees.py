"""Conversations that branch, as sessions that do not.

Editing a message and asking again make branches: a tree of messages, of which the person
sees one path. That path is the session. Each other branch is a session of its own, from the
first message on, with the session that it leaves as its parent.

The same tree always gives the same sessions, and a grown one the same sessions with more at
their ends: a branch is named by its first node, and a session that was imported before keeps
to its path, wherever the person is now.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from uuid import UUID

from .making import Archive, ImportLine, Item, Object, Skipped, Words, stable_uuid
from .opening import DAMAGE, DamagedJson, SourceFile, read_items

SPREAD, LEAST_SPREAD, MOST_SPREAD = 200, 10_000, 2_000_000
"""How many times as many messages all sessions of a tree may have together as the tree has,
and how many in any case. A branch brings along all that stands before it: of a tree that
branches at every message few bytes would become millions of turns."""


class TooBranched(ValueError):
    """The sessions of a tree would be too large; the text says so."""


@dataclass(frozen=True, slots=True)
class Path:
    """One session: its nodes from the first on, the first ``shared`` of which are those of
    ``parent``. ``ordinal`` is 0 for the main one; ``is_current``: the person is there."""

    uuid: UUID
    nodes: list[str]
    ordinal: int = 0
    parent: UUID | None = None
    shared: int = 0
    is_current: bool = True


@dataclass(slots=True)
class Tree:
    """Nodes by their parents; one without a parent, or with one that is not there, is a
    root. ``leaf`` is where the person is."""

    main: UUID
    branch: Callable[[str], UUID]
    leaf: str | None = None
    parents: dict[str, str | None] = field(default_factory=dict)
    _children: dict[str | None, list[str]] = field(default_factory=dict)

    def plan(self, archive: Archive) -> list[Path]:
        """The sessions, each after its parent. Raises TooBranched."""
        order = self._arrange()
        if not order:
            return [Path(self.main, [])]
        current = set(self._up_from(self.leaf)) if self.leaf in self.parents else set()
        begin = self._first_root(order, current, archive)
        nodes = self._follow(self.main, begin, current, archive)
        paths = [Path(self.main, nodes)]
        owners = dict.fromkeys(nodes, self.main)
        room = min(MOST_SPREAD, LEAST_SPREAD + SPREAD * len(order)) - len(nodes)
        for node in order:
            if node in owners:
                continue
            uuid, parent = self.branch(node), self.parents[node]
            before = self._up_from(parent) if parent is not None else []
            nodes = before + self._follow(uuid, node, current, archive)
            room -= len(nodes)
            if room < 0:
                raise TooBranched("it branches so often that it would become millions of messages")
            owner = owners[parent] if parent is not None else self.main
            is_current = nodes[-1] in current
            paths.append(Path(uuid, nodes, len(paths), owner, len(before), is_current))
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
        """The path from its root to a node."""
        found: list[str] = []
        while node is not None:
            found.append(node)
            node = self.parents.get(node)
        return found[::-1]

    def _first_root(self, order: list[str], current: set[str], archive: Archive) -> str:
        """Where the main session begins: where it began before, or where the person is."""
        reached = archive.reached(self.main)
        if reached is not None and reached.node in self.parents:
            return self._up_from(reached.node)[0]
        return next((node for node in order if node in current), order[0])

    def _follow(self, uuid: UUID, start: str, current: set[str], archive: Archive) -> list[str]:
        """From a node to the end of a session: through what was imported before, then with
        the person, then along the newest."""
        nodes = [start]
        reached = archive.reached(uuid)
        if reached is not None and reached.node in self.parents:
            way = self._up_from(reached.node)
            if start in way:
                nodes = way[way.index(start) :]
                if reached.is_continued:
                    return nodes
        while children := self._children.get(nodes[-1], []):
            nodes.append(next((child for child in children if child in current), children[-1]))
        return nodes


@dataclass(frozen=True, slots=True)
class Made:
    """A turn that a node gives, with the lines that belong to it: attachments, and a
    summary that stands for the turns before it."""

    turn: Object
    lines: list[Object] = field(default_factory=list)


def tell_paths(
    paths: Iterable[Path],
    archive: Archive,
    *,
    place: str,
    header: Callable[[Path], Object],
    make: Callable[[Path, str], Iterator[Made]],
) -> Iterator[Item]:
    """The lines of the sessions. ``make`` gives the turns of a node, always the same.

    A message that says something else than it did in an earlier import, or that stands
    where another one stood, begins a version of the session: a fork of its own."""
    yield from _Telling(archive, place, header, make).tell(paths)


@dataclass(slots=True)
class _Telling:
    archive: Archive
    place: str
    header: Callable[[Path], Object]
    make: Callable[[Path, str], Iterator[Made]]
    ends: dict[str, int] = field(default_factory=dict)
    versions: dict[UUID, Path] = field(default_factory=dict)
    count: int = 0

    def tell(self, paths: Iterable[Path]) -> Iterator[Item]:
        found = list(paths)
        self.count = len(found)
        for path in found:
            told = self._below_version(path)
            while (changed := (yield from self._tell(told))) is not None:
                self.versions[told.uuid] = told = self._version(told, *changed)

    def _below_version(self, path: Path) -> Path:
        """The path with the parent that has the turn which it leaves."""
        while path.parent in self.versions and self.versions[path.parent].shared < path.shared:
            path = replace(path, parent=self.versions[path.parent].uuid)
        return path

    def _version(self, path: Path, shared: int, digest: str) -> Path:
        uuid = stable_uuid("version", str(path.uuid), path.nodes[shared], digest)
        version = Path(uuid, path.nodes, self.count, path.uuid, shared, path.is_current)
        self.count += 1
        return version

    def _tell(self, path: Path) -> Generator[Item, None, tuple[int, str] | None]:
        """Up to the first node that is not as it is in the archive: its place, and a
        digest of what it says."""
        yield ImportLine(self.place, _header(path, self.header(path), self.ends))
        number, told = 0, self.archive.told(path.uuid)
        for place, node in enumerate(path.nodes):
            made = list(self.make(path, node))
            if digest := self._changed(made, told):
                return place, digest
            for one in made:
                number += 1
                yield from self._lines(one, node, number)
            self.ends[node] = number
        return None

    def _changed(self, made: list[Made], told: Iterator[Words]) -> str:
        """A digest of what a node says if the archive has something else in its place;
        else empty."""
        said = [words for one in made if (words := self.archive.words(one.turn)) is not None]
        pairs = [(words, next(told, words)) for words in said]
        if all(words == before for words, before in pairs):
            return ""
        return sha256(repr(said).encode("utf-8", "surrogatepass")).hexdigest()

    def _lines(self, made: Made, node: str, number: int) -> Iterator[ImportLine]:
        place = f"{self.place}, message {node}"
        turn = {"type": "turn", "number": number, "source_id": node}
        yield ImportLine(place, turn | made.turn)
        for line in made.lines:
            is_summary = line["type"] == "compaction"  # it stands for all turns before it
            turns = {"from_turn": 1, "to_turn": number - 1} if is_summary else {"turn": number}
            yield ImportLine(place, line | turns)


def _header(path: Path, told: Object, ends: Mapping[str, int]) -> Object:
    line: Object = {"type": "session", "uuid": str(path.uuid)} | told
    if path.ordinal:
        line["parent"] = str(path.parent)
        if path.shared:
            line["title"] = f"{line.get('title') or ''} (branch {path.ordinal + 1})".strip()
            line["fork_turn"] = ends[path.nodes[path.shared - 1]]
        if not path.is_current:
            line["archived_at"] = line.get("archived_at") or line.get("last_active_at")
    return line


# What the readers of JSON exports have in common: a list of conversations in a file.


def read_conversations(
    file: SourceFile, read: Callable[[Object, str], Iterator[Item]]
) -> Iterator[Item]:
    """Each conversation's lines. One that is not what it should be is skipped, with what
    went wrong; damage of the file ends it."""
    number = 0
    try:
        with file.open() as stream:
            for number, item in enumerate(read_items(stream), 1):
                yield from _read(item, f"{file.name}: conversation {number}", read)
    except (DamagedJson, *DAMAGE) as error:
        yield Skipped(f"{file.name}: after conversation {number}", str(error))


def _read(item: Any, place: str, read: Callable[[Object, str], Iterator[Item]]) -> Iterator[Item]:
    if not isinstance(item, dict):
        yield Skipped(place, "it is no object")
        return
    try:
        yield from read(item, place)
    except TooBranched as error:
        yield Skipped(place, str(error))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        yield Skipped(place, f"it is not built as expected ({type(error).__name__}: {error})")


def objects(value: Any) -> list[Object]:
    """The objects of a list, whatever else may be in it or in its place."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def an_object(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def a_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def an_id(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def ids(value: Any) -> list[str]:
    """The ids of a list, whatever else may be in it or in its place."""
    return [item for item in value if an_id(item)] if isinstance(value, list) else []
