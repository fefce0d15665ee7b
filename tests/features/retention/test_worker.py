"""The built-in scheduler, which runs retention in one process at a time."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from conversations.features.retention import worker
from conversations.features.retention.worker import RetentionWorker
from conversations.models import Session
from conversations.runtime.ownership import try_lock

pytestmark = pytest.mark.django_db(transaction=True)


def keeper(folder: Path) -> RetentionWorker:
    options = SimpleNamespace(data_dir=folder, expire_minutes=60)
    runtime: Any = SimpleNamespace(options=options)
    return RetentionWorker(runtime)


async def test_the_worker_runs_only_while_it_holds_the_lock(
    session: Session, user: User, tmp_path: Path
) -> None:
    await Session.objects.aupdate(expires_at=timezone.now())
    with try_lock(tmp_path / "run" / worker.LOCK) as is_ours:
        assert is_ours
        assert not await asyncio.to_thread(keeper(tmp_path).run_once)
    assert await asyncio.to_thread(keeper(tmp_path).run_once)
    assert await Session.objects.filter(expired_at__isnull=False).acount() == 1


async def test_a_failed_retention_run_is_logged_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(worker, "run_retention", fail)
        assert not await asyncio.to_thread(keeper(tmp_path).run_once)
    assert "retention_not_run" in caplog.text
    assert await asyncio.to_thread(keeper(tmp_path).run_once)
