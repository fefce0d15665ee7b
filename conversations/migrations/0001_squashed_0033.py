"""All earlier migrations in one: a new database is made in one step, one that has them stays
as it is."""

import uuid

import django.db.models.deletion
import django.db.models.expressions
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    replaces = [
        ("conversations", "0001_initial"),
        ("conversations", "0002_window"),
        ("conversations", "0003_skills_and_compactions"),
        ("conversations", "0004_compaction_floor"),
        ("conversations", "0005_state_checkpoints"),
        ("conversations", "0006_search"),
        ("conversations", "0007_model_call_session"),
        ("conversations", "0008_tools"),
        ("conversations", "0009_attachment_sent"),
        ("conversations", "0010_tool_call_stops"),
        ("conversations", "0011_unsettled_changes"),
        ("conversations", "0012_audit"),
        ("conversations", "0013_review"),
        ("conversations", "0014_usage"),
        ("conversations", "0015_accounts"),
        ("conversations", "0016_retention"),
        ("conversations", "0017_sharing"),
        ("conversations", "0018_audit_by_workspace"),
        ("conversations", "0019_retention_copies"),
        ("conversations", "0020_review_errors"),
        ("conversations", "0021_review_search"),
        ("conversations", "0022_tokens"),
        ("conversations", "0023_session_instructions"),
        ("conversations", "0024_hooks"),
        ("conversations", "0025_run_from_seq"),
        ("conversations", "0026_api_answers"),
        ("conversations", "0027_imports"),
        ("conversations", "0028_channels"),
        ("conversations", "0029_webhook_secrets"),
        ("conversations", "0030_delivery_due"),
        ("conversations", "0031_run_choices"),
        ("conversations", "0032_webhook_wish"),
        ("conversations", "0033_session_channel"),
    ]

    initial = True

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("auth", "__first__"),
    ]

    operations = [
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("hint", models.CharField(max_length=16)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_tokens",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("name", models.CharField(max_length=120)),
                ("scopes", models.CharField(max_length=120)),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(null=True)),
                ("last_used_at", models.DateTimeField(null=True)),
                ("last_address", models.CharField(db_default="", default="", max_length=45)),
                ("revoked_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["user", "-id"], name="token_of_person")],
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.BigIntegerField(unique=True)),
                ("at", models.DateTimeField()),
                ("action", models.CharField(max_length=24)),
                (
                    "actor",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("actor_name", models.CharField(max_length=200)),
                ("session", models.UUIDField(null=True)),
                ("workspace", models.CharField(db_default="", default="", max_length=60)),
                ("place", models.CharField(db_default="", default="", max_length=500)),
                ("address", models.CharField(db_default="", default="", max_length=45)),
                ("agent", models.CharField(db_default="", default="", max_length=200)),
                ("reason", models.CharField(db_default="", default="", max_length=500)),
                ("metadata", models.TextField(db_default="{}", default="{}")),
                ("digest", models.CharField(max_length=64)),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "ordering": ("-number",),
                "permissions": (
                    ("administer_installation", "Can manage people, policies and the audit log"),
                ),
                "indexes": [
                    models.Index(fields=["session", "-number"], name="audit_of_session"),
                    models.Index(fields=["actor", "-number"], name="audit_of_actor"),
                    models.Index(fields=["action", "-number"], name="audit_of_action"),
                    models.Index(fields=["workspace", "-number"], name="audit_of_workspace"),
                    models.Index(fields=["at"], name="audit_by_time"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "action__in",
                                {
                                    "api": "read through the API",
                                    "attachment": "opened an attachment",
                                    "audit_export": "exported the audit log",
                                    "budget": "changed a budget",
                                    "export": "exported the session",
                                    "flag": "set a flag",
                                    "hold": "put the session on hold",
                                    "live": "watched the session live",
                                    "note": "wrote a note",
                                    "older": "paged through the transcript",
                                    "part": "opened a detail",
                                    "purge_called_off": "called the purge off",
                                    "purge_ordered": "ordered a purge",
                                    "purged": "purged the session",
                                    "record": "opened a record in the admin",
                                    "release": "ended the hold",
                                    "restored": "brought the session back from storage",
                                    "retention": "changed how long sessions are kept",
                                    "reviewed": "marked the session as reviewed",
                                    "role": "changed a role",
                                    "search_hit": "saw a search hit",
                                    "shared": "made a link for sharing",
                                    "transcript": "opened the transcript",
                                    "unflag": "resolved a flag",
                                    "unnote": "withdrew a note",
                                    "unreviewed": "marked the session as not reviewed",
                                    "unshared": "revoked a link for sharing",
                                    "webhook": "changed a webhook",
                                },
                            )
                        ),
                        name="audit_action_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="AuditHead",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.BigIntegerField(db_default=0, default=0)),
                ("digest", models.CharField(max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name="Device",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="devices",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("session_key", models.CharField(max_length=40, null=True, unique=True)),
                ("agent", models.CharField(db_default="", default="", max_length=400)),
                ("address", models.CharField(db_default="", default="", max_length=45)),
                ("created_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("-last_seen_at", "-id"),
                "indexes": [
                    models.Index(fields=["user", "-last_seen_at", "-id"], name="device_of_person")
                ],
            },
        ),
        migrations.CreateModel(
            name="Preferences",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="preferences",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("theme", models.CharField(db_default="auto", default="auto", max_length=5)),
                ("keys", models.CharField(db_default="all", default="all", max_length=10)),
                ("enter", models.CharField(db_default="send", default="send", max_length=5)),
                ("language", models.CharField(db_default="", default="", max_length=8)),
                ("clock", models.CharField(db_default="h23", default="h23", max_length=3)),
                (
                    "times",
                    models.CharField(db_default="relative", default="relative", max_length=8),
                ),
            ],
            options={
                "verbose_name_plural": "preferences",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("clock__in", ("h23", "h12")),
                            ("enter__in", ("send", "break")),
                            ("keys__in", ("all", "no_letters", "none")),
                            (
                                "language__in",
                                (
                                    "",
                                    "en-GB",
                                    "en-US",
                                    "en-CA",
                                    "cs",
                                    "da",
                                    "de",
                                    "es",
                                    "fr",
                                    "it",
                                    "nl",
                                    "nb",
                                    "pl",
                                    "pt",
                                    "pt-BR",
                                    "fi",
                                    "sv",
                                    "tr",
                                    "uk",
                                    "ja",
                                    "ko",
                                    "zh-CN",
                                ),
                            ),
                            ("theme__in", ("auto", "light", "dark")),
                            ("times__in", ("relative", "exact")),
                        ),
                        name="preferences_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PromptText",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("text", models.TextField()),
            ],
        ),
        migrations.CreateModel(
            name="PurgedContent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("purged_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="PurgePermit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("session_pk", models.BigIntegerField(unique=True)),
                ("reason", models.TextField()),
                ("created_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Receipt",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("session", models.UUIDField(db_index=True)),
                ("workspace", models.CharField(max_length=60)),
                ("owner", models.CharField(max_length=150)),
                ("key", models.CharField(db_default="", default="", max_length=255)),
                ("channel", models.CharField(max_length=32)),
                ("created_at", models.DateTimeField()),
                ("last_active_at", models.DateTimeField()),
                ("purged_at", models.DateTimeField()),
                (
                    "ordered_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("ordered_by_name", models.CharField(max_length=200)),
                ("reason", models.CharField(max_length=500)),
                ("by_policy", models.BooleanField(db_default=False, default=False)),
                ("turns", models.BigIntegerField()),
                ("events", models.BigIntegerField()),
                ("counts", models.TextField(db_default="{}", default="{}")),
                ("turn_digest", models.CharField(max_length=64)),
                ("event_digest", models.CharField(max_length=64)),
                ("cold_name", models.CharField(db_default="", default="", max_length=500)),
                ("cold_digest", models.CharField(db_default="", default="", max_length=64)),
                ("digest", models.CharField(max_length=64)),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="SignInLink",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("digest", models.CharField(max_length=64, unique=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to=settings.AUTH_USER_MODEL
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="UsageTotal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("scope", models.CharField(max_length=12)),
                ("target", models.BigIntegerField()),
                ("day", models.DateField()),
                ("tokens", models.BigIntegerField(db_default=0, default=0)),
                ("cost_microusd", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "ordering": ("-day", "-id"),
                "indexes": [models.Index(fields=["day"], name="usage_total_by_day")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("scope", "target", "day"), name="usage_total_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("scope__in", ("installation", "workspace", "person"))),
                        name="usage_total_scope_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Workspace",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=120)),
                ("slug", models.SlugField(max_length=60, unique=True)),
                ("root", models.CharField(max_length=1024)),
                ("instructions", models.TextField(blank=True, default="")),
                ("reads_instruction_files", models.BooleanField(blank=True, null=True)),
                ("default_model", models.CharField(blank=True, default="", max_length=120)),
                (
                    "tool_policy",
                    models.CharField(
                        choices=[("read_only", "read only"), ("ask", "ask"), ("auto", "automatic")],
                        db_default="ask",
                        default="ask",
                        max_length=12,
                    ),
                ),
                ("allows_network", models.BooleanField(db_default=False, default=False)),
                (
                    "window_strategy",
                    models.CharField(blank=True, db_default="", default="", max_length=16),
                ),
                ("keep_recent", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("high_water", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("low_water", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("expire_after_hours", models.PositiveIntegerField(blank=True, null=True)),
                ("retention_days", models.PositiveIntegerField(blank=True, null=True)),
                ("members_may_purge", models.BooleanField(db_default=False, default=False)),
                ("uses_cold_storage", models.BooleanField(db_default=False, default=False)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("name", "id"),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("tool_policy__in", ("read_only", "ask", "auto"))),
                        name="workspace_tool_policy_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("window_strategy__in", ("", "archive", "sliding_window", "summarize"))
                        ),
                        name="workspace_strategy_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Budget",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "workspace",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="budgets",
                        to="conversations.workspace",
                    ),
                ),
                (
                    "person",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="budgets",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("period", models.CharField(max_length=8)),
                ("unit", models.CharField(max_length=8)),
                ("limit", models.BigIntegerField()),
                ("warn_percent", models.PositiveSmallIntegerField(db_default=80, default=80)),
                ("created_at", models.DateTimeField()),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "ended_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at", None)),
                        fields=["workspace", "person"],
                        name="budget_in_force",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("workspace", None), ("person", None), _connector="OR"),
                        name="budget_of_one",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("period__in", ("day", "month"))),
                        name="budget_period_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("unit__in", ("usd", "tokens"))),
                        name="budget_unit_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("limit__gte", 0), ("warn_percent__range", (1, 100))),
                        name="budget_numbers",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ChannelPlace",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="conversations.workspace",
                    ),
                ),
                ("key", models.CharField(max_length=255)),
                ("address", models.BigIntegerField()),
                ("guild", models.BigIntegerField(blank=True, null=True)),
                ("parent", models.BigIntegerField(blank=True, null=True)),
                ("taken", models.BigIntegerField()),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("workspace", "key"), name="channel_place_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Import",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "workspace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="imports",
                        to="conversations.workspace",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="imports",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("name", models.CharField(max_length=255)),
                ("size", models.BigIntegerField(db_default=0, default=0)),
                ("format", models.CharField(db_default="auto", default="auto", max_length=20)),
                ("state", models.CharField(db_default="waiting", default="waiting", max_length=12)),
                ("attempts", models.PositiveSmallIntegerField(db_default=0, default=0)),
                ("counts", models.TextField(db_default="{}", default="{}")),
                ("report", models.TextField(db_default="[]", default="[]")),
                ("report_left", models.PositiveIntegerField(db_default=0, default=0)),
                ("error", models.CharField(db_default="", default="", max_length=500)),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ("waiting", "running"))),
                        fields=["id"],
                        name="import_open",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ("waiting", "running", "done", "failed", "stopped"))
                        ),
                        name="import_state_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Invitation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("label", models.CharField(db_default="", default="", max_length=120)),
                (
                    "workspace",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="invitations",
                        to="conversations.workspace",
                    ),
                ),
                ("role", models.CharField(db_default="", default="", max_length=8)),
                (
                    "created_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(null=True)),
                (
                    "used_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("revoked_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("-id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("role", ""), ("workspace__isnull", True)),
                            models.Q(
                                ("role__in", ("viewer", "member", "owner")),
                                ("workspace__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="invitation_role_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="conversations.workspace",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[("viewer", "viewer"), ("member", "member"), ("owner", "owner")],
                        default="member",
                        max_length=8,
                    ),
                ),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.UniqueConstraint(fields=("workspace", "user"), name="membership_unique"),
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ("viewer", "member", "owner"))),
                        name="membership_role_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Session",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "workspace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="sessions",
                        to="conversations.workspace",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="sessions",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("key", models.CharField(blank=True, max_length=255, null=True)),
                ("channel", models.CharField(db_default="web", default="web", max_length=32)),
                ("title", models.CharField(blank=True, db_default="", default="", max_length=200)),
                ("title_is_chosen", models.BooleanField(db_default=False, default=False)),
                (
                    "preview",
                    models.CharField(blank=True, db_default="", default="", max_length=200),
                ),
                ("model", models.CharField(blank=True, db_default="", default="", max_length=120)),
                ("system_prompt", models.TextField(blank=True, db_default="", default="")),
                ("instructions", models.TextField(blank=True, db_default="", default="")),
                ("state", models.TextField(db_default="{}", default="{}")),
                ("state_turn", models.BigIntegerField(db_default=0, default=0)),
                ("next_turn", models.BigIntegerField(db_default=1, default=1)),
                ("next_seq", models.BigIntegerField(db_default=1, default=1)),
                ("turn_digest", models.CharField(max_length=64)),
                ("event_digest", models.CharField(max_length=64)),
                ("journal_turn", models.BigIntegerField(db_default=0, default=0)),
                ("floor_turn", models.BigIntegerField(db_default=1, default=1)),
                ("context_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("context_limit", models.BigIntegerField(db_default=0, default=0)),
                ("token_ratio", models.FloatField(db_default=0.0, default=0.0)),
                (
                    "token_model",
                    models.CharField(blank=True, db_default="", default="", max_length=120),
                ),
                ("rewind_count", models.BigIntegerField(db_default=0, default=0)),
                ("reviewed_turn", models.BigIntegerField(db_default=0, default=0)),
                ("unindexed_turn", models.BigIntegerField(db_default=1, default=1)),
                ("input_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("output_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("cached_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("cost_microusd", models.BigIntegerField(db_default=0, default=0)),
                (
                    "parent",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="forks",
                        to="conversations.session",
                    ),
                ),
                ("fork_turn", models.BigIntegerField(blank=True, null=True)),
                ("created_at", models.DateTimeField()),
                ("last_active_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("expired_at", models.DateTimeField(blank=True, null=True)),
                ("former_key", models.CharField(blank=True, max_length=255, null=True)),
                ("archived_at", models.DateTimeField(blank=True, null=True)),
                ("pinned_at", models.DateTimeField(blank=True, null=True)),
                ("metadata", models.TextField(db_default="{}", default="{}")),
            ],
            options={
                "ordering": ("-last_active_at", "-id"),
                "permissions": (
                    ("review_transcripts", "Can read and review other people's transcripts"),
                ),
                "indexes": [
                    models.Index(
                        fields=["workspace", "-last_active_at", "-id"], name="session_by_activity"
                    ),
                    models.Index(
                        fields=["workspace", "channel", "-last_active_at", "-id"],
                        name="session_of_channel",
                    ),
                    models.Index(fields=["-last_active_at", "-id"], name="session_by_time"),
                    models.Index(
                        condition=models.Q(
                            (
                                "next_turn__gt",
                                django.db.models.expressions.CombinedExpression(
                                    models.F("reviewed_turn"), "+", models.Value(1)
                                ),
                            )
                        ),
                        fields=["-last_active_at", "-id"],
                        name="session_unreviewed",
                    ),
                    models.Index(
                        condition=models.Q(("expired_at", None), ("expires_at__isnull", False)),
                        fields=["expires_at"],
                        name="session_to_expire",
                    ),
                    models.Index(
                        condition=models.Q(("former_key__isnull", False)),
                        fields=["workspace", "former_key", "-expired_at"],
                        name="session_by_former_key",
                    ),
                    models.Index(
                        condition=models.Q(("next_turn__gt", models.F("unindexed_turn"))),
                        fields=["id"],
                        name="session_unindexed",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("key__isnull", False)),
                        fields=("workspace", "key"),
                        name="session_key_unique",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("next_seq__gte", 1), ("next_turn__gte", 1)),
                        name="session_counters",
                    ),
                ],
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
                (
                    "workspace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tool_permissions",
                        to="conversations.workspace",
                    ),
                ),
                ("kind", models.CharField(max_length=255)),
                ("label", models.CharField(max_length=255)),
                (
                    "granted_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("granted_at", models.DateTimeField()),
                (
                    "revoked_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("revoked_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("revoked_at", None)),
                        fields=("workspace", "kind"),
                        name="tool_permission_unique",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Webhook",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "workspace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="webhooks",
                        to="conversations.workspace",
                    ),
                ),
                ("url", models.CharField(max_length=2000)),
                ("events", models.TextField()),
                ("with_text", models.BooleanField(db_default=False, default=False)),
                ("site", models.CharField(db_default="", default="", max_length=300)),
                ("generation", models.PositiveIntegerField(db_default=1, default=1)),
                ("oldest_generation", models.PositiveIntegerField(db_default=1, default=1)),
                ("wish_digest", models.CharField(max_length=64, null=True)),
                ("rotated_at", models.DateTimeField(null=True)),
                ("is_active", models.BooleanField(db_default=True, default=True)),
                ("failing_since", models.DateTimeField(null=True)),
                ("switched_off_at", models.DateTimeField(null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="WorkspaceGroup",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="groups",
                        to="conversations.workspace",
                    ),
                ),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="workspaces",
                        to="auth.group",
                    ),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[("viewer", "viewer"), ("member", "member"), ("owner", "owner")],
                        default="member",
                        max_length=8,
                    ),
                ),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("workspace", "group"), name="workspace_group_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ("viewer", "member", "owner"))),
                        name="workspace_group_role_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApiAnswer",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("key", models.CharField(max_length=255)),
                ("fingerprint", models.CharField(max_length=64)),
                (
                    "session",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="conversations.session",
                    ),
                ),
                ("status", models.PositiveSmallIntegerField(null=True)),
                ("location", models.CharField(db_default="", default="", max_length=400)),
                ("body", models.TextField(db_default="", default="")),
                ("created_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.UniqueConstraint(fields=("user", "key"), name="api_answer_unique")
                ],
            },
        ),
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
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="attachments",
                        to="conversations.session",
                    ),
                ),
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
                ("sent", models.CharField(db_default="", default="", max_length=64)),
                ("sent_type", models.CharField(db_default="", default="", max_length=127)),
                ("thumbnail", models.CharField(db_default="", default="", max_length=64)),
                (
                    "added_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(
                        fields=["session", "turn_number", "id"], name="attachment_of_turn"
                    ),
                    models.Index(
                        condition=models.Q(("turn_number__isnull", True)),
                        fields=["created_at"],
                        name="attachment_unsent",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ("image", "document", "text"))),
                        name="attachment_kind_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="BudgetWarning",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "budget",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="warnings",
                        to="conversations.budget",
                    ),
                ),
                ("starts_on", models.DateField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "ordering": ("-id",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("budget", "starts_on"), name="budget_warning_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ChatEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="events",
                        to="conversations.session",
                    ),
                ),
                ("seq", models.BigIntegerField()),
                ("event_type", models.CharField(max_length=32)),
                ("payload", models.TextField()),
                ("turn_number", models.BigIntegerField(null=True)),
                ("created_at", models.DateTimeField()),
                ("digest", models.CharField(max_length=64)),
                ("html", models.TextField(db_default="", default="")),
                ("render_version", models.IntegerField(db_default=0, default=0)),
            ],
            options={
                "ordering": ("session", "seq"),
                "indexes": [
                    models.Index(fields=["session", "turn_number", "seq"], name="event_by_turn")
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("session", "seq"), name="event_seq_unique"),
                    models.CheckConstraint(
                        condition=models.Q(("seq__gte", 1)), name="event_seq_positive"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Compaction",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="compactions",
                        to="conversations.session",
                    ),
                ),
                ("from_turn", models.BigIntegerField()),
                ("to_turn", models.BigIntegerField()),
                ("floor_before", models.BigIntegerField(db_default=1, default=1)),
                ("summary", models.TextField()),
                ("model", models.CharField(max_length=120)),
                ("reason", models.CharField(max_length=12)),
                ("before_turns", models.BigIntegerField()),
                ("after_turns", models.BigIntegerField()),
                ("before_tokens", models.BigIntegerField()),
                ("after_tokens", models.BigIntegerField()),
                (
                    "actor",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("metadata", models.TextField(db_default="{}", default="{}")),
                ("undone_at", models.DateTimeField(blank=True, null=True)),
                (
                    "undone_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("from_turn__gte", 1), ("to_turn__gte", models.F("from_turn"))
                        ),
                        name="compaction_turns_in_order",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("reason__in", ("manual", "threshold", "end"))),
                        name="compaction_reason_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "webhook",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="deliveries",
                        to="conversations.webhook",
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="deliveries",
                        to="conversations.session",
                    ),
                ),
                ("event", models.CharField(max_length=40)),
                ("payload", models.TextField()),
                ("state", models.CharField(db_default="pending", default="pending", max_length=12)),
                ("attempts", models.PositiveSmallIntegerField(db_default=0, default=0)),
                ("next_at", models.DateTimeField()),
                ("created_at", models.DateTimeField(db_index=True)),
                ("tried_at", models.DateTimeField(null=True)),
                ("status", models.PositiveSmallIntegerField(null=True)),
                ("error", models.CharField(db_default="", default="", max_length=255)),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["webhook", "-id"], name="delivery_of_webhook"),
                    models.Index(
                        condition=models.Q(("state", "pending")),
                        fields=["webhook", "next_at"],
                        name="delivery_due",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ("pending", "delivered", "failed"))),
                        name="delivery_state_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Hold",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="holds",
                        to="conversations.session",
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="holds",
                        to="conversations.workspace",
                    ),
                ),
                ("reason", models.CharField(max_length=500)),
                (
                    "actor",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("released_at", models.DateTimeField(null=True)),
                (
                    "released_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["session", "released_at"], name="hold_of_session"),
                    models.Index(fields=["workspace", "released_at"], name="hold_of_workspace"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("session__isnull", True), ("workspace__isnull", False)),
                            models.Q(("session__isnull", False), ("workspace__isnull", True)),
                            _connector="OR",
                        ),
                        name="hold_has_one_object",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="JournalGap",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="journal_gaps",
                        to="conversations.session",
                    ),
                ),
                ("from_turn", models.BigIntegerField()),
                ("to_turn", models.BigIntegerField()),
                ("after_seq", models.BigIntegerField()),
            ],
            options={
                "ordering": ("session", "from_turn"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("session", "from_turn"), name="journal_gap_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PurgeOrder",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="purge_order",
                        to="conversations.session",
                    ),
                ),
                (
                    "ordered_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("ordered_at", models.DateTimeField()),
                ("reason", models.CharField(max_length=500)),
                ("due_at", models.DateTimeField(db_index=True)),
                ("by_policy", models.BooleanField(db_default=False, default=False)),
                ("was_archived", models.BooleanField(db_default=False, default=False)),
                ("keeps_copy", models.BooleanField(db_default=False, default=False)),
            ],
            options={
                "ordering": ("due_at", "id"),
            },
        ),
        migrations.CreateModel(
            name="ReviewFlag",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="review_flags",
                        to="conversations.session",
                    ),
                ),
                ("turn", models.BigIntegerField(null=True)),
                ("label", models.CharField(max_length=12)),
                ("text", models.TextField(db_default="", default="")),
                (
                    "author",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("resolved_at", models.DateTimeField(null=True)),
                (
                    "resolved_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(fields=["session", "turn", "id"], name="review_flag_of_session"),
                    models.Index(
                        condition=models.Q(("resolved_at", None)),
                        fields=["session"],
                        name="review_flag_open",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("turn", None), ("turn__gte", 1), _connector="OR"),
                        name="review_flag_turn",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "label__in",
                                {
                                    "other": "Other",
                                    "policy": "Policy",
                                    "privacy": "Privacy",
                                    "quality": "Quality",
                                    "safety": "Safety",
                                },
                            )
                        ),
                        name="review_flag_label_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ReviewMark",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="review_marks",
                        to="conversations.session",
                    ),
                ),
                ("through_turn", models.BigIntegerField()),
                (
                    "author",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("id",),
                "indexes": [models.Index(fields=["session", "-id"], name="review_mark_of_session")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("through_turn__gte", 0)), name="review_mark_turn"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ReviewNote",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="review_notes",
                        to="conversations.session",
                    ),
                ),
                ("turn", models.BigIntegerField(null=True)),
                (
                    "author",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("text", models.TextField()),
                ("created_at", models.DateTimeField()),
                ("withdrawn_at", models.DateTimeField(null=True)),
                (
                    "withdrawn_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(fields=["session", "turn", "id"], name="review_note_of_session")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("turn", None), ("turn__gte", 1), _connector="OR"),
                        name="review_note_turn",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Rewind",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="rewinds",
                        to="conversations.session",
                    ),
                ),
                ("from_turn", models.BigIntegerField()),
                ("to_turn", models.BigIntegerField()),
                ("from_seq", models.BigIntegerField()),
                ("to_seq", models.BigIntegerField()),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("edit", "edited"),
                            ("regenerate", "answered again"),
                            ("reset", "reset"),
                            ("undo", "undone"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "actor",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("id",),
                "indexes": [models.Index(fields=["session", "to_seq"], name="rewind_by_seq")],
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="runs",
                        to="conversations.session",
                    ),
                ),
                ("client_id", models.CharField(max_length=64)),
                ("kind", models.CharField(db_default="message", default="message", max_length=12)),
                ("state", models.CharField(max_length=20)),
                ("text", models.TextField(db_default="", default="")),
                ("attachments", models.TextField(db_default="[]", default="[]")),
                ("choices", models.TextField(null=True)),
                ("user_turn", models.BigIntegerField(null=True)),
                ("user_seq", models.BigIntegerField(null=True)),
                ("from_seq", models.BigIntegerField(null=True)),
                (
                    "requested_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("owner", models.CharField(db_default="", default="", max_length=64)),
                ("heartbeat_at", models.DateTimeField(null=True)),
                ("stop_requested_at", models.DateTimeField(null=True)),
                ("error_code", models.CharField(db_default="", default="", max_length=64)),
                ("note", models.CharField(db_default="", default="", max_length=255)),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "queued")),
                        fields=["session", "id"],
                        name="run_queued",
                    ),
                    models.Index(
                        condition=models.Q(("state__in", ("running", "waiting_approval"))),
                        fields=["owner"],
                        name="run_active_by_owner",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("state", "failed"), ("state", "interrupted"), _connector="OR"
                        ),
                        fields=["session"],
                        name="run_broken_of_session",
                    ),
                    models.Index(
                        condition=models.Q(("choices__isnull", False)),
                        fields=["session", "user_turn", "id"],
                        name="run_with_choices",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("session", "client_id"), name="run_client_id_unique"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ("running", "waiting_approval"))),
                        fields=("session",),
                        name="run_one_active_per_session",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                (
                                    "queued",
                                    "running",
                                    "waiting_approval",
                                    "completed",
                                    "stopped",
                                    "failed",
                                    "interrupted",
                                ),
                            )
                        ),
                        name="run_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("kind__in", ("message", "regenerate", "continue", "compact"))
                        ),
                        name="run_kind_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SearchEntry",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="conversations.session",
                    ),
                ),
                ("length", models.IntegerField()),
                ("created_at", models.DateTimeField()),
                ("said", models.TextField()),
                ("tools", models.TextField()),
                ("paths", models.TextField()),
                ("marks", models.TextField()),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="SearchProgress",
            fields=[
                (
                    "session",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="search_progress",
                        serialize=False,
                        to="conversations.session",
                    ),
                ),
                ("indexed_turn", models.BigIntegerField(db_default=0, default=0)),
                ("total_length", models.BigIntegerField(db_default=0, default=0)),
                ("version", models.IntegerField(db_index=True)),
            ],
            options={
                "ordering": ("session",),
            },
        ),
        migrations.CreateModel(
            name="SessionSkill",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="skills",
                        to="conversations.session",
                    ),
                ),
                ("name", models.CharField(max_length=120)),
                ("path", models.CharField(db_default="", default="", max_length=1024)),
                ("content", models.TextField()),
                ("digest", models.CharField(max_length=64)),
                ("turn_number", models.BigIntegerField()),
                ("loaded_at", models.DateTimeField()),
                ("metadata", models.TextField(db_default="{}", default="{}")),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("turn_number__gte", 1)), name="skill_turn_positive"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ShareLink",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="share_links",
                        to="conversations.session",
                    ),
                ),
                ("from_turn", models.BigIntegerField()),
                ("to_turn", models.BigIntegerField()),
                ("with_tools", models.BooleanField(db_default=False, default=False)),
                (
                    "created_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "revoked_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("opened_count", models.BigIntegerField(db_default=0, default=0)),
                ("last_opened_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("-id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("from_turn__gte", 1), ("to_turn__gte", models.F("from_turn"))
                        ),
                        name="share_turns_in_order",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="StateCheckpoint",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="state_checkpoints",
                        to="conversations.session",
                    ),
                ),
                ("turn", models.BigIntegerField()),
                ("seq", models.BigIntegerField()),
                ("rewinds", models.BigIntegerField()),
                ("state", models.TextField()),
            ],
            options={
                "ordering": ("session", "turn", "seq", "rewinds"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("session", "turn", "seq", "rewinds"), name="state_checkpoint_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Turn",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="turns",
                        to="conversations.session",
                    ),
                ),
                ("number", models.BigIntegerField()),
                ("role", models.CharField(max_length=9)),
                ("content", models.TextField()),
                ("blocks", models.TextField(null=True)),
                ("tool_calls", models.TextField(null=True)),
                ("tool_call_id", models.CharField(max_length=255, null=True)),
                ("tool_name", models.CharField(max_length=255, null=True)),
                ("token_count", models.BigIntegerField(db_default=0, default=0)),
                ("stop_reason", models.CharField(db_default="", default="", max_length=64)),
                ("complete", models.BooleanField(db_default=True, default=True)),
                ("metadata", models.TextField(db_default="{}", default="{}")),
                ("created_at", models.DateTimeField()),
                ("digest", models.CharField(max_length=64)),
                ("html", models.TextField(db_default="", default="")),
                ("render_version", models.IntegerField(db_default=0, default=0)),
            ],
            options={
                "ordering": ("session", "number"),
                "indexes": [
                    models.Index(
                        condition=models.Q(("tool_name__isnull", False)),
                        fields=["session", "tool_name", "number"],
                        name="turn_by_tool",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("session", "number"), name="turn_number_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("number__gte", 1)), name="turn_number_positive"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ("user", "assistant", "tool", "system"))),
                        name="turn_role_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageDay",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField()),
                (
                    "workspace",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="conversations.workspace",
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="usage",
                        to="conversations.session",
                    ),
                ),
                (
                    "person",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("model", models.CharField(max_length=120)),
                ("calls", models.BigIntegerField(db_default=0, default=0)),
                ("failed", models.BigIntegerField(db_default=0, default=0)),
                ("unpriced", models.BigIntegerField(db_default=0, default=0)),
                ("input_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("cache_read_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("cache_write_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("output_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("cost_microusd", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_00", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_01", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_02", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_03", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_04", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_05", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_06", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_07", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_08", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_09", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_10", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_11", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_12", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_13", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_14", models.BigIntegerField(db_default=0, default=0)),
                ("first_token_15", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "ordering": ("-day", "-id"),
                "indexes": [
                    models.Index(fields=["day"], name="usage_by_day"),
                    models.Index(fields=["workspace", "day"], name="usage_of_workspace"),
                    models.Index(fields=["person", "day"], name="usage_of_person"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("session__isnull", False)),
                        fields=("session", "day", "person", "model"),
                        name="usage_of_session",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("session__isnull", True)),
                        fields=("workspace", "day", "person", "model"),
                        name="usage_without_session",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ChannelReply",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="channel_replies",
                        to="conversations.session",
                    ),
                ),
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="channel_reply",
                        to="conversations.run",
                    ),
                ),
                ("address", models.BigIntegerField()),
                ("source", models.BigIntegerField()),
                ("author", models.BigIntegerField(db_default=0, default=0)),
                ("author_name", models.CharField(db_default="", default="", max_length=100)),
                ("posted", models.TextField(db_default="[]", default="[]")),
                ("created_at", models.DateTimeField()),
                ("done_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("done_at", None)),
                        fields=["id"],
                        name="channel_reply_open",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="DraftChunk",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="draft_chunks",
                        to="conversations.run",
                    ),
                ),
                ("ordinal", models.BigIntegerField()),
                ("part", models.IntegerField()),
                ("kind", models.CharField(max_length=32)),
                ("text", models.TextField()),
            ],
            options={
                "ordering": ("run", "ordinal"),
                "constraints": [
                    models.UniqueConstraint(fields=("run", "ordinal"), name="draft_chunk_unique")
                ],
            },
        ),
        migrations.CreateModel(
            name="ModelCall",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="model_calls",
                        to="conversations.session",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="model_calls",
                        to="conversations.run",
                    ),
                ),
                ("ordinal", models.PositiveIntegerField()),
                ("model", models.CharField(max_length=120)),
                ("manifest", models.TextField()),
                ("request_digest", models.CharField(max_length=64)),
                ("turn_number", models.BigIntegerField(null=True)),
                ("message_id", models.CharField(db_default="", default="", max_length=128)),
                ("stop_reason", models.CharField(db_default="", default="", max_length=64)),
                ("stop_sequence", models.TextField(null=True)),
                ("error_code", models.CharField(db_default="", default="", max_length=64)),
                ("input_tokens", models.BigIntegerField(null=True)),
                ("output_tokens", models.BigIntegerField(null=True)),
                ("cache_read_tokens", models.BigIntegerField(null=True)),
                ("cache_write_tokens", models.BigIntegerField(null=True)),
                ("cost_microusd", models.BigIntegerField(null=True)),
                ("first_token_ms", models.IntegerField(null=True)),
                ("duration_ms", models.IntegerField(null=True)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("run", "ordinal"),
                "indexes": [
                    models.Index(fields=["session", "id"], name="model_call_of_session"),
                    models.Index(
                        condition=models.Q(("turn_number__isnull", False)),
                        fields=["session", "turn_number", "id"],
                        name="model_call_of_turn",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "ordinal"), name="model_call_unique")
                ],
            },
        ),
        migrations.CreateModel(
            name="ToolCall",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="tool_calls",
                        to="conversations.session",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="tool_calls",
                        to="conversations.run",
                    ),
                ),
                ("call_id", models.CharField(max_length=255)),
                ("name", models.CharField(max_length=255)),
                ("arguments", models.TextField(db_default="{}", default="{}")),
                ("state", models.CharField(max_length=20)),
                ("ok", models.BooleanField(null=True)),
                ("turn_number", models.BigIntegerField()),
                ("result_turn", models.BigIntegerField(null=True)),
                ("duration_ms", models.IntegerField(null=True)),
                ("created_at", models.DateTimeField()),
                ("asked", models.TextField(db_default="", default="")),
                ("asked_at", models.DateTimeField(null=True)),
                ("decision", models.CharField(db_default="", default="", max_length=8)),
                (
                    "decided_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("decided_at", models.DateTimeField(null=True)),
                ("reason", models.TextField(db_default="", default="")),
                ("started_at", models.DateTimeField(null=True)),
                ("stop_requested_at", models.DateTimeField(null=True)),
                (
                    "stop_requested_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("tree", models.CharField(db_default="", default="", max_length=64)),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(fields=["session", "id"], name="tool_call_of_session"),
                    models.Index(
                        condition=models.Q(
                            ("state__in", ("started", "waiting_approval", "running"))
                        ),
                        fields=["run", "id"],
                        name="tool_call_open",
                    ),
                    models.Index(
                        condition=models.Q(("tree", ""), _negated=True),
                        fields=["id"],
                        name="tool_call_unsettled",
                    ),
                    models.Index(
                        condition=models.Q(("ok", False)),
                        fields=["session"],
                        name="tool_call_failed",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "turn_number", "call_id"), name="tool_call_unique"
                    ),
                    models.CheckConstraint(
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
                    models.CheckConstraint(
                        condition=models.Q(
                            ("decision__in", ("", "policy", "once", "always", "deny"))
                        ),
                        name="tool_call_decision_known",
                    ),
                ],
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
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="reverts",
                        to="conversations.session",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="conversations.run",
                    ),
                ),
                (
                    "call",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="conversations.toolcall",
                    ),
                ),
                (
                    "actor",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
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
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="file_changes",
                        to="conversations.session",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="conversations.run",
                    ),
                ),
                (
                    "call",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="file_changes",
                        to="conversations.toolcall",
                    ),
                ),
                (
                    "revert",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="file_changes",
                        to="conversations.revert",
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
                (
                    "reverted_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="reverted",
                        to="conversations.revert",
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(fields=["session", "id"], name="file_change_of_session"),
                    models.Index(
                        condition=models.Q(("done_at", None)),
                        fields=["call"],
                        name="file_change_begun",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="workspace",
            name="members",
            field=models.ManyToManyField(
                related_name="workspaces",
                through="conversations.Membership",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
    ]
