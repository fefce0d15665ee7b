"""Triggers by which the database refuses to rewrite the archive.

They are put back after every migration, because SQLite loses triggers when
Django remakes a table, and looked for at start-up. What may change in an
archived row is the cache of its rendering, nothing else. A purge records a
permit for its session first; only then may rows of that session be removed.
"""

from typing import Any

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

_CACHE = ("html", "render_version")

GUARDED: dict[str, tuple[str, ...]] = {
    "conversations_turn": _CACHE,
    "conversations_chatevent": _CACHE,
    "conversations_rewind": (),
    "conversations_sessionskill": (),
    "conversations_compaction": ("undone_at", "undone_by_id"),
    "conversations_reviewnote": ("withdrawn_at", "withdrawn_by_id"),
    "conversations_reviewflag": ("resolved_at", "resolved_by_id"),
    "conversations_reviewmark": (),
    "conversations_auditentry": (),
    "conversations_receipt": (),
}
"""Table → the columns that may change after a row was written; all others never do."""

NUMBERED_BY = {
    "conversations_turn": "id = NEW.id OR (session_id = NEW.session_id AND number = NEW.number)",
    "conversations_chatevent": "id = NEW.id OR (session_id = NEW.session_id AND seq = NEW.seq)",
    "conversations_rewind": "id = NEW.id",
    "conversations_sessionskill": "id = NEW.id",
    "conversations_compaction": "id = NEW.id OR uuid = NEW.uuid",
    "conversations_reviewnote": "id = NEW.id OR uuid = NEW.uuid",
    "conversations_reviewflag": "id = NEW.id OR uuid = NEW.uuid",
    "conversations_reviewmark": "id = NEW.id",
    "conversations_auditentry": "id = NEW.id OR number = NEW.number",
    "conversations_receipt": "id = NEW.id OR uuid = NEW.uuid",
}

KEPT_FOR_EVER = frozenset({"conversations_auditentry", "conversations_receipt"})
"""Tables whose rows no purge removes."""

_PERMIT = "EXISTS (SELECT 1 FROM conversations_purgepermit WHERE session_pk = OLD.session_id)"


def _may_be_removed(table: str) -> str:
    return "1 = 0" if table in KEPT_FOR_EVER else _PERMIT


def guard_names(table: str, vendor: str) -> list[str]:
    extra = {"sqlite": "no_replace", "postgresql": "no_truncate"}[vendor]
    return [f"{table}_{kind}" for kind in ("no_update", "no_delete", extra)]


def install_guards(*, using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """Create the triggers anew on one database (a post_migrate receiver)."""
    connection = connections[using]
    present = set(connection.introspection.table_names())
    statements = {"sqlite": _sqlite, "postgresql": _postgresql}[connection.vendor]
    with connection.cursor() as cursor:
        for table in GUARDED.keys() & present:
            for statement in statements(table, _fixed_columns(table)):
                cursor.execute(statement)


def _fixed_columns(table: str) -> list[str]:
    models = {model._meta.db_table: model for model in apps.get_models()}
    columns = [field.column for field in models[table]._meta.local_concrete_fields]
    return [column for column in columns if column and column not in GUARDED[table]]


def missing_guards(connection: BaseDatabaseWrapper) -> list[str]:
    """The names of triggers that should be there and are not."""
    queries = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled = 'O'",
    }
    with connection.cursor() as cursor:
        cursor.execute(queries[connection.vendor])
        found = {name for (name,) in cursor.fetchall()}
    wanted = [name for table in GUARDED for name in guard_names(table, connection.vendor)]
    return [name for name in wanted if name not in found]


def _sqlite(table: str, columns: list[str]) -> list[str]:
    no_update, no_delete, no_replace = guard_names(table, "sqlite")
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    return [
        f"DROP TRIGGER IF EXISTS {no_update}",
        f"CREATE TRIGGER {no_update} BEFORE UPDATE OF {', '.join(columns)} ON {table} {refuse}",
        f"DROP TRIGGER IF EXISTS {no_delete}",
        f"CREATE TRIGGER {no_delete} BEFORE DELETE ON {table}"
        f" WHEN NOT ({_may_be_removed(table)}) {refuse}",
        # INSERT OR REPLACE removes the old row without firing its delete trigger.
        f"DROP TRIGGER IF EXISTS {no_replace}",
        f"CREATE TRIGGER {no_replace} BEFORE INSERT ON {table}"
        f" WHEN EXISTS (SELECT 1 FROM {table} WHERE {NUMBERED_BY[table]}) {refuse}",
    ]


def _postgresql(table: str, columns: list[str]) -> list[str]:
    no_update, no_delete, no_truncate = guard_names(table, "postgresql")
    refuse = (
        f"RAISE EXCEPTION '{table} is append-only' USING ERRCODE = 'integrity_constraint_violation'"
    )
    changed = " OR ".join(f"OLD.{c} IS DISTINCT FROM NEW.{c}" for c in columns)
    return [
        f"""CREATE OR REPLACE FUNCTION {no_update}() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN IF {changed} THEN {refuse}; END IF; RETURN NEW; END $$""",
        f"DROP TRIGGER IF EXISTS {no_update} ON {table}",
        f"""CREATE TRIGGER {no_update} BEFORE UPDATE ON {table}
            FOR EACH ROW EXECUTE FUNCTION {no_update}()""",
        f"""CREATE OR REPLACE FUNCTION {no_delete}() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN IF NOT ({_may_be_removed(table)}) THEN {refuse}; END IF; RETURN OLD; END $$""",
        f"DROP TRIGGER IF EXISTS {no_delete} ON {table}",
        f"""CREATE TRIGGER {no_delete} BEFORE DELETE ON {table}
            FOR EACH ROW EXECUTE FUNCTION {no_delete}()""",
        f"""CREATE OR REPLACE FUNCTION {no_truncate}() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN IF EXISTS (SELECT 1 FROM {table}) THEN {refuse}; END IF; RETURN NULL; END $$""",
        f"DROP TRIGGER IF EXISTS {no_truncate} ON {table}",
        f"""CREATE TRIGGER {no_truncate} BEFORE TRUNCATE ON {table}
            FOR EACH STATEMENT EXECUTE FUNCTION {no_truncate}()""",
    ]
