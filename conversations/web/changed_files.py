"""One changed file as the review shows it: what became of it, as a diff where it can be."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import UUID

from conversations.changes.disk import ROOT
from conversations.changes.planning import LOST
from conversations.changes.review import FileReview, content_of, permissions_text
from conversations.domain.file_changes import FileState, digest_of, stored_path
from conversations.domain.self_running import runs_itself
from conversations.domain.text import storable
from conversations.folder.paths import shown
from conversations.rendering.diffs import render_diff
from conversations.rendering.figures import number_text
from conversations.rendering.hidden import show_hidden
from conversations.rendering.tool_rows import changes_text
from conversations.rendering.tool_words import tool_word
from conversations.tools.files.diffs import unified_diff

MOST_LINES, MOST_CHARS = 400, 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFileDiff:
    """A diff, or a sentence in its place."""

    html: str = ""
    left_out: str = ""
    changes: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCall:
    call: UUID | None
    word: str
    turn: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFile:
    """``name_html`` has nothing hidden in it, ``value`` names the file in a form, ``key``
    in the page: what is ticked and unfolded there stays with its file when the list
    changes. ``since`` is what somebody else made of it."""

    name_html: str
    value: str
    key: str
    facts: list[str]
    state: str
    reason: str
    diff: ChangedFileDiff
    since: ChangedFileDiff | None
    is_conflict: bool
    runs_itself: bool
    calls: list[ShownCall]


def show_file(root: Path, file: FileReview) -> ShownFile:
    plan = file.plan
    is_moved = bool(file.moved_from or file.moved_to)
    diff = ChangedFileDiff() if is_moved else _diff(root, file.path, file.before, file.after)
    return ShownFile(
        name_html=show_hidden(storable(file.path)) if file.path != ROOT else "the folder itself",
        value=stored_path(file.path),
        key=sha256(stored_path(file.path).encode()).hexdigest()[:16],
        facts=[*_facts(file), *([diff.changes] if diff.changes else [])],
        state=_state(file),
        reason=plan.reason if plan else "",
        diff=diff,
        since=_diff(root, file.path, file.after, plan.current)
        if plan and file.is_conflict
        else None,
        is_conflict=file.is_conflict,
        runs_itself=file.after is not None and runs_itself(file.path),
        calls=list(_calls(file)),
    )


def _state(file: FileReview) -> str:
    if file.is_back:
        return "as before"
    if file.is_conflict:
        return "changed since"
    return "cannot be put back" if file.plan and file.plan.state == LOST else ""


def _facts(file: FileReview) -> Iterator[str]:
    before, after = file.before, file.after
    there = after or before
    kind = "folder" if there and there.is_folder else ""
    if file.moved_to:
        yield f"moved to {shown(file.moved_to)}"
    elif file.moved_from:
        yield f"moved from {shown(file.moved_from)}"
    elif before is None:
        yield f"new {kind}".strip()
    elif after is None:
        yield f"{kind} removed".strip()
    elif before.permissions != after.permissions and before.digest == after.digest:
        yield f"{permissions_text(before)} → {permissions_text(after)}"


def _diff(
    root: Path, path: str, before: FileState | None, after: FileState | None
) -> ChangedFileDiff:
    if digest_of(before) == digest_of(after):
        return ChangedFileDiff()
    texts = []
    for state in (before, after):
        text, note = _text_of(root, path, state)
        if note:
            return ChangedFileDiff(note=note)
        texts.append(text)
    diff = unified_diff(path, *texts)
    rendered = render_diff(diff, most_lines=MOST_LINES, most_chars=MOST_CHARS)
    return ChangedFileDiff(
        html=rendered.html,
        left_out=number_text(rendered.left_out) if rendered.left_out else "",
        changes=changes_text(rendered.added, rendered.removed),
    )


def _text_of(root: Path, path: str, state: FileState | None) -> tuple[str | None, str]:
    """The text, or a sentence why there is none; neither where there is no file."""
    if state is None or state.is_folder:
        return None, ""
    if not (state.is_file or state.is_link):
        return None, "This is no file that can be shown."
    data = content_of(root, path, state)
    if data is None:
        return None, "This is too large to be shown."
    if b"\0" in data:
        return None, "This is not text."
    text = data.decode("utf-8", "replace")
    return (f"link to {text}" if state.is_link else text), ""


def _calls(file: FileReview) -> Iterator[ShownCall]:
    """Each call once."""
    seen = set()
    for change in file.changes:
        if change.call not in seen:
            seen.add(change.call)
            yield ShownCall(call=change.call, word=tool_word(change.call_name)[0], turn=change.turn)
