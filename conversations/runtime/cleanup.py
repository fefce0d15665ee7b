"""Deleting data that is kept for a limited time: that of the core and that of the features."""

import asyncio
from datetime import datetime

from django.conf import settings
from django.db import connection
from django.utils import timezone

from conversations.archive.purge import forget_answers, oldest_answer
from conversations.feature import features

from .ownership import remove_answer_locks

# The first delay is short, so that a server that is often restarted deletes old data, too.
FIRST_DELAY_SECONDS, INTERVAL_SECONDS = 60.0, 3600.0


async def forget_forever() -> None:
    """Delete old data every hour, in a thread of its own, so that answers do not wait for it."""
    await asyncio.sleep(FIRST_DELAY_SECONDS)
    while True:
        await asyncio.to_thread(_forget)
        await asyncio.sleep(INTERVAL_SECONDS)


def _forget() -> None:
    try:
        forget_old(timezone.now())
    finally:
        connection.close()  # the thread's own


def forget_old(now: datetime) -> None:
    """Delete old data. Call this outside a transaction; several processes may do so at once."""
    forget_answers(now)
    remove_answer_locks(settings.LOOM.data_dir / "run", before=oldest_answer(now))
    for feature in features():
        feature.forget_old(now)
