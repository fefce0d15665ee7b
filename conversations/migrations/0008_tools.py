"""Tools: approvals and decisions of calls, permissions, changed files, attachments."""

import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


FILL_SESSION = """
UPDATE conversations_toolcall SET session_id =
    (SELECT session_id FROM conversations_run WHERE conversations_run.id = run_id)
"""


def name_calls(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    calls = apps.get_model("conversations", "ToolCall").objects
    for pk in calls.values_list("pk", flat=True).iterator():
        calls.filter(pk=pk).update(uuid=uuid.uuid4())


class Migration(migrations.Migration):
    atomic = False  # PostgreSQL alters no table whose changed rows are not committed

    dependencies = [
        ("conversations", "0007_model_call_session"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Attachment",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("turn_number", models.BigIntegerField(null=True)),
                ("name", models.CharField(max_length=255)),
                ("kind", models.CharField(max_length=12)),
                ("media_type", models.CharField(max_length=127)),
                ("digest", models.CharField(max_length=64)),
                ("size", models.BigIntegerField()),
                ("width", models.IntegerField(null=True)),
                ("height", models.IntegerField(null=True)),
                ("pages", models.IntegerField(null=True)),
                ("tokens", models.IntegerField(db_default=0, default=0)),
                ("thumbnail", models.CharField(db_default="", default="", max_length=64)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="FileChange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("path", models.CharField(max_length=4096)),
                ("before", models.CharField(db_default="", default="", max_length=64)),
                ("before_mode", models.IntegerField(null=True)),
                ("before_size", models.BigIntegerField(null=True)),
                ("after", models.CharField(db_default="", default="", max_length=64)),
                ("after_mode", models.IntegerField(null=True)),
                ("after_size", models.BigIntegerField(null=True)),
                ("has_copy", models.BooleanField(db_default=True, default=True)),
                ("created_at", models.DateTimeField()),
                ("done_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="Revert",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="ToolPermission",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=255)),
                ("label", models.CharField(max_length=255)),
                ("granted_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.AddField(
            model_name="toolcall",
            name="asked",
            field=models.TextField(db_default="", default=""),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="asked_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="decided_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="decided_by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="decision",
            field=models.CharField(db_default="", default="", max_length=8),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="reason",
            field=models.TextField(db_default="", default=""),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="session",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="tool_calls",
                to="conversations.session",
            ),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="started_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="stop_requested_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="tree",
            field=models.CharField(db_default="", default="", max_length=64),
        ),
        migrations.AddField(
            model_name="toolcall",
            name="uuid",
            field=models.UUIDField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="workspace",
            name="allows_network",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.RunSQL(FILL_SESSION, migrations.RunSQL.noop),
        migrations.RunPython(name_calls, migrations.RunPython.noop),
        migrations.AlterField(
            model_name="toolcall",
            name="session",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="tool_calls",
                to="conversations.session",
            ),
        ),
        migrations.AlterField(
            model_name="toolcall",
            name="uuid",
            field=models.UUIDField(default=uuid.uuid4, editable=False, unique=True),
        ),
        migrations.AddIndex(
            model_name="toolcall",
            index=models.Index(fields=["session", "id"], name="tool_call_of_session"),
        ),
        migrations.AddIndex(
            model_name="toolcall",
            index=models.Index(
                condition=models.Q(("state__in", ("started", "waiting_approval", "running"))),
                fields=["run", "id"],
                name="tool_call_open",
            ),
        ),
        migrations.AddConstraint(
            model_name="toolcall",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "state__in",
                        (
                            "started",
                            "waiting_approval",
                            "running",
                            "completed",
                            "denied",
                            "stopped",
                            "interrupted",
                        ),
                    )
                ),
                name="tool_call_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="toolcall",
            constraint=models.CheckConstraint(
                condition=models.Q(("decision__in", ("", "policy", "once", "always", "deny"))),
                name="tool_call_decision_known",
            ),
        ),
        migrations.AddField(
            model_name="attachment",
            name="added_by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="attachment",
            name="session",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="attachments",
                to="conversations.session",
            ),
        ),
        migrations.AddField(
            model_name="filechange",
            name="call",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="file_changes",
                to="conversations.toolcall",
            ),
        ),
        migrations.AddField(
            model_name="filechange",
            name="run",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="conversations.run",
            ),
        ),
        migrations.AddField(
            model_name="filechange",
            name="session",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="file_changes",
                to="conversations.session",
            ),
        ),
        migrations.AddField(
            model_name="revert",
            name="actor",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="revert",
            name="call",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="conversations.toolcall",
            ),
        ),
        migrations.AddField(
            model_name="revert",
            name="run",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="conversations.run",
            ),
        ),
        migrations.AddField(
            model_name="revert",
            name="session",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="reverts",
                to="conversations.session",
            ),
        ),
        migrations.AddField(
            model_name="filechange",
            name="revert",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="file_changes",
                to="conversations.revert",
            ),
        ),
        migrations.AddField(
            model_name="filechange",
            name="reverted_by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="reverted",
                to="conversations.revert",
            ),
        ),
        migrations.AddField(
            model_name="toolpermission",
            name="granted_by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="toolpermission",
            name="revoked_by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="toolpermission",
            name="workspace",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="tool_permissions",
                to="conversations.workspace",
            ),
        ),
        migrations.AddIndex(
            model_name="attachment",
            index=models.Index(fields=["session", "turn_number", "id"], name="attachment_of_turn"),
        ),
        migrations.AddIndex(
            model_name="attachment",
            index=models.Index(
                condition=models.Q(("turn_number__isnull", True)),
                fields=["created_at"],
                name="attachment_unsent",
            ),
        ),
        migrations.AddConstraint(
            model_name="attachment",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ("image", "document", "text"))),
                name="attachment_kind_known",
            ),
        ),
        migrations.AddIndex(
            model_name="filechange",
            index=models.Index(fields=["session", "id"], name="file_change_of_session"),
        ),
        migrations.AddConstraint(
            model_name="toolpermission",
            constraint=models.UniqueConstraint(
                condition=models.Q(("revoked_at", None)),
                fields=("workspace", "kind"),
                name="tool_permission_unique",
            ),
        ),
    ]
