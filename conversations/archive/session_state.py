"""The session state: read for the window and the panel, edited by a person."""

from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import transaction

from conversations.domain.errors import Rejected, TooLarge, Unavailable
from conversations.domain.events import Info
from conversations.domain.session_state import (
    ACTIONS,
    BY_MODEL,
    DECISION,
    ERROR,
    FILE,
    FOCUS,
    FOCUS_CHARS,
    ITEM_CHARS,
    MAX_PINS,
    PIN,
    REWORD,
    STATE_EDIT,
    STRIKE,
    UNPIN,
    UNSTRIKE,
    SessionState,
    StateEdit,
    StateItem,
    dump_edit,
    list_items,
    write_yaml,
)
from conversations.domain.text import one_line, storable
from conversations.models import Session

from .append import Appended, NewEvent, append, lock_session
from .state_history import (
    StateMoment,
    StoredState,
    catch_up_state,
    read_state_at,
    read_stored_state,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateText:
    """The state as YAML, at most 1,000 tokens; empty when there is nothing to say.
    It holds after turn ``turn`` and event ``seq``."""

    yaml: str
    turn: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """The items of the register, by kind (file, decision, error, focus) and turn, and
    those that were struck. At most some hundred, whatever the session's length."""

    items: tuple[StateItem, ...]
    struck: tuple[StateItem, ...]
    turn: int
    seq: int


def read_state_text(session_pk: int) -> StateText:
    """The state as it is now."""
    stored = read_stored_state(session_pk)
    return _text(stored, _current(stored), stored.moment)


def rebuild_state_text(session_pk: int, *, turn: int, seq: int, rewinds: int) -> StateText:
    """The state as it was after that turn and event, when the session had that many
    rewinds; reads a bounded number of rows."""
    moment = StateMoment(turn=turn, seq=seq, rewinds=rewinds)
    return _text(read_stored_state(session_pk), read_state_at(session_pk, moment), moment)


def read_state_view(session_pk: int) -> StateView:
    """The state as a person sees and edits it."""
    stored = read_stored_state(session_pk)
    items, struck = list_items(_current(stored))
    return StateView(items=items, struck=struck, turn=stored.moment.turn, seq=stored.moment.seq)


def _current(stored: StoredState) -> SessionState:
    return stored.load() or read_state_at(stored.session_pk, stored.moment)


def _text(stored: StoredState, state: SessionState, moment: StateMoment) -> StateText:
    yaml = write_yaml(
        state, session=str(stored.uuid), workspace=stored.root, turn_count=moment.turn
    )
    return StateText(yaml=yaml, turn=moment.turn, seq=moment.seq)


NAMES = {FILE: "File", DECISION: "Decision", ERROR: "Resolved error", FOCUS: "Focus"}
DONE = {
    PIN: "pinned",
    UNPIN: "unpinned",
    REWORD: "reworded",
    STRIKE: "removed",
    UNSTRIKE: "restored",
}


def edit_state(
    session: Session, *, actor_pk: int | None, action: str, item: str, text: str = ""
) -> Appended:
    """Pin, unpin, edit (reword), strike or unstrike the item with this id, as an event
    of the journal; what is so already appends nothing. Raises Rejected for an action
    that is none or not possible for the item, TooLarge for too long a wording."""
    if action not in ACTIONS:
        raise Rejected(f"There is no action {action[:40]!r}.", code="state_action_unknown")
    wording = ""
    if action == REWORD:
        wording = one_line(storable(text), limit=ITEM_CHARS + 1)
        if not wording:
            raise Rejected("A wording needs at least one character.", code="state_text_empty")
        if len(wording) > ITEM_CHARS:
            raise TooLarge(
                f"A wording has at most {ITEM_CHARS} characters.", code="state_text_too_long"
            )
    catch_up_state(session.pk)
    with transaction.atomic():
        lock_session(session.pk)
        view = read_state_view(session.pk)
        found = next((one for one in (*view.items, *view.struck) if one.id == item), None)
        if found is None:
            raise Rejected(
                "This item is not in the session state any more.", code="state_item_unknown"
            )
        is_so = {
            PIN: found.is_pinned,
            UNPIN: not found.is_pinned,
            STRIKE: bool(found.struck_by),
            UNSTRIKE: not found.struck_by,
            REWORD: found.text == wording,
        }
        if is_so[action]:
            return Appended(turns=[], rows=[])
        _refuse_impossible(view, found, action, wording)
        notice = NewEvent(payload=_notice(found, action, wording, actor_pk))
        appended = append(session.pk, session_uuid=session.uuid, events=[notice])
        if not appended.rows:
            raise Unavailable("The change could not be kept. Try again.", code="not_kept")
        return appended


def _refuse_impossible(view: StateView, item: StateItem, action: str, wording: str) -> None:
    if action not in item.actions:
        raise Rejected(
            "A file has no wording." if item.kind == FILE else "Restore the item first.",
            code="state_action_impossible",
        )
    if item.kind == FOCUS and len(wording) > FOCUS_CHARS:
        raise TooLarge(f"A focus has at most {FOCUS_CHARS} characters.", code="state_text_too_long")
    pins = sum(item.is_pinned for item in view.items)
    if pins >= MAX_PINS and (action == PIN or item.struck_by == BY_MODEL):
        raise Rejected(
            f"{MAX_PINS} items are pinned already. Unpin one first.", code="state_pins_full"
        )


def _notice(item: StateItem, action: str, wording: str, actor_pk: int | None) -> Info:
    """What the model took back and a person restores is pinned: it stays."""
    told = f"{NAMES[item.kind]} {DONE[action]}: {wording or item.text}"
    kept = PIN if action == UNSTRIKE and item.struck_by == BY_MODEL else action
    edit = StateEdit(action=kept, item=item.as_mark(), text=wording)
    people = User.objects.filter(pk__in=() if actor_pk is None else (actor_pk,))
    by = people.values_list("username", flat=True).first() or ""
    return Info(text=told, code=STATE_EDIT, data=dump_edit(edit, by=by))
