"""The search index: an entry and a vector for each turn, and each session's progress.

The index is derived from the turns and can be built again. The objects of a database's own
full-text search are created after every migration if they are missing.
"""

from typing import Any

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .sessions import Session

# A session has fewer than 2**24 turns. So an entry's id holds the session's key and the turn's
# number, and the entries of one session are one range of ids.
TURN_BITS = 24


def entry_id(session_pk: int, number: int) -> int:
    return session_pk << TURN_BITS | number


class SearchEntry(models.Model):
    """The words of one turn, normalised and separated by spaces.

    ``said`` has the words of people and the model. ``tools`` has the words of tools: names, input
    and output. ``paths`` has the words in paths, which are in ``said`` or ``tools`` as well.
    ``marks`` stand for the turn's other properties (see ``domain.searchable``). ``length`` is the
    number of words in ``said`` and ``tools``.
    """

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


# A condition on the progress of sessions that have turns with an entry but without a vector.
UNEMBEDDED = models.Q(embedded_turn__lt=models.F("indexed_turn"))


class SearchProgress(models.Model):
    """The progress of the search index in one session.

    The turns up to ``indexed_turn`` have entries, which were made by the rules of ``version``.
    ``total_length`` is the sum of the lengths of these entries. ``asked_turns`` is the number of
    the person's turns, and ``asked_length`` is the sum of their lengths. The turns up to
    ``embedded_turn`` have vectors, except those that get none.
    """

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
    """The vector of one turn, under the id of the turn's entry.

    ``vector`` has a signed byte for each of its 384 components. A release with another embedding
    model comes with a migration that removes all vectors.
    """

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
    """Return the session's rows from the turn ``first`` on."""
    low, high = entry_id(session_pk, first), entry_id(session_pk + 1, 0)
    return model._default_manager.filter(pk__gte=low, pk__lt=high)


ENTRIES = SearchEntry._meta.db_table
INDEX = "conversations_searchindex"
COLUMNS = ("said", "tools", "paths", "marks")

# The number of unmerged segments at which FTS5 merges within a write. The indexer merges long
# before that.
CRISIS_SEGMENTS = 1000

# The words of an entry as an SQL expression, which PostgreSQL's index contains.
WORDS = f"string_to_array({" || ' ' || ".join(COLUMNS)}, ' ')"


def install_search(*, using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """Create the missing full-text index of one database (a post_migrate receiver)."""
    connection = connections[using]
    if ENTRIES not in connection.introspection.table_names():
        return
    if connection.vendor == "sqlite":
        _install_fts5(connection)
    else:
        _install_gin(connection)


def rebuild_fts5(connection: BaseDatabaseWrapper) -> None:
    """Rebuild the FTS5 table from the entries, in one statement."""
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {INDEX} ({INDEX}) VALUES ('rebuild')")


def _install_fts5(connection: BaseDatabaseWrapper) -> None:
    """Create an FTS5 table and the triggers that keep it up to date.

    The table stores, for each word, the ids of the entries with that word. The texts stay in the
    entries.
    """
    has_table = INDEX in connection.introspection.table_names()
    columns = ", ".join(COLUMNS)
    new, old = (", ".join(f"{row}.{name}" for name in COLUMNS) for row in ("NEW", "OLD"))
    insert = f"INSERT INTO {INDEX} (rowid, {columns}) VALUES (NEW.id, {new});"
    remove = f"INSERT INTO {INDEX} ({INDEX}, rowid, {columns}) VALUES ('delete', OLD.id, {old});"
    with connection.cursor() as cursor:
        if not has_table:
            cursor.execute(
                f"CREATE VIRTUAL TABLE {INDEX} USING fts5 ({columns}, content='{ENTRIES}',"
                " content_rowid='id', tokenize='ascii', detail=column, columnsize=0)"
            )
            # FTS5 merges its segments only on request, so that no write waits for a merge.
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
    if not has_table:
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
            # Without the extension, a search in one session reads the matches of all sessions.
            columns = f"({WORDS})"
        cursor.execute(
            f"CREATE INDEX {INDEX} ON {ENTRIES} USING gin ({columns}) WITH (fastupdate = off)"
        )
