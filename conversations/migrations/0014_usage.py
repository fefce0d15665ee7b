"""What model calls used is added up; what there is already, too."""

import uuid
from collections.abc import Iterator
from typing import Any

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

RANGES = (
    *(100, 150, 250, 400, 600, 900, 1_300, 2_000, 3_000, 4_500),
    *(7_000, 10_000, 15_000, 30_000, 60_000),
)

DAY = {"sqlite": "date(c.created_at)", "postgresql": "(c.created_at AT TIME ZONE 'UTC')::date"}


def add_up(apps: Any, schema_editor: Any) -> None:
    """The sums of the calls that are on record."""
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        for statement in statements(connection.vendor):
            cursor.execute(statement)


def statements(vendor: str) -> Iterator[str]:
    day = DAY[vendor]
    names = [f"first_token_{index:02}" for index in range(len(RANGES) + 1)]
    ends = zip((-1, *RANGES), (*RANGES, 2**31 - 1), strict=True)
    ranges = [
        f"COUNT(CASE WHEN c.first_token_ms > {low} AND c.first_token_ms <= {high} THEN 1 END)"
        for low, high in ends
    ]
    yield (
        "INSERT INTO conversations_usageday (day, workspace_id, session_id, person_id, model,"
        " calls, failed, unpriced, input_tokens, cache_read_tokens, cache_write_tokens,"
        f" output_tokens, cost_microusd, {', '.join(names)})"
        f" SELECT {day}, s.workspace_id, c.session_id, COALESCE(r.requested_by_id, s.owner_id),"
        " c.model, COUNT(*), COUNT(CASE WHEN c.error_code <> '' THEN 1 END),"
        " COUNT(CASE WHEN c.cost_microusd IS NULL"
        " AND (c.input_tokens > 0 OR c.output_tokens > 0) THEN 1 END),"
        " COALESCE(SUM(c.input_tokens), 0), COALESCE(SUM(c.cache_read_tokens), 0),"
        " COALESCE(SUM(c.cache_write_tokens), 0), COALESCE(SUM(c.output_tokens), 0),"
        f" COALESCE(SUM(c.cost_microusd), 0), {', '.join(ranges)}"
        " FROM conversations_modelcall c JOIN conversations_run r ON r.id = c.run_id"
        " JOIN conversations_session s ON s.id = c.session_id"
        f" GROUP BY {day}, s.workspace_id, c.session_id,"
        " COALESCE(r.requested_by_id, s.owner_id), c.model"
    )
    tokens = "SUM(input_tokens + cache_read_tokens + cache_write_tokens + output_tokens)"
    for scope, target in (("workspace", "workspace_id"), ("person", "person_id")):
        yield (
            "INSERT INTO conversations_usagetotal (scope, target, day, tokens, cost_microusd)"
            f" SELECT '{scope}', {target}, day, {tokens}, SUM(cost_microusd)"
            f" FROM conversations_usageday GROUP BY {target}, day"
        )
    yield (
        "INSERT INTO conversations_usagetotal (scope, target, day, tokens, cost_microusd)"
        f" SELECT 'installation', 0, day, {tokens}, SUM(cost_microusd)"
        " FROM conversations_usageday GROUP BY day"
    )


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0013_review"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
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
                ("period", models.CharField(max_length=8)),
                ("unit", models.CharField(max_length=8)),
                ("limit", models.BigIntegerField()),
                ("warn_percent", models.PositiveSmallIntegerField(db_default=80, default=80)),
                ("created_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "ended_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
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
                (
                    "workspace",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="budgets",
                        to="conversations.workspace",
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
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
                ("starts_on", models.DateField()),
                ("at", models.DateTimeField()),
                (
                    "budget",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="warnings",
                        to="conversations.budget",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
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
                (
                    "person",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
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
                    "workspace",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="conversations.workspace",
                    ),
                ),
            ],
            options={
                "ordering": ("-day", "-id"),
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
        migrations.AddIndex(
            model_name="budget",
            index=models.Index(
                condition=models.Q(("ended_at", None)),
                fields=["workspace", "person"],
                name="budget_in_force",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("workspace", None), ("person", None), _connector="OR"),
                name="budget_of_one",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("period__in", ("day", "month"))), name="budget_period_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("unit__in", ("usd", "tokens"))), name="budget_unit_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("limit__gte", 0), ("warn_percent__range", (1, 100))),
                name="budget_numbers",
            ),
        ),
        migrations.AddConstraint(
            model_name="budgetwarning",
            constraint=models.UniqueConstraint(
                fields=("budget", "starts_on"), name="budget_warning_once"
            ),
        ),
        migrations.AddIndex(
            model_name="usageday",
            index=models.Index(fields=["day"], name="usage_by_day"),
        ),
        migrations.AddIndex(
            model_name="usageday",
            index=models.Index(fields=["workspace", "day"], name="usage_of_workspace"),
        ),
        migrations.AddIndex(
            model_name="usageday",
            index=models.Index(fields=["person", "day"], name="usage_of_person"),
        ),
        migrations.AddConstraint(
            model_name="usageday",
            constraint=models.UniqueConstraint(
                condition=models.Q(("session__isnull", False)),
                fields=("session", "day", "person", "model"),
                name="usage_of_session",
            ),
        ),
        migrations.AddConstraint(
            model_name="usageday",
            constraint=models.UniqueConstraint(
                condition=models.Q(("session__isnull", True)),
                fields=("workspace", "day", "person", "model"),
                name="usage_without_session",
            ),
        ),
        migrations.RunPython(add_up, migrations.RunPython.noop),
    ]
