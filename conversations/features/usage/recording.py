"""Sums of usage: adding model calls, folding purged sessions, and rebuilding all sums.

The transaction that stores the record of a model call also updates the sums, so they are always
up to date. One statement updates the session's row of the day, and another one updates the totals
of the workspace, the person and the installation. The totals are updated last and in this order,
so that transactions do not deadlock.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from datetime import UTC
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, F, Q, Sum
from django.db.models.functions import Coalesce, TruncDate

from conversations.domain.runs import STOPPED
from conversations.models import ModelCall

from .figures import (
    FIRST_TOKEN_FIELDS,
    FIRST_TOKEN_MS,
    INSTALLATION,
    PERSON,
    WORKSPACE,
    UsageSums,
    first_token_field,
)
from .models import UsageDay, UsageTotal

# The sums of a row, except for the ranges of the time to the first token.
COUNTED = tuple(field.name for field in fields(UsageSums) if field.name != "first_token")

SUMMED = (*COUNTED, *FIRST_TOKEN_FIELDS)

_OF_SESSION = "(session_id, day, person_id, model) WHERE session_id IS NOT NULL"
_WITHOUT_SESSION = "(workspace_id, day, person_id, model) WHERE session_id IS NULL"

MAX_DURATION_MS = 2**31 - 1  # the maximum of the field in the record of a model call

BATCH_ROWS = 500


def add_call(used: ModelCall, person_pk: int | None) -> None:
    """Add a model call to the sums.

    If ``person_pk`` is None, because no person asked for the call, it counts for the session's
    owner.
    """
    day = connection.ops.adapt_datefield_value(used.created_at.astimezone(UTC).date())
    tokens = (used.prompt_tokens or 0) + (used.output_tokens or 0)
    is_unpriced = used.cost_microusd is None and bool(used.input_tokens or used.output_tokens)
    values: dict[str, Any] = {
        "calls": 1,
        "failed": int(used.is_failed),
        "unpriced": int(is_unpriced),
        **{name: getattr(used, name) or 0 for name in COUNTED[3:]},
    }
    if used.first_token_ms is not None:
        values[first_token_field(used.first_token_ms)] = 1
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO conversations_usageday (day, workspace_id, session_id, person_id,"
            f" model, {', '.join(values)}) SELECT %s, workspace_id, id, COALESCE(%s, owner_id),"
            f" %s, {', '.join(['%s'] * len(values))} FROM conversations_session WHERE id = %s"
            f" ON CONFLICT {_OF_SESSION} DO UPDATE SET {_added('conversations_usageday', values)}"
            " RETURNING workspace_id, person_id",
            [day, person_pk, used.model, *values.values(), used.session_id],
        )
        workspace_pk, payer_pk = cursor.fetchone()
        targets = ((WORKSPACE, workspace_pk), (PERSON, payer_pk), (INSTALLATION, 0))
        added = (day, tokens, used.cost_microusd or 0)
        cursor.execute(
            "INSERT INTO conversations_usagetotal (scope, target, day, tokens, cost_microusd)"
            " VALUES (%s, %s, %s, %s, %s), (%s, %s, %s, %s, %s), (%s, %s, %s, %s, %s)"
            " ON CONFLICT (scope, target, day) DO UPDATE SET"
            f" {_added('conversations_usagetotal', ('tokens', 'cost_microusd'))}",
            [value for target in targets for value in (*target, *added)],
        )


def forget_session(session_pk: int) -> int:
    """Move the sums of a purged session to rows without a session; return how many were moved."""
    columns = ", ".join(SUMMED)
    sums = ", ".join(f"SUM({name})" for name in SUMMED)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO conversations_usageday (day, workspace_id, person_id, model, {columns})"
            f" SELECT day, workspace_id, person_id, model, {sums} FROM conversations_usageday"
            " WHERE session_id = %s GROUP BY day, workspace_id, person_id, model"
            f" ON CONFLICT {_WITHOUT_SESSION} DO UPDATE SET"
            f" {_added('conversations_usageday', SUMMED)}",
            [session_pk],
        )
        removed, _ = UsageDay.objects.filter(session=session_pk).delete()
    return removed


def _added(table: str, columns: Iterable[str]) -> str:
    return ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in columns)


def rebuild_usage() -> int:
    """Rebuild the sums from the records of model calls, and return how many rows were created.

    The sums of purged sessions are kept, because their calls have no records any more. The server
    may run meanwhile.
    """
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "LOCK TABLE conversations_usageday, conversations_usagetotal"
                    " IN SHARE ROW EXCLUSIVE MODE"
                )
        UsageDay.objects.filter(session__isnull=False).delete()
        days = [UsageDay(**row) for row in _days_of_calls()]
        UsageDay.objects.bulk_create(days, batch_size=BATCH_ROWS)
        UsageTotal.objects.all().delete()
        totals = [UsageTotal(**row) for row in _totals_of_days()]
        UsageTotal.objects.bulk_create(totals, batch_size=BATCH_ROWS)
    return len(days)


def find_differences() -> list[str]:
    """Return a line for each sum that differs from the records of model calls.

    A line names the day of a session, or a total. The sums are not changed.
    """
    differing = _differences()
    # Calls may be added between the queries, so only differences that persist are reported.
    persisting = set(_differences()) if differing else set()
    return [line for line in differing if line in persisting]


def _differences() -> list[str]:
    days = UsageDay.objects.filter(session__isnull=False)
    totals = UsageTotal.objects.all()
    lines = []
    for keys, expected_rows, stored_rows in (
        (_DAY_KEYS, _days_of_calls(), days.values(*_DAY_KEYS, *SUMMED)),
        (_TOTAL_KEYS, _totals_of_days(), totals.values(*_TOTAL_KEYS, *_TOTALLED)),
    ):
        expected, stored = (
            {tuple(row[key] for key in keys): row for row in rows}
            for rows in (expected_rows, stored_rows)
        )
        differing_keys = [key for key in expected | stored if expected.get(key) != stored.get(key)]
        lines += [" ".join(map(str, key)) for key in sorted(differing_keys, key=str)]
    return lines


_DAY_KEYS = ("session_id", "day", "workspace_id", "person_id", "model")
_TOTAL_KEYS = ("scope", "target", "day")
_TOTALLED = ("tokens", "cost_microusd")
_SUM = "sum_"  # prefix of an annotation, whose name must not be the name of a column


def _days_of_calls() -> Iterator[dict[str, Any]]:
    is_unpriced = Q(cost_microusd=None) & (Q(input_tokens__gt=0) | Q(output_tokens__gt=0))
    tokens = {_SUM + name: Coalesce(Sum(name), 0) for name in COUNTED[3:]}
    # The first range begins below any time, and the last range includes all times above.
    lows, highs = (-1, *FIRST_TOKEN_MS), (*FIRST_TOKEN_MS, MAX_DURATION_MS)
    ranges = {
        name: Count("pk", filter=Q(first_token_ms__gt=low, first_token_ms__lte=high))
        for name, low, high in zip(FIRST_TOKEN_FIELDS, lows, highs, strict=True)
    }
    calls = ModelCall.objects.order_by().values(
        "session_id",
        "model",
        day=TruncDate("created_at", tzinfo=UTC),
        workspace_id=F("session__workspace_id"),
        person_id=Coalesce("run__requested_by_id", "session__owner_id"),
    )
    for row in calls.annotate(
        calls=Count("pk"),
        failed=Count("pk", filter=~Q(error_code__in=("", STOPPED))),
        unpriced=Count("pk", filter=is_unpriced),
        **tokens,
        **ranges,
    ):
        yield {name.removeprefix(_SUM): value for name, value in row.items()}


def _totals_of_days() -> Iterator[dict[str, Any]]:
    tokens = F("input_tokens") + F("cache_read_tokens") + F("cache_write_tokens")
    sums = {"tokens": Sum(tokens + F("output_tokens")), _SUM + "cost": Sum("cost_microusd")}
    for scope, *target in ((WORKSPACE, "workspace_id"), (PERSON, "person_id"), (INSTALLATION,)):
        for row in UsageDay.objects.order_by().values("day", *target).annotate(**sums):
            yield {
                "scope": scope,
                "target": row[target[0]] if target else 0,
                "day": row["day"],
                "tokens": row["tokens"],
                "cost_microusd": row[_SUM + "cost"],
            }
