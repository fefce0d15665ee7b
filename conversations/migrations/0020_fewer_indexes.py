import django.db.models.deletion
from django.db import migrations, models

# The foreign keys whose index goes, since another index begins with them, and the end of its
# name. It goes by that name: SQLite's AlterField would copy these tables, the largest there are.
KEYS = (
    ("turn", "session", "turns", "00fd7da8"),
    ("chatevent", "session", "events", "3056f3fe"),
    ("modelcall", "run", "model_calls", "e48372c5"),
    ("toolcall", "run", "tool_calls", "5a3421cb"),
    ("draftchunk", "run", "draft_chunks", "5807490e"),
    ("filechange", "session", "file_changes", "6f767b0a"),
)


def drop_index(model, key, related_name, digest):
    table, column = f"conversations_{model}", f"{key}_id"
    name = f"{table}_{column}_{digest}"
    field = models.ForeignKey(
        f"conversations.{key}",
        on_delete=django.db.models.deletion.PROTECT,
        related_name=related_name,
        db_index=False,
    )
    return migrations.RunSQL(
        f'DROP INDEX IF EXISTS "{name}"',
        f'CREATE INDEX IF NOT EXISTS "{name}" ON "{table}" ("{column}")',
        state_operations=[migrations.AlterField(model_name=model, name=key, field=field)],
    )


class Migration(migrations.Migration):
    dependencies = [("conversations", "0001_squashed_0019_session_choices")]

    operations = [drop_index(*key) for key in KEYS]
