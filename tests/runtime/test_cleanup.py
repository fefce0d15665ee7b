"""The core deletes data that is stored for a limited time, whichever features are installed."""

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from conversations.models import ApiAnswer
from conversations.runtime import cleanup
from conversations.runtime.service import Runtime


def keep_answer(user: User, key: str, **ago: float) -> None:
    made = timezone.now() - timedelta(**ago)
    ApiAnswer.objects.create(user=user, key=key, fingerprint="f", created_at=made)


@pytest.mark.django_db
def test_old_answers_and_locks_are_deleted_without_any_feature(
    user: User, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cleanup, "features", tuple)
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path)
    hours = settings.LOOM.idempotency_hours
    keep_answer(user, "old", hours=hours, seconds=1)
    keep_answer(user, "new", hours=hours, seconds=-60)
    locks = [settings.LOOM.data_dir / "run" / f"answer-{number}.lock" for number in range(2)]
    for lock, ago in zip(locks, (1, -60), strict=True):
        lock.parent.mkdir(exist_ok=True)
        lock.touch()  # left behind by a process that died
        os.utime(lock, (time.time() - hours * 3600 - ago,) * 2)
    cleanup.forget_old(timezone.now())
    assert ApiAnswer.objects.get().key == "new"
    assert [lock.exists() for lock in locks] == [False, True]


async def test_a_running_server_deletes_old_answers(
    options: Any, transactional_db: None, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "FIRST_DELAY_SECONDS", 0)
    monkeypatch.setattr("conversations.runtime.service.features", tuple)
    made = timezone.now() - timedelta(hours=settings.LOOM.idempotency_hours, seconds=1)
    await ApiAnswer.objects.acreate(user=user, key="old", fingerprint="f", created_at=made)
    runtime = Runtime(options)
    await runtime.start()
    try:
        async with asyncio.timeout(10):
            while await ApiAnswer.objects.aexists():
                await asyncio.sleep(0.02)
    finally:
        await runtime.stop()
