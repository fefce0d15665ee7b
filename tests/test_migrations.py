"""The migrations: they end where the models are, of which the tests' database is made."""

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from loomweb.env import BASE_DIR

_CHECK = re.compile(r'CONSTRAINT "(\w+)"')


def schema_of(cursor: Any) -> dict[str, Any]:
    """Tables with their columns and named constraints, and everything else by its text."""
    cursor.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    rows, found = cursor.fetchall(), dict[str, Any]()
    for kind, name, sql in rows:
        if kind != "table":
            found[f"{kind} {name}"] = sql
        elif not sql.startswith("CREATE VIRTUAL") and "searchindex_" not in name:
            cursor.execute(f'PRAGMA table_info("{name}")')
            columns = sorted(column[1:] for column in cursor.fetchall())
            found[f"table {name}"] = (columns, sorted(_CHECK.findall(sql)))
    found.pop("table django_migrations", None)
    return found


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="reads SQLite's own tables")
def test_migrations_make_what_the_models_say(tmp_path: Path) -> None:
    environment = os.environ | {"LOOM_DATA_DIR": str(tmp_path), "DATABASE_URL": ""}
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(command, cwd=BASE_DIR, env=environment, check=True, timeout=200)
    with sqlite3.connect(tmp_path / "loom.sqlite3") as migrated:
        made = schema_of(migrated.cursor())
    migrated.close()
    with connection.cursor() as cursor:
        assert len(made) > 150  # all tables, indexes and guards
        assert schema_of(cursor) == made


def test_no_change_of_a_model_lacks_its_migration(tmp_path: Path) -> None:
    environment = os.environ | {"LOOM_DATA_DIR": str(tmp_path), "DATABASE_URL": ""}
    command = [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"]
    done = subprocess.run(
        command, cwd=BASE_DIR, env=environment, check=False, timeout=200, capture_output=True
    )
    assert done.returncode == 0, done.stdout.decode()
