"""The usage of model calls is summed when they are saved, and the sums outlast the calls."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from conversations.archive.messages import accept_message
from conversations.archive.model_calls import (
    append_answer,
    append_call,
)
from conversations.archive.purge import plan_purge
from conversations.archive.runs import ClaimedRun
from conversations.archive.sessions import create_session
from conversations.domain.turns import NewTurn
from conversations.features.usage.figures import (
    FIRST_TOKEN_FIELDS,
    FIRST_TOKEN_MS,
    find_quantile,
    first_token_field,
    next_start,
    period_start,
)
from conversations.features.usage.models import UsageDay, UsageTotal
from conversations.features.usage.recording import (
    SUMMED,
    find_differences,
    forget_session,
    rebuild_usage,
)
from conversations.models import ModelCall, Session, Workspace
from tests.archive.test_purge import remove, stock

pytestmark = pytest.mark.django_db

type Claim = Callable[..., ClaimedRun]


def claim(session: Session, *, user_pk: int | None) -> ClaimedRun:
    accepted = accept_message(
        session,
        client_id=f"m-{session.pk}-{user_pk}",
        text="Go",
        user_pk=user_pk,
        max_queued=9,
        owner="x",
    )
    assert accepted.claimed is not None
    return accepted.claimed


def call(ordinal: int, **fields: Any) -> ModelCall:
    reported = {
        "model": "claude-sonnet-5-5",
        "input_tokens": 10,
        "cache_read_tokens": 80,
        "cache_write_tokens": 10,
        "output_tokens": 5,
        "cost_microusd": 120,
        "first_token_ms": 700,
    }
    return ModelCall(ordinal=ordinal, manifest="{}", request_digest="", **reported | fields)


def answer(claimed: ClaimedRun, ordinal: int, **fields: Any) -> None:
    turn = NewTurn(role="assistant", content="Yes.")
    append_answer(claimed, turn=turn, events=[], call=call(ordinal, **fields))


def sums() -> list[dict[str, Any]]:
    return list(UsageDay.objects.order_by("model", "day").values(*SUMMED))


def totals() -> dict[tuple[str, int], tuple[int, int]]:
    rows = UsageTotal.objects.values_list("scope", "target", "tokens", "cost_microusd")
    return {(scope, target): (tokens, cost) for scope, target, tokens, cost in rows}


def test_every_kind_of_call_is_counted_with_its_record(session: Session, user: User) -> None:
    claimed = claim(session, user_pk=user.pk)
    answer(claimed, 0)
    append_call(claimed, call=call(1))
    append_call(
        claimed,
        call=ModelCall(
            ordinal=2,
            model="claude-sonnet-5-5",
            manifest="{}",
            request_digest="",
            error_code="overloaded",
        ),
    )
    row = UsageDay.objects.get()
    assert (row.workspace_id, row.session_id, row.person_id) == (
        session.workspace_id,
        session.pk,
        user.pk,
    )
    assert (row.calls, row.failed, row.unpriced) == (3, 1, 0)
    assert (row.input_tokens, row.cache_read_tokens, row.cache_write_tokens) == (20, 160, 20)
    assert (row.output_tokens, row.cost_microusd, row.first_token_05) == (10, 240, 2)
    spent = (210, 240)
    assert totals() == {
        ("workspace", session.workspace_id): spent,
        ("person", user.pk): spent,
        ("installation", 0): spent,
    }


def test_calls_without_a_price_are_counted_as_unpriced(session: Session, user: User) -> None:
    claimed = claim(session, user_pk=user.pk)
    answer(claimed, 0, model="demo", cost_microusd=None)
    answer(claimed, 1, model="demo", cost_microusd=None, first_token_ms=None)
    assert [(row["calls"], row["unpriced"], row["cost_microusd"]) for row in sums()] == [(2, 2, 0)]


def test_a_call_without_a_sender_counts_for_the_session_owner(session: Session) -> None:
    answer(claim(session, user_pk=None), 0)
    assert UsageDay.objects.get().person_id == session.owner_id


def test_a_call_that_is_not_saved_is_not_counted(session: Session, user: User) -> None:
    claimed = claim(session, user_pk=user.pk)
    answer(claimed, 0)
    before = sums(), totals()
    with pytest.raises(IntegrityError), transaction.atomic():
        answer(claimed, 0)
    assert (sums(), totals()) == before


def test_a_call_at_midnight_is_counted_on_the_day_of_its_record(
    session: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = claim(session, user_pk=user.pk)
    midnight = datetime(2026, 11, 23, tzinfo=UTC)
    moments = [midnight - timedelta(microseconds=1)]
    with monkeypatch.context() as patch:
        patch.setattr(timezone, "now", lambda: moments.pop() if moments else midnight)
        append_call(claimed, call=call(0, error_code="x"))
    assert find_differences() == []


def test_counting_a_call_always_takes_two_statements(session: Session, user: User) -> None:
    claimed = claim(session, user_pk=user.pk)

    def writes(ordinal: int) -> int:
        with CaptureQueriesContext(
            connection,
        ) as found:
            answer(claimed, ordinal)
        return sum("conversations_usage" in query["sql"] for query in found)

    assert [writes(ordinal) for ordinal in range(12)] == [2] * 12


def test_the_usage_of_a_purged_session_stays_without_the_session(
    workspace: Workspace, session: Session, user: User
) -> None:
    other = create_session(workspace, owner=user)
    answer(claim(session, user_pk=user.pk), 0)
    answer(claim(other, user_pk=user.pk), 0, first_token_ms=90_000)
    before = totals()
    assert forget_session(session.pk) == 1
    assert forget_session(other.pk) == 1
    assert forget_session(other.pk) == 0
    row = UsageDay.objects.get()
    assert (row.session_id, row.calls, row.cost_microusd) == (None, 2, 240)
    assert (row.first_token_05, row.first_token_15) == (1, 1)
    assert totals() == before


def test_rebuilding_restores_the_sums_from_the_model_calls(session: Session, user: User) -> None:
    claimed = claim(session, user_pk=user.pk)
    for ordinal, first_token_ms in enumerate((None, 0, 100, 101, 59_000, 60_001)):
        answer(claimed, ordinal, first_token_ms=first_token_ms)
    answer(claimed, 9, model="demo", cost_microusd=None)
    append_call(claimed, call=call(10, error_code="timeout", output_tokens=None))
    assert find_differences() == []
    before = sums(), totals()
    UsageDay.objects.filter(model="demo").delete()
    UsageDay.objects.update(calls=77)
    assert len(find_differences()) == 2 + 3
    rebuild_usage()
    assert find_differences() == []
    assert (sums(), totals()) == before


def test_a_call_counted_during_the_check_is_not_a_difference(session: Session, user: User) -> None:
    claimed = claim(session, user_pk=user.pk)
    answer(claimed, 0)
    waiting = [call(1, error_code="x")]

    def execute(run: Callable[..., Any], sql: str, *args: Any) -> Any:
        if waiting and sql.startswith("SELECT") and f'FROM "{UsageDay._meta.db_table}"' in sql:
            append_call(claimed, call=waiting.pop())
        return run(sql, *args)

    with connection.execute_wrapper(execute):
        assert find_differences() == []
    assert not waiting


def test_rebuilding_keeps_the_usage_of_purged_sessions(session: Session, user: User) -> None:
    answer(claim(session, user_pk=user.pk), 0)
    forget_session(session.pk)
    ModelCall.objects.all().delete()
    before = sums(), totals()
    rebuild_usage()
    assert (sums(), totals()) == before


def test_the_command_reports_and_repairs_differences(
    session: Session, user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(claim(session, user_pk=user.pk), 0)
    UsageTotal.objects.filter(scope="person").delete()
    with pytest.raises(SystemExit):
        call_command("rebuild_usage", "--check")
    assert f"person {user.pk} " in capsys.readouterr().out
    assert not UsageTotal.objects.filter(scope="person").exists()
    call_command("rebuild_usage")
    assert UsageTotal.objects.filter(scope="person").exists()
    with pytest.raises(SystemExit) as ended:
        call_command("rebuild_usage", "--check")
    assert ended.value.code == 0


def test_a_time_to_the_first_token_is_counted_in_its_range() -> None:
    assert [first_token_field(time) for time in (0, 100, 101, 60_000, 60_001)] == [
        "first_token_00",
        "first_token_00",
        "first_token_01",
        "first_token_14",
        "first_token_15",
    ]


def test_a_quantile_lies_in_the_range_of_its_call() -> None:
    counts = [0] * len(FIRST_TOKEN_FIELDS)
    assert find_quantile(counts, 0.5) is None
    counts[4] = 100  # 400 to 600 ms
    assert find_quantile(counts, 0.5) == 500
    counts[14] = 5
    assert find_quantile(counts, 0.95) == 600
    counts[15] = 200
    assert find_quantile(counts, 0.95) == FIRST_TOKEN_MS[-1]


@pytest.mark.parametrize(
    ("period", "start", "following"),
    [
        ("day", date(2026, 12, 31), date(2027, 1, 1)),
        ("month", date(2026, 12, 1), date(2027, 1, 1)),
    ],
)
def test_periods_follow_each_other(period: str, start: date, following: date) -> None:
    assert period_start(period, date(2026, 12, 31)) == start
    assert next_start(period, date(2026, 12, 31)) == following


def test_purges_keep_the_usage_without_the_sessions(
    workspace: Workspace, session: Session, user: User
) -> None:
    other = create_session(workspace, owner=user)
    for each in (session, other):
        stock(each, user)
    names = ("calls", "input_tokens", "cost_microusd")
    before = UsageDay.objects.aggregate(*map(Sum, names))
    assert plan_purge(session).folded["usage totals"] == 1
    for each in (session, other):
        remove(each, user)
    assert not UsageDay.objects.exclude(session=None).exists()
    assert UsageDay.objects.count() == 1
    assert UsageDay.objects.aggregate(*map(Sum, names)) == before
