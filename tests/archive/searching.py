"""Shortcuts that parse a query as a person would type it and run the search."""

from typing import Any

from django.db.models import QuerySet

from conversations.models import Session
from conversations.search.find import search_session
from conversations.search.find_everywhere import search_sessions
from conversations.search.query import parse_query
from conversations.search.results import SearchResults


def find_in(session_pk: int, text: str, **options: Any) -> SearchResults:
    return search_session(session_pk, parse_query(text), **options)


def find_among(sessions: QuerySet[Session], text: str, **options: Any) -> SearchResults:
    return search_sessions(sessions, parse_query(text), **options)
