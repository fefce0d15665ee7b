import django.db.models.deletion
from django.db import migrations, models

# The indexes of foreign keys with which another index begins, and what they were of. They go by
# name, since SQLite's AlterField would copy each of these tables, the largest there are.
GONE = (
    ("conversations_turn_session_id_00fd7da8", "conversations_turn", "session_id"),
    ("conversations_chatevent_session_id_3056f3fe", "conversations_chatevent", "session_id"),
    ("conversations_modelcall_run_id_e48372c5", "conversations_modelcall", "run_id"),
    ("conversations_toolcall_run_id_5a3421cb", "conversations_toolcall", "run_id"),
    ("conversations_draftchunk_run_id_5807490e", "conversations_draftchunk", "run_id"),
    ("conversations_filechange_session_id_6f767b0a", "conversations_filechange", "session_id"),
)


def without_index(model, field, *, to, related_name):
    return migrations.AlterField(
        model_name=model,
        name=field,
        field=models.ForeignKey(
            to,
            on_delete=django.db.models.deletion.PROTECT,
            related_name=related_name,
            db_index=False,
        ),
    )


class Migration(migrations.Migration):
    dependencies = [("conversations", "0019_session_choices")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    f'DROP INDEX IF EXISTS "{name}"',
                    f'CREATE INDEX IF NOT EXISTS "{name}" ON "{table}" ("{column}")',
                )
                for name, table, column in GONE
            ],
            state_operations=[
                without_index(model, field, to=f"conversations.{to}", related_name=related_name)
                for model, field, to, related_name in (
                    ("turn", "session", "session", "turns"),
                    ("chatevent", "session", "session", "events"),
                    ("modelcall", "run", "run", "model_calls"),
                    ("toolcall", "run", "run", "tool_calls"),
                    ("draftchunk", "run", "run", "draft_chunks"),
                    ("filechange", "session", "session", "file_changes"),
                )
            ],
        )
    ]
