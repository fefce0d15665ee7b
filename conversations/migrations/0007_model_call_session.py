"""A model call knows its session, so that the call of a turn is found at any age."""

import django.db.models.deletion
from django.db import migrations, models

FILL = """
UPDATE conversations_modelcall SET session_id =
    (SELECT session_id FROM conversations_run WHERE conversations_run.id = run_id)
"""


class Migration(migrations.Migration):
    atomic = False  # PostgreSQL alters no table whose changed rows are not committed

    dependencies = [("conversations", "0006_search")]

    operations = [
        migrations.AddField(
            model_name="modelcall",
            name="session",
            field=models.ForeignKey(
                null=True,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="model_calls",
                to="conversations.session",
            ),
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
        migrations.AlterField(
            model_name="modelcall",
            name="session",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="model_calls",
                to="conversations.session",
            ),
        ),
        migrations.AddIndex(
            model_name="modelcall",
            index=models.Index(fields=["session", "id"], name="model_call_of_session"),
        ),
        migrations.AddIndex(
            model_name="modelcall",
            index=models.Index(
                fields=["session", "turn_number", "id"],
                condition=models.Q(turn_number__isnull=False),
                name="model_call_of_turn",
            ),
        ),
    ]
