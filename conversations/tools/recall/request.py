"""What was asked of recall: for whom, about which session, from which place on."""

import re
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from conversations.archive.recall import (
    SessionFacts,
    find_exchange_start,
    read_own_facts,
    read_quotable_facts,
)
from conversations.tools.arguments import BadArgument

from .asked import MAX_LIMIT, Recall

MAX_QUERY = 1_000
"""Characters of a query that are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call. ``session_pk`` and ``session`` are where it was made."""

    session_pk: int
    session: UUID
    user_pk: int | None
    call_turn: int
    arguments: Recall

    def query(self) -> str:
        return self.arguments.query[:MAX_QUERY]

    def limit(self) -> int:
        return min(self.arguments.limit, MAX_LIMIT)

    def target(self) -> "Target":
        """The session to look into. Raises BadArgument unless it is this one or
        another that can be quoted in it."""
        text = self.arguments.session
        uuid = _read_uuid(text) if text else self.session
        if uuid == self.session:
            facts = read_own_facts(self.session_pk)
            before = find_exchange_start(self.session_pk, self.call_turn)
            return Target(facts=_existing(facts), is_own=True, before=before)
        facts = _existing(read_quotable_facts(self.session_pk, self.user_pk, uuid))
        return Target(facts=facts, is_own=False, before=facts.turn_count + 1)

    def sealed_cursor(self, *about: object) -> str:
        """The inner part of a cursor that goes with these arguments only; empty if
        none was sent. Raises BadArgument for one of another call."""
        text = self.arguments.cursor
        if not text:
            return ""
        seal, _, inner = text.partition(".")
        if seal != _seal(about) or not inner:
            raise BadArgument(
                "This cursor goes with another action, query or session. Send the same"
                " arguments as in the call that gave it, or leave 'cursor' out."
            )
        return inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The session that is looked into. ``before``: only turns below it are searched,
    since the exchange that is running answers itself."""

    facts: SessionFacts
    is_own: bool
    before: int

    @property
    def pk(self) -> int:
        return self.facts.pk

    @property
    def uuid(self) -> UUID | None:
        """None for the session that the call was made in."""
        return None if self.is_own else self.facts.uuid

    @property
    def title(self) -> str:
        return self.facts.title


def seal_cursor(inner: str, *about: object) -> str:
    """A cursor that :meth:`Request.sealed_cursor` takes with the same ``about``."""
    return f"{_seal(about)}.{inner}"


def _seal(about: tuple[object, ...]) -> str:
    return sha256(repr(tuple(map(str, about))).encode("utf-8", "replace")).hexdigest()[:6]


def _existing(facts: SessionFacts | None) -> SessionFacts:
    if facts is None:
        raise BadArgument(
            "There is no such session in this workspace, or it cannot be quoted here. Action"
            " 'sessions' lists those that can."
        )
    return facts


def matched_cursor(request: Request, form: re.Pattern[str], *, action: str) -> re.Match[str] | None:
    """The cursor in the form that the action gives out; None if none was sent."""
    text = request.arguments.cursor
    if not text:
        return None
    match = form.fullmatch(text)
    if match is None:
        raise BadArgument(
            f"This is not a cursor of '{action}'. Send one exactly as it was given, or"
            " leave 'cursor' out to begin at the beginning."
        )
    return match


def _read_uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise BadArgument(
            "'session' must be the id of a session as action 'sessions' lists it. Leave it"
            " out to look into this session."
        ) from error


def more_line(cursor: str) -> str:
    """How the model is told that there is more."""
    return f'More: call again with the same arguments and cursor="{cursor}".' if cursor else ""
