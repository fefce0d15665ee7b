"""Triggers with which the database refuses to rewrite the archive.

They are created again after every migration, because SQLite loses triggers when Django remakes a
table. A system check looks for them at start-up. In an archived row, only the columns in
``GUARDED`` may change: the cache of its rendering, or the columns that record that it was undone,
withdrawn or resolved. A purge first creates a permit for its session. Only then may rows of that
session be removed.
"""

from typing import Any

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

_CACHE = ("html", "render_version")

# Table → the columns that may change after a row was written. All other columns never change.
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

# Tables whose rows are never removed, not even by a purge.
KEPT_FOR_EVER = frozenset({"conversations_auditentry", "conversations_receipt"})

_PERMIT = "EXISTS (SELECT 1 FROM conversations_purgepermit WHERE session_pk = OLD.session_id)"


def guard_names(table: str, vendor: str) -> list[str]:
    extra = {"sqlite": "no_replace", "postgresql": "no_truncate"}[vendor]
    return [f"{table}_{kind}" for kind in ("no_update", "no_delete", extra)]


def install_guards(*, using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """Create or replace the triggers on one database (a post_migrate receiver)."""
    connection = connections[using]
    present = set(connection.introspection.table_names())
    is_sqlite = connection.vendor == "sqlite"
    statements = _sqlite_statements if is_sqlite else _postgresql_statements
    models = {model._meta.db_table: model for model in apps.get_models()}
    with connection.cursor() as cursor:
        for table in GUARDED.keys() & present:
            for statement in statements(table, models[table]._meta):
                cursor.execute(statement)


def missing_guards(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the names of the triggers that are missing."""
    queries = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled = 'O'",
    }
    with connection.cursor() as cursor:
        cursor.execute(queries[connection.vendor])
        present = {name for (name,) in cursor.fetchall()}
    expected = [name for table in GUARDED for name in guard_names(table, connection.vendor)]
    return [name for name in expected if name not in present]


def _fixed_columns(table: str, meta: Any) -> list[str]:
    columns = [field.column for field in meta.local_concrete_fields]
    return [column for column in columns if column not in GUARDED[table]]


def _condition_of_removal(table: str) -> str:
    return "1 = 0" if table in KEPT_FOR_EVER else _PERMIT


def _sqlite_statements(table: str, meta: Any) -> list[str]:
    no_update, no_delete, no_replace = guard_names(table, "sqlite")
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    columns = ", ".join(_fixed_columns(table, meta))
    conflicts = [f"{f.column} = NEW.{f.column}" for f in meta.local_concrete_fields if f.unique]
    for constraint in meta.total_unique_constraints:
        names = [meta.get_field(name).column for name in constraint.fields]
        conflicts.append(f"({' AND '.join(f'{name} = NEW.{name}' for name in names)})")
    return [
        f"DROP TRIGGER IF EXISTS {no_update}",
        f"CREATE TRIGGER {no_update} BEFORE UPDATE OF {columns} ON {table} {refuse}",
        f"DROP TRIGGER IF EXISTS {no_delete}",
        f"CREATE TRIGGER {no_delete} BEFORE DELETE ON {table}"
        f" WHEN NOT ({_condition_of_removal(table)}) {refuse}",
        # INSERT OR REPLACE removes the old row without firing its delete trigger.
        f"DROP TRIGGER IF EXISTS {no_replace}",
        f"CREATE TRIGGER {no_replace} BEFORE INSERT ON {table}"
        f" WHEN EXISTS (SELECT 1 FROM {table} WHERE {' OR '.join(conflicts)}) {refuse}",
    ]


def _postgresql_statements(table: str, meta: Any) -> list[str]:
    no_update, no_delete, no_truncate = guard_names(table, "postgresql")
    code = "USING ERRCODE = 'integrity_constraint_violation'"
    refuse = f"RAISE EXCEPTION '{table} is append-only' {code}"
    columns = _fixed_columns(table, meta)
    changed = " OR ".join(f"OLD.{c} IS DISTINCT FROM NEW.{c}" for c in columns)
    # Name of a function → event, level (row or statement), condition of a refusal, return value.
    triggers = {
        no_update: ("UPDATE", "ROW", changed, "NEW"),
        no_delete: ("DELETE", "ROW", f"NOT ({_condition_of_removal(table)})", "OLD"),
        no_truncate: ("TRUNCATE", "STATEMENT", f"EXISTS (SELECT 1 FROM {table})", "NULL"),
    }
    return [
        statement
        for name, (event, level, condition, result) in triggers.items()
        for statement in (
            f"""CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN IF {condition} THEN {refuse}; END IF; RETURN {result}; END $$""",
            f"DROP TRIGGER IF EXISTS {name} ON {table}",
            f"""CREATE TRIGGER {name} BEFORE {event} ON {table}
            FOR EACH {level} EXECUTE FUNCTION {name}()""",
        )
    ]
