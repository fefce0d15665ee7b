"""Sessions that the search index has to catch up with are found by an index of their own."""

from django.db import migrations, models

REPEAT = """
UPDATE conversations_session SET unindexed_turn = 1 + (
    SELECT indexed_turn FROM conversations_searchprogress
    WHERE conversations_searchprogress.session_id = conversations_session.id
)
WHERE id IN (SELECT session_id FROM conversations_searchprogress)
"""


class Migration(migrations.Migration):
    dependencies = [("conversations", "0020_review_errors")]

    operations = [
        migrations.AddField(
            model_name="session",
            name="unindexed_turn",
            field=models.BigIntegerField(db_default=1, default=1),
        ),
        migrations.AlterField(
            model_name="searchprogress",
            name="version",
            field=models.IntegerField(db_index=True),
        ),
        migrations.RunSQL(REPEAT, migrations.RunSQL.noop),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=models.Q(("next_turn__gt", models.F("unindexed_turn"))),
                fields=["id"],
                name="session_unindexed",
            ),
        ),
    ]
