"""Importing an interchange file, streamed and in batches. The same file can be imported again.

The file is parsed line by line (``fields``), and each turn and event gets its number. Batches of
rows are compared with the archive and appended (``import_rows``). At the end of a session its
markers are stored (``import_markers``), and the gaps of its journal are found (``import_gaps``).
Rows in the archive are never changed: a line that differs from its row is reported and skipped.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, pairwise
from typing import IO, Any, Self
from uuid import UUID, uuid5

from django.db import models, transaction
from django.db.models import F

from conversations.archive.append import walk_rows
from conversations.archive.session_state import catch_up_state
from conversations.domain.errors import Conflict
from conversations.domain.events import INFO
from conversations.domain.messages import join_messages, say
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.session_state import STATE_EDIT
from conversations.domain.session_state.facts import renumber_strike
from conversations.domain.text import dump_json, load_json, one_line
from conversations.models import (
    Compaction,
    JournalGap,
    Rewind,
    Session,
    SessionSkill,
    Turn,
)

from .fields import (
    NAMESPACE,
    SessionLine,
    UnusableLine,
    add_metadata,
    parse_object,
    read_attachment,
    read_event,
    read_lines,
    read_marker,
    read_session,
    read_turn,
)
from .import_gaps import compute_coverage, is_exact_copy, restore_coverage
from .import_markers import (
    copied_uuid,
    rename_references,
    renumber_edit,
    store_attachment,
    store_compaction,
    store_rewind,
    store_skill,
)
from .import_rows import (
    EVENTS,
    TURNS,
    AnyChain,
    ImportedChain,
    ImportedRowSource,
    difference_in,
    store_rows,
)
from .import_targets import ImportTarget
from .lines import WORDS, ImportHistory, Object, Words

BATCH_ROWS = 500
BATCH_CHARS = 4_000_000

# The key in a turn's metadata for the node of another program's tree that the turn was made from.
SOURCE_ID = "source_id"

# Lines that are stored at the end of a session because they refer to its rows, in this order.
MARKERS: dict[str, type[models.Model]] = {
    "rewind": Rewind,
    "skill": SessionSkill,
    "compaction": Compaction,
    "gap": JournalGap,
}

STORERS = {"rewind": store_rewind, "skill": store_skill, "compaction": store_compaction}

_BRANCH_NAME = re.compile(r"\(branch (\d{1,9})\)$", re.ASCII)
_SESSION_TYPE = re.compile(rb'"type"\s*:\s*"session"')

type Report = Callable[[ImportedRowSource, str], None]
"""A function that takes the source of a line and a message about it."""


@dataclass(slots=True)
class ImportCounts:
    """The counts of an import's results.

    ``skipped`` counts lines of which nothing was stored, ``conflicts`` lines in whose place the
    archive has different content, and ``repaired`` lines stored with changes. ``warnings`` are
    about a session as a whole. ``damaged`` counts sessions whose rows do not match the counts and
    digests in their session line."""

    lines: int = 0
    sessions_added: int = 0
    sessions_extended: int = 0
    sessions_unchanged: int = 0
    turns_added: int = 0
    turns_unchanged: int = 0
    events_added: int = 0
    events_unchanged: int = 0
    rewinds_added: int = 0
    skills_added: int = 0
    compactions_added: int = 0
    attachments_added: int = 0
    skipped: int = 0
    conflicts: int = 0
    repaired: int = 0
    warnings: int = 0
    damaged: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.skipped or self.conflicts or self.damaged)


class _SessionInProgress:
    def __init__(
        self,
        session: Session,
        line: ImportedRowSource,
        header: SessionLine,
        *,
        is_new: bool,
        is_copy: bool,
    ) -> None:
        self.session = session
        self.is_copy = is_copy
        self.line = line
        self.header = header
        self.is_new = is_new
        self.is_busy = not is_new and session.runs.filter(state__in=ACTIVE_STATES).exists()
        self.has_grown = False
        file_metadata = header.columns["metadata"]
        self.turns = ImportedChain(TURNS, session, file_metadata=file_metadata)
        self.events = ImportedChain(EVENTS, session, file_metadata=file_metadata)
        self.pending_chars = 0
        self.markers: dict[str, list[tuple[ImportedRowSource, Object]]] = {k: [] for k in MARKERS}


def import_file(
    stream: IO[bytes],
    *,
    target: ImportTarget,
    counts: ImportCounts,
    report: Report,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Import every session of one file, in constant memory.

    Update ``counts``, and call ``progress`` after every line."""
    end: tuple[int, bytes | None] = (0, None)
    with SessionImporter(target=target, counts=counts, report=report) as importer:
        for (number, raw), (_, following) in pairwise(chain(read_lines(stream), [end])):
            importer.read(ImportedRowSource(number), raw, following or b"")
            progress()


class SessionImporter(ImportHistory):
    """A context manager that imports the lines of one file in order.

    Call ``read`` with the lines of an interchange file, or ``import_value``, ``skip`` and ``warn``
    with the items of another format's reader. The last session is finished when the ``with`` block
    ends, also if the import was stopped or failed."""

    def __init__(self, *, target: ImportTarget, counts: ImportCounts, report: Report) -> None:
        self._target = target
        self._counts = counts
        self._report = report
        self._open: _SessionInProgress | None = None
        self._is_adrift = False
        self._parents: list[tuple[int, UUID]] = []
        self._unnamed = Counter[bytes]()

    def read(self, line: ImportedRowSource, raw: bytes | None, following: bytes) -> None:
        """Import a line. ``raw`` is None if it is too long; ``following`` is the next line."""
        try:
            value = parse_object(raw)
        except UnusableLine as error:
            self.skip(line, error.message)
            # The line may have begun another session, whose rows must not be added to this one.
            if _SESSION_TYPE.search(raw or b"", 0, 500):
                self._finish()
            else:
                self._is_adrift = True
            return
        self.import_value(line, value, raw=raw or b"", following=following)

    def import_value(
        self, line: ImportedRowSource, value: Object, *, raw: bytes = b"", following: bytes = b""
    ) -> None:
        """Import the object of a line.

        A session without uuid and key is recognised on another import by ``raw`` and
        ``following``."""
        self._counts.lines += 1
        try:
            if value.get("type") == "session":
                self._import_session(line, value, raw, following)
            else:
                self._import_row(line, value)
        except UnusableLine as error:
            self._report_skip(line, error.message)
        except RecursionError:
            self._report_skip(line, say("nested too deeply"))

    def skip(self, line: ImportedRowSource, reason: str) -> None:
        """Report and count an entry that could not be read."""
        self._counts.lines += 1
        self._report_skip(line, reason)

    def warn(self, line: ImportedRowSource, text: str) -> None:
        """Report and count a warning. Nothing is lost."""
        self._counts.warnings += 1
        self._report(line, text)

    def resolve(self, uuid: UUID) -> UUID:
        return self._target.resolve(uuid)

    def last_imported_node(self, uuid: UUID) -> tuple[str, bool] | None:
        self._finish()  # the unfinished session may be this one
        session = Session.objects.filter(uuid=self.resolve(uuid)).first()
        if session is None:
            return None
        turns = Turn.objects.filter(session=session.pk, metadata__contains=f'"{SOURCE_ID}":')
        last = turns.order_by("-number").values_list("number", "metadata").first()
        if last is None:
            return None
        number, metadata = last
        return str(load_json(metadata).get(SOURCE_ID)), number < session.turn_count

    def imported_branches(self, uuid: UUID) -> tuple[int, set[UUID]]:
        self._finish()
        last_number, uuids = 1, set[UUID]()
        level = list(Session.objects.filter(uuid=self.resolve(uuid)).values_list("pk", flat=True))
        while level:
            forks = Session.objects.filter(parent__in=level).order_by("pk")
            level = []
            for pk, branch, title in forks.values_list("pk", "uuid", "title"):
                if branch not in uuids:  # parents may form a cycle
                    uuids.add(branch)
                    level.append(pk)
                    if match := _BRANCH_NAME.search(title):
                        last_number = max(last_number, int(match[1]))
        return last_number, uuids

    def imported_words(self, uuid: UUID) -> Iterator[Words]:
        turns = Turn.objects.filter(session__uuid=self.resolve(uuid))
        for row in walk_rows(turns, "number", *WORDS, key="number"):
            yield tuple(row[name] for name in WORDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Finish the last session, and set the parents of forks."""
        self._is_adrift |= error is not None
        self._finish()
        for session_pk, parent in self._parents:
            self._connect(session_pk, parent)

    def _connect(self, session_pk: int, parent: UUID) -> bool:
        """Set a fork's parent. Return False if the parent does not exist yet."""
        parent_session = (
            Session.objects.filter(uuid=self.resolve(parent)).exclude(pk=session_pk).first()
        )
        if parent_session is not None and self._target.may_add_to(parent_session):
            Session.objects.filter(pk=session_pk, parent=None).update(parent=parent_session)
        return parent_session is not None

    def _count(self, name: str, count: int = 1) -> None:
        setattr(self._counts, name, getattr(self._counts, name) + count)

    def _report_skip(self, line: ImportedRowSource, reason: str) -> None:
        self._counts.skipped += 1
        self._report(line, say("skipped: %(reason)s", reason=reason))

    def _report_repairs(self, line: ImportedRowSource, odd: tuple[str, ...]) -> None:
        if odd:
            self._counts.repaired += 1
            names = join_messages(odd, ", ")
            self._report(line, say("imported with changes: %(names)s", names=names))

    def _import_session(
        self, line: ImportedRowSource, value: Object, raw: bytes, following: bytes
    ) -> None:
        self._finish()
        header = read_session(value)
        self._report_repairs(line, header.odd)
        # A session without uuid and key is identified by its line and the line after it, so that
        # importing the same file again finds the same sessions.
        digest = sha256(raw.strip() + b"\n" + following.strip()).digest()
        self._unnamed[digest] += 1
        session, is_new = self._target.find_session(
            header,
            unnamed=uuid5(NAMESPACE, f"content {digest.hex()} {self._unnamed[digest]}"),
            following=following,
            warn=lambda text: self.warn(line, text),
        )
        is_other = header.uuid not in (None, session.uuid)
        if is_other:  # digests depend on the uuid, so those of the file do not apply
            header = replace(header, turns=None, events=None, turn_digest="", event_digest="")
        if (
            header.parent is not None
            and session.parent_id is None
            and not self._connect(session.pk, header.parent)
        ):
            self._parents.append((session.pk, header.parent))
        # Readers of other formats derive uuids of attachments and compactions from the session's
        # uuid in the archive already.
        is_copy = is_other and bool(raw)
        self._open = _SessionInProgress(session, line, header, is_new=is_new, is_copy=is_copy)

    def _import_row(self, line: ImportedRowSource, value: Object) -> None:
        kind, opened = value.get("type"), self._open
        if kind not in ("turn", "event", "attachment", *MARKERS):
            raise UnusableLine("unknown type %(type)s", type=_shown(kind))
        if self._is_adrift and opened is not None:
            chains: dict[Any, AnyChain] = {"turn": opened.turns, "event": opened.events}
            chain = chains.get(kind)
            if chain is not None and chain.has_begun and value.get(chain.kind.key) in (0, 1):
                self._finish()  # a second first row must belong to a session whose line was lost
                opened = None
        if opened is None:
            raise UnusableLine("it belongs to no session")
        if opened.is_busy:
            raise UnusableLine("an answer is running in its session; import it again later")
        if kind == "turn":
            self._import_turn(opened, line, value)
        elif kind == "event":
            self._import_event(opened, line, value)
        elif kind == "attachment":
            self._import_attachment(opened, value)
        else:
            marker = read_marker(MARKERS[kind], value)
            if opened.is_copy and marker.get("uuid"):
                marker["uuid"] = copied_uuid(marker["uuid"], opened.session)
            opened.markers[kind].append((line, marker))

    def _import_attachment(self, opened: _SessionInProgress, value: Object) -> None:
        """Store an attachment at once, because its content is large. Its turn comes before it."""
        columns = read_attachment(value)
        if opened.is_copy:
            columns["uuid"] = copied_uuid(columns["uuid"], opened.session)
        turn = opened.turns.find(columns["turn_number"])
        if turn is None or not 1 <= turn <= opened.turns.end:
            raise UnusableLine("its turn does not exist")
        # Compare pending turns first if any of them may differ from a turn in the archive.
        if any(number <= opened.session.turn_count for _, number, _ in opened.turns.pending):
            self._store(opened)
        if (first := opened.turns.first_difference) is not None and turn >= first:
            raise UnusableLine(difference_in(opened.turns))
        self._counts.attachments_added += store_attachment(
            opened.session, columns, turn=turn, is_trusted=not self._target.is_confined
        )

    def _import_turn(
        self, opened: _SessionInProgress, line: ImportedRowSource, value: Object
    ) -> None:
        file_number, turn, odd = read_turn(value)
        self._report_repairs(line, odd)
        number = self._assign_number(opened.turns, file_number, line)
        metadata = turn.metadata
        if "number" in value and file_number != number:
            metadata = add_metadata(metadata, {"original_number": file_number})
        created_at = turn.created_at or opened.session.created_at
        content = renumber_strike(turn, opened.turns.find)
        turn = replace(turn, content=content, metadata=metadata, created_at=created_at)
        if opened.is_copy and turn.blocks:
            turn = replace(turn, blocks=rename_references(turn.blocks, opened.session))
        opened.turns.pending.append((line, number, turn))
        texts = (turn.content, turn.blocks, turn.tool_calls, turn.metadata)
        self._count_pending(opened, sum(len(text or "") for text in texts))

    def _import_event(
        self, opened: _SessionInProgress, line: ImportedRowSource, value: Object
    ) -> None:
        file_number, event, odd = read_event(value)
        if event.turn_number is not None:  # use the turn's number in the archive
            event.turn_number = opened.turns.find(event.turn_number) or None
            odd += ("turn",) if event.turn_number is None else ()
        if event.event_type == INFO and STATE_EDIT in event.payload:
            event.payload = renumber_edit(event.payload, opened.turns)
        if opened.is_copy:
            event.payload = rename_references(event.payload, opened.session)
        self._report_repairs(line, odd)
        seq = self._assign_number(opened.events, file_number, line)
        event.created_at = event.created_at or opened.session.created_at
        opened.events.pending.append((line, seq, event))
        self._count_pending(opened, 3 * len(event.payload))

    def _assign_number(self, chain: AnyChain, original: Any, line: ImportedRowSource) -> int:
        was_renumbered = chain.is_renumbered
        number = chain.assign(original)
        if chain.is_renumbered and not was_renumbered:
            message = say(chain.kind.renumbering, given=_shown(original), number=number)
            self.warn(line, message)
        return number

    def _count_pending(self, opened: _SessionInProgress, chars: int) -> None:
        opened.pending_chars += chars
        rows = len(opened.turns.pending) + len(opened.events.pending)
        if rows >= BATCH_ROWS or opened.pending_chars >= BATCH_CHARS:
            self._store(opened)

    def _store(self, opened: _SessionInProgress) -> None:
        chains = (opened.turns, opened.events)
        lines = sorted(line for chain in chains for line, _, _ in chain.pending)
        if not lines:
            return
        is_as_exported = opened.is_new and opened.header.columns["last_active_at"] is not None
        is_renumbered = any(chain.is_renumbered for chain in chains)
        try:
            with transaction.atomic() if is_renumbered else nullcontext():
                stored, problems = store_rows(
                    opened.session,
                    turns=opened.turns,
                    events=opened.events,
                    moves_activity=not is_as_exported,
                )
                for chain in chains:
                    chain.save_runs(opened.session)
        except Conflict as error:
            for line in lines:
                self._report_skip(line, error.message)
            return
        finally:  # rows whose storing failed are not tried again when the import ends
            opened.pending_chars = 0
            for chain in chains:
                chain.pending.clear()
        for problem in sorted(problems):
            if problem.is_conflict:
                self._counts.conflicts += 1
                self._report(problem.line, say("conflict: %(reason)s", reason=problem.reason))
            else:
                self._report_skip(problem.line, problem.reason)
        for name, count in stored.items():
            self._count(name, count)
        opened.has_grown |= bool(stored["turns_added"] or stored["events_added"])

    def _finish(self) -> None:
        opened = self._open
        is_whole = not self._is_adrift
        self._open = None
        self._is_adrift = False
        if opened is None:
            return
        self._store(opened)
        session = opened.session
        # If the floor were beyond the last imported turn, the window would be empty.
        Session.objects.filter(pk=session.pk, floor_turn__gt=F("next_turn")).update(floor_turn=1)
        session.refresh_from_db()
        if not opened.is_busy:
            self._store_markers(opened)
            is_exact = is_exact_copy(session, opened.header)
            if is_whole and is_exact and not session.runs.exists():
                # An earlier import that ended early may have lowered the floor.
                floor = max(1, opened.header.columns["floor_turn"])
                Session.objects.filter(pk=session.pk).update(floor_turn=floor)
            if is_exact is False:
                self._counts.damaged += 1
                missing = say("its rows differ from the export: some are missing or changed")
                self._report(opened.line, missing)
            # If lines could not be read, some of the announced gaps may be missing.
            if is_whole and is_exact and opened.header.journal_turn is not None:
                gaps = opened.markers["gap"]
                for bad in restore_coverage(session, opened.header, [gap for _, gap in gaps]):
                    self._report_skip(gaps[bad][0], say("this gap does not match the session"))
            elif opened.has_grown or not session.runs.exists():
                compute_coverage(
                    session,
                    has_grown=opened.has_grown,
                    is_whole=is_whole and is_exact is not False,
                )
            catch_up_state(session.pk)
        if opened.is_new:
            self._count("sessions_added")
        elif opened.has_grown:
            self._count("sessions_extended")
        else:
            self._count("sessions_unchanged")

    def _store_markers(self, opened: _SessionInProgress) -> None:
        for kind, store in STORERS.items():
            for line, columns in opened.markers[kind]:
                try:
                    with transaction.atomic():
                        is_new = store(
                            opened.session, columns, turns=opened.turns, events=opened.events
                        )
                        if is_new and (reason := difference_in(opened.turns)):
                            raise UnusableLine(reason)
                except UnusableLine as error:
                    self._report_skip(line, error.message)
                else:
                    self._count(f"{kind}s_added", is_new)
                    opened.has_grown |= is_new and kind == "rewind"


def _shown(value: Any) -> str:
    return one_line(dump_json(value), limit=60)
