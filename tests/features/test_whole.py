"""What holds where no feature is missing (``scripts.without`` leaves this file out)."""

from pathlib import Path

import pytest
from django.core.management import call_command

from tests.test_docs import DESCRIBED_METRICS, METRICS
from tests.test_logs import DESCRIBED_EVENTS, read_logged
from tests.test_security_docs import DOCUMENT, ROW


@pytest.mark.django_db
def test_every_table_has_a_model() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_every_described_metric_is_there() -> None:
    assert DESCRIBED_METRICS == METRICS


def test_every_described_event_of_the_log_is_there() -> None:
    logged, _ = read_logged()
    assert set(DESCRIBED_EVENTS) == set(logged)
    assert len(logged) > 60


def test_every_test_of_the_table_of_attacks_is_there() -> None:
    for test, _ in ROW.findall(DOCUMENT.read_text()):
        assert Path(test.partition("::")[0]).is_file(), test
