"""The migrations: they create the schema of the models, which the tests' database has."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import Index, Model, UniqueConstraint

from benchmarks.processes import ROOT, clean_environment
from conversations.models import ChatEvent, DraftChunk, FileChange, ModelCall, ToolCall, Turn

_UNIQUE = re.compile(r"_[0-9a-f]{8}_uniq\b")
_CHECK = re.compile(r'CONSTRAINT "(\w+)"')

POSTGRES_SCHEMA = (
    "SELECT table_name, column_name, data_type, is_nullable, column_default"
    " FROM information_schema.columns WHERE table_schema = 'public'",
    "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "SELECT conrelid::regclass::text, conname FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace",
    "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE NOT tgisinternal",
)


def schema_of_sqlite(cursor: Any) -> set[Any]:
    """Return the columns and named constraints of tables, and the SQL of everything else."""
    cursor.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    found = set[Any]()
    for kind, name, sql in cursor.fetchall():
        if kind != "table":
            found.add((kind, name, sql))
        elif not sql.startswith("CREATE VIRTUAL") and "searchindex_" not in name:
            cursor.execute(f'PRAGMA table_info("{name}")')
            found |= {(name, *column[1:]) for column in cursor.fetchall()}
            found |= {(name, check) for check in _CHECK.findall(sql)}
    return found


def schema_of_postgres(cursor: Any) -> set[Any]:
    """Return the schema of our own tables.

    Indexes are compared by their definition, constraints and triggers only by their name.
    """
    found = set[Any]()
    for query in POSTGRES_SCHEMA:
        cursor.execute(query)
        rows = [row for row in cursor.fetchall() if row[0].startswith("conversations_")]
        # If a column was made unique later, its constraint has another name.
        found |= {tuple(_UNIQUE.sub("_key", str(value)) for value in row) for row in rows}
    return found


def without_log(schema: set[Any]) -> set[Any]:
    """Return the schema without the table in which Django records the applied migrations."""
    return {row for row in schema if not any("django_migrations" in str(item) for item in row)}


def of_models(made: set[Any], expected: set[Any]) -> set[Any]:
    """Return the schema without tables that have no model, which belong to removed features.

    ``tests/features/test_whole.py`` checks that there are no such tables if no feature was removed.
    """

    def tables(schema: set[Any]) -> set[str]:
        return {row[0] for row in schema if row[0].startswith("conversations_")}

    for table in tables(made) - tables(expected):
        made = {row for row in made if not re.search(rf"\b{table}\b", str(row))}
    return made


@pytest.mark.skipif(connection.vendor != "sqlite", reason="reads SQLite's own tables")
@pytest.mark.django_db
def test_migrations_create_the_schema_of_the_models(migrated: Path) -> None:
    with closing(sqlite3.connect(migrated)) as database:
        made = without_log(schema_of_sqlite(database.cursor()))
    assert len(made) > 500
    with connection.cursor() as cursor:
        expected = without_log(schema_of_sqlite(cursor))
    assert of_models(made, expected) == expected


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's own tables")
@pytest.mark.django_db(transaction=True)
def test_migrations_create_the_schema_of_the_models_on_postgresql(tmp_path: Path) -> None:
    name = f"migrated_{os.getpid()}"
    url = f"{os.environ['DATABASE_URL'].rpartition('/')[0]}/{name}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        try:
            subprocess.run(
                [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
                cwd=ROOT,
                env=clean_environment({"LOOM_DATA_DIR": str(tmp_path), "DATABASE_URL": url}),
                check=True,
            )
            at = {"host": connection.settings_dict["HOST"], "user": "postgres", "dbname": name}
            with psycopg.connect(**at) as other:
                made = schema_of_postgres(other.cursor())
        finally:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
        assert len(made) > 500
        expected = schema_of_postgres(cursor)
    assert of_models(made, expected) == expected


@pytest.mark.parametrize("model", [Turn, ChatEvent, ModelCall, ToolCall, DraftChunk, FileChange])
def test_no_index_of_a_growing_table_is_a_prefix_of_another(model: type[Model]) -> None:
    """Every index is updated with each new row."""
    kept = [*model._meta.indexes, *model._meta.constraints]
    whole = [one for one in kept if isinstance(one, Index | UniqueConstraint) and not one.condition]
    begun = {one.fields[0].removeprefix("-") for one in whole if one.fields}
    assert begun
    fields = map(model._meta.get_field, begun)
    assert not [field for field in fields if getattr(field, "db_index", False)]


@pytest.mark.django_db
def test_every_change_of_a_model_has_a_migration(settings: Any) -> None:
    settings.MIGRATION_MODULES = {}  # the tests' own database is made without migrations
    said = StringIO()
    call_command("makemigrations", "--dry-run", stdout=said, stderr=said)
    changes = re.findall(r"^ +\S (.+)", said.getvalue(), re.M)
    assert [one for one in changes if not one.startswith(("Remove ", "Delete "))] == []
