"""Forgetting what is kept for a time only: what the core owns, and what features do."""

import asyncio
from datetime import datetime

from django.conf import settings
from django.db import connection
from django.utils import timezone

from conversations.archive.purge import forget_answers, oldest_answer
from conversations.feature import features

from .ownership import remove_answer_locks

# A server that is restarted often gets to it too.
FIRST_DELAY_SECONDS, INTERVAL_SECONDS = 60.0, 3600.0


async def forget_forever() -> None:
    """To be run as a task; on a thread of its own, so that an answer does not wait for it."""
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
    """Outside of any transaction; in several processes at a time, too."""
    forget_answers(now)
    remove_answer_locks(settings.LOOM.data_dir / "run", before=oldest_answer(now))
    for feature in features():
        feature.forget_old(now)
