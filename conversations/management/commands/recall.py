from argparse import ArgumentParser
from contextlib import suppress
from typing import Any

from django.core.management.base import CommandError
from django.db import OperationalError

from conversations.archive.sessions import find_session
from conversations.domain.text import dump_json
from conversations.management.base import DatabaseCommand, read_lines, shown
from conversations.search.best_matches import PHRASE_CUT
from conversations.search.find import search_session
from conversations.search.indexing import index_session
from conversations.search.query import SearchQuery, parse_query, snippet
from conversations.search.results import MAX_SNIPPET_CHARS, SearchResults, as_answer


class Command(DatabaseCommand):
    help = "Search the turns of a session, best match first."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("session", help="UUID, unique prefix of a UUID, or key.")
        parser.add_argument("query", nargs="?", help="What to search for: see docs/search.md.")
        parser.add_argument(
            "--limit", type=int, default=10, metavar="N", help="Maximum number of turns, up to 200."
        )
        parser.add_argument("--json", action="store_true", help="Print one JSON object per query.")
        parser.add_argument("--stdin", action="store_true", help="Read one query per line.")

    def handle(self, **options: Any) -> None:
        if (options["query"] is None) != options["stdin"]:
            raise CommandError("Give one query, or --stdin with one per line.", returncode=2)
        if options["limit"] < 1:
            raise CommandError("--limit must be at least 1.", returncode=2)
        session = find_session(options["session"])
        with suppress(OperationalError):  # The database may be read-only.
            index_session(session.pk)
        for text in read_lines() if options["stdin"] else [options["query"]]:
            query, limit = parse_query(text), options["limit"]
            found = search_session(session.pk, query, limit=limit, with_neighbours=True)
            if options["json"] or options["stdin"]:
                self.stdout.write(dump_json(as_answer(found, query)))
                self.stdout.flush()
            else:
                self._print(found, query)

    def _print(self, found: SearchResults, query: SearchQuery) -> None:
        for hit in found.hits:
            about = hit.tool_name or hit.role
            when = f"{hit.created_at:%Y-%m-%d %H:%M}"
            text = snippet(hit.text, query, limit=MAX_SNIPPET_CHARS)
            line = f"{hit.turn:>7}  {when}  {about:<10}  {text}"
            self.stdout.write(shown(self.stdout, line))
        least = "at least " if found.total_is_bound else ""
        self.stdout.write(
            f"{least}{found.total} turns matched." if found.hits else "Nothing found."
        )
        if found.missing:
            self.stdout.write(f"No turn that was searched contains: {', '.join(found.missing)}")
        if found.is_phrase_cut:
            self.stdout.write(PHRASE_CUT)
