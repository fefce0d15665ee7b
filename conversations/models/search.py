"""The search index: what is searched for each turn, and how far it reaches.

Everything here is made from the turns and can be made again, and all that the databases
have of their own for full-text search is put back after every migration.
"""

from typing import Any

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .sessions import Session

# A session has fewer than 2**24 turns, so that an entry's id names both, and one session's
# entries are one range of ids.
TURN_BITS = 24


def entry_id(session_pk: int, number: int) -> int:
    return session_pk << TURN_BITS | number


class SearchEntry(models.Model):
    """The words of one turn, normalised, separated by spaces: ``said`` by people and the model; of
    ``tools`` (names, input, output); those in ``paths``, which are among the others too; and
    ``marks`` for the turn's role and tools. ``length`` counts the words of the first two."""

    id = models.BigIntegerField(primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="+", db_index=False)
    length = models.IntegerField()
    created_at = models.DateTimeField()
    said = models.TextField()
    tools = models.TextField()
    paths = models.TextField()
    marks = models.TextField()

    class Meta:
        ordering = ("id",)
        verbose_name_plural = "search entries"

    def __str__(self) -> str:
        return f"turn {self.id & (1 << TURN_BITS) - 1} of session {self.session_id}"


# Of a session's progress: it has turns with entries and without vectors.
UNEMBEDDED = models.Q(embedded_turn__lt=models.F("indexed_turn"))


class SearchProgress(models.Model):
    """The turns of a session up to ``indexed_turn`` have entries, made by the rules of
    ``version``. ``total_length`` is the sum of their lengths, ``asked_length`` that of the
    ``asked_turns``, which are the person's. Those up to ``embedded_turn`` have vectors, if they
    get any."""

    session = models.OneToOneField(
        Session, on_delete=models.PROTECT, primary_key=True, related_name="search_progress"
    )
    indexed_turn = models.BigIntegerField(default=0, db_default=0)
    total_length = models.BigIntegerField(default=0, db_default=0)
    asked_turns = models.BigIntegerField(default=0, db_default=0)
    asked_length = models.BigIntegerField(default=0, db_default=0)
    version = models.IntegerField(db_index=True)
    embedded_turn = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        ordering = ("session",)
        verbose_name_plural = "search progress"
        indexes = (
            models.Index(fields=("session",), condition=UNEMBEDDED, name="session_unembedded"),
        )

    def __str__(self) -> str:
        return f"indexed to turn {self.indexed_turn}"


class TurnEmbedding(models.Model):
    """The meaning of one turn, under the id of its entry: ``vector`` has a signed byte for each of
    its 384 components. A release with another model comes with a migration that removes all."""

    id = models.BigIntegerField(primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="+", db_index=False)
    vector = models.BinaryField()

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"turn {self.id & (1 << TURN_BITS) - 1} of session {self.session_id}"


def session_rows[M: (SearchEntry, TurnEmbedding)](
    model: type[M], session_pk: int, *, first: int = 0
) -> models.QuerySet[M]:
    """The session's rows, from the turn ``first``."""
    low, high = entry_id(session_pk, first), entry_id(session_pk + 1, 0)
    return model._default_manager.filter(pk__gte=low, pk__lt=high)


ENTRIES = SearchEntry._meta.db_table
INDEX = "conversations_searchindex"
COLUMNS = ("said", "tools", "paths", "marks")

# Unmerged segments at which FTS5 merges within a write; the indexer is far earlier.
CRISIS_SEGMENTS = 1000

# The words of an entry as PostgreSQL's index knows them.
WORDS = f"string_to_array({" || ' ' || ".join(COLUMNS)}, ' ')"


def install_search(*, using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """Create what is missing on one database (a post_migrate receiver)."""
    connection = connections[using]
    if ENTRIES in connection.introspection.table_names():
        {"sqlite": _install_fts5, "postgresql": _install_gin}[connection.vendor](connection)


def rebuild_fts5(connection: BaseDatabaseWrapper) -> None:
    """Make the FTS5 table anew from the entries, in one step."""
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {INDEX} ({INDEX}) VALUES ('rebuild')")


def _install_fts5(connection: BaseDatabaseWrapper) -> None:
    """A table that keeps, for each word, the ids of the entries that have it; the words
    themselves stay in the entries. Triggers keep it in step, whoever removes an entry."""
    is_there = INDEX in connection.introspection.table_names()
    columns = ", ".join(COLUMNS)
    new, old = (", ".join(f"{row}.{name}" for name in COLUMNS) for row in ("NEW", "OLD"))
    insert = f"INSERT INTO {INDEX} (rowid, {columns}) VALUES (NEW.id, {new});"
    remove = f"INSERT INTO {INDEX} ({INDEX}, rowid, {columns}) VALUES ('delete', OLD.id, {old});"
    with connection.cursor() as cursor:
        if not is_there:
            cursor.execute(
                f"CREATE VIRTUAL TABLE {INDEX} USING fts5 ({columns}, content='{ENTRIES}',"
                " content_rowid='id', tokenize='ascii', detail=column, columnsize=0)"
            )
            # It merges its segments only when asked, so no write waits for that.
            for option, value in (("automerge", 0), ("crisismerge", CRISIS_SEGMENTS)):
                cursor.execute(f"INSERT INTO {INDEX} ({INDEX}, rank) VALUES ('{option}', {value})")
        for kind, event, body in (
            ("added", "INSERT", insert),
            ("removed", "DELETE", remove),
            ("changed", "UPDATE", remove + insert),
        ):
            cursor.execute(f"DROP TRIGGER IF EXISTS {ENTRIES}_{kind}")
            cursor.execute(
                f"CREATE TRIGGER {ENTRIES}_{kind} AFTER {event} ON {ENTRIES} BEGIN {body} END"
            )
    if not is_there:
        rebuild_fts5(connection)


def _install_gin(connection: BaseDatabaseWrapper) -> None:
    columns = f"session_id, ({WORDS})"
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_indexes WHERE indexname = %s", [INDEX])
        if cursor.fetchone():
            return
        try:
            with transaction.atomic(using=connection.alias):
                cursor.execute("CREATE EXTENSION IF NOT EXISTS btree_gin")
        except DatabaseError:
            # Without it, a search within a session reads the matches of all sessions.
            columns = f"({WORDS})"
        cursor.execute(
            f"CREATE INDEX {INDEX} ON {ENTRIES} USING gin ({columns}) WITH (fastupdate = off)"
        )
