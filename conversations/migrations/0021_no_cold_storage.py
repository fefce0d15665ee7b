from typing import Any

from django.db import migrations


def purge_nothing_without_its_copy(apps: Any, schema_editor: Any) -> None:
    """Until now nothing was purged where a copy was asked for. Owners may order it again."""
    workspaces = apps.get_model("conversations", "Workspace").objects
    workspaces.filter(uses_cold_storage=True).update(retention_days=None)
    apps.get_model("conversations", "PurgeOrder").objects.filter(keeps_copy=True).delete()


class Migration(migrations.Migration):
    dependencies = [("conversations", "0020_fewer_indexes")]

    operations = [
        migrations.RunPython(purge_nothing_without_its_copy, migrations.RunPython.noop),
        migrations.RemoveField("purgeorder", "keeps_copy"),
        migrations.RemoveField("workspace", "uses_cold_storage"),
    ]
