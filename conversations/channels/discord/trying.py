"""Trying again for as long as it may go well later."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import aiohttp
import discord
from django.db import DatabaseError

from conversations.domain.errors import Unavailable

logger = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0

PASSING = (
    discord.DiscordServerError,
    discord.RateLimited,
    aiohttp.ClientError,
    OSError,
    DatabaseError,
    Unavailable,
)
"""What may pass: Discord, the network or the database is away. (TimeoutError is an
OSError.)"""


async def keep_trying[T](
    work: Callable[[], Awaitable[T]], *, is_over: Callable[[], bool] = lambda: False
) -> T | None:
    """What the work gives, however long that takes; None when it is over before."""
    wait = FIRST_WAIT
    while not is_over():
        try:
            return await work()
        except PASSING as error:
            logger.warning("discord_not_reached: %s", error)
            await asyncio.sleep(wait)
            wait = min(LONGEST_WAIT, wait * 2)
    return None
