from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0007_model_providers"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="toolcall",
            index=models.Index(fields=["call_id"], name="tool_call_by_id"),
        ),
    ]
