from typing import Any

from django.conf import settings
from django.db import migrations


def store_relative_to_the_data_folder(apps: Any, schema_editor: Any) -> None:
    inside = f"{settings.LOOM.data_dir}/"
    for workspace in apps.get_model("conversations", "Workspace").objects.order_by("pk"):
        workspace.root = workspace.root.removeprefix(inside)
        workspace.save(update_fields=["root"])


class Migration(migrations.Migration):
    dependencies = [("conversations", "0021_no_cold_storage")]

    operations = [migrations.RunPython(store_relative_to_the_data_folder)]
