"""The list of a turn's columns agrees with the model."""

from dataclasses import fields

from conversations.archive.append import INSERT_TURN
from conversations.archive.turns import COLUMNS
from conversations.domain.turns import CONTENT_COLUMNS, StoredTurn
from conversations.models import Turn

CACHE = {"html", "render_version"}


def test_table_has_the_listed_columns():
    written = {"session_id", "number", *CONTENT_COLUMNS, "created_at", "digest"}
    columns = {field.column for field in Turn._meta.local_concrete_fields}
    assert columns == {"id", *written} | CACHE


def test_all_listed_columns_are_read_and_written():
    assert set(COLUMNS) == {field.name for field in fields(StoredTurn)}
    assert all(f" {name}" in INSERT_TURN or f"({name}" in INSERT_TURN for name in COLUMNS)
