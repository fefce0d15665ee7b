"""The session state's items as the panel shows them."""

from collections.abc import Iterable
from dataclasses import dataclass

from conversations.archive.session_state import StateView
from conversations.domain.session_state.items import BY_MODEL, StateItem
from conversations.domain.session_state.marks import PIN, REWORD, STRIKE, UNPIN, UNSTRIKE
from conversations.domain.session_state.values import (
    COMMIT,
    DECISION,
    ERROR,
    FILE,
    FOCUS,
    FOCUS_CHARS,
    ITEM_CHARS,
    NOTED,
    SAID,
)
from conversations.domain.text import one_line

GROUPS = {FOCUS: "Focus", DECISION: "Decisions", FILE: "Files", ERROR: "Resolved errors"}
BUTTONS = {PIN: "Pin", UNPIN: "Unpin", STRIKE: "Strike", UNSTRIKE: "Restore"}
SOURCES = {SAID: "said", COMMIT: "from a commit", NOTED: "noted by the model"}
DONE = {PIN: "Pinned", UNPIN: "Unpinned", STRIKE: "Struck", UNSTRIKE: "Restored", REWORD: "Saved"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownItem:
    """``short`` names the item in a button; ``draft`` is a wording that was refused."""

    id: str
    kind: str
    text: str
    turn: int
    is_pinned: bool
    original: str
    short: str
    facts: list[str]
    buttons: list[dict[str, str]]
    can_reword: bool
    longest: int
    draft: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGroup:
    kind: str
    name: str
    items: list[ShownItem]


def group_items(view: StateView, *, drafts: dict[str, str]) -> list[ShownGroup]:
    """The items in force by kind, pinned ones first, then the newest first."""
    groups = []
    for kind, name in GROUPS.items():
        found = [item for item in view.items if item.kind == kind]
        found.sort(key=lambda item: (not item.is_pinned, -item.turn))
        if found:
            groups.append(ShownGroup(kind=kind, name=name, items=show_items(found, drafts=drafts)))
    return groups


def show_items(items: Iterable[StateItem], *, drafts: dict[str, str]) -> list[ShownItem]:
    return [
        ShownItem(
            id=item.id,
            kind=item.kind,
            text=item.text,
            turn=item.turn,
            is_pinned=item.is_pinned,
            original=item.original,
            short=one_line(item.text, limit=40),
            facts=_facts(item),
            buttons=[
                {"name": name, "label": BUTTONS[name]} for name in item.actions if name in BUTTONS
            ],
            can_reword=REWORD in item.actions,
            longest=FOCUS_CHARS if item.kind == FOCUS else ITEM_CHARS,
            draft=drafts.get(item.id),
        )
        for item in items
    ]


def _facts(item: StateItem) -> list[str]:
    struck = {"": "", BY_MODEL: "struck by the model"}.get(item.struck_by, "struck by a person")
    source = "" if item.kind == FOCUS else SOURCES.get(item.source, "")
    reworded = "reworded" if item.original else ""
    return [fact for fact in (item.action, source, reworded, struck) if fact]
