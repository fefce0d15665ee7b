"""Action ``sessions``: the other sessions that can be quoted, listed or searched."""

import re
from itertools import groupby
from uuid import UUID

from conversations.archive.audience import quotable_sessions
from conversations.archive.recall import SiblingItem, list_siblings, read_quotable_facts
from conversations.archive.search import TurnHit, search_sessions
from conversations.tools.arguments import BadArgument

from .passages import make_finder
from .quotation import PREFACE, QuotedGroup, moment_text, quote
from .request import Request, Target, matched_cursor, more_line, seal_cursor
from .search import group_hits, nothing_found, say_found

_CURSOR = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

NO_OTHERS = "There is no other session of this workspace that can be quoted here."


def siblings(request: Request) -> str:
    if request.arguments.session:
        raise BadArgument(
            "'sessions' takes no 'session'. To look into one of them use action 'search' or"
            " 'range' with 'session'."
        )
    return _search(request) if request.query() else _list(request)


def _list(request: Request) -> str:
    limit = request.limit()
    match = matched_cursor(request, _CURSOR, action="sessions")
    items = list_siblings(
        request.session_pk,
        request.user_pk,
        limit=limit + 1,
        after=UUID(match[0]) if match else None,
    )
    if not items:
        return "There are no more." if match else NO_OTHERS
    shown = items[:limit]
    quotation = quote(
        QuotedGroup(
            session=item.uuid, title=f"{item.title or '(no title)'}\n{_figures(item)}", said=[]
        )
        for item in shown
    )
    cursor = more_line(str(shown[-1].uuid)) if len(items) > limit else ""
    facts = "Other sessions of this workspace, the latest active first."
    return "\n".join(line for line in (facts, PREFACE, quotation, cursor) if line)


def _figures(item: SiblingItem) -> str:
    return f"{item.turn_count:,} turns, last active {moment_text(item.last_active_at)}"


def _search(request: Request) -> str:
    query = request.query()
    about = ("sessions", request.session, query)
    found = search_sessions(
        quotable_sessions(request.session_pk, request.user_pk),
        query,
        limit=request.limit(),
        cursor=request.sealed_cursor(*about),
    )
    if not found.hits:
        return nothing_found(found)
    groups: list[QuotedGroup] = []
    for uuid, hits in groupby(found.hits, key=lambda hit: hit.session):
        groups += _groups_of(request, uuid, list(hits), query)
    cursor = seal_cursor(found.cursor, *about) if found.cursor else ""
    return say_found(found, len(found.hits), groups, cursor=cursor)


def _groups_of(request: Request, uuid: UUID, hits: list[TurnHit], query: str) -> list[QuotedGroup]:
    facts = read_quotable_facts(request.session_pk, request.user_pk, uuid)
    if facts is None:  # purged meanwhile
        return []
    target = Target(facts=facts, is_own=False, before=facts.turn_count + 1)
    return group_hits(target, hits, make_finder(query))
