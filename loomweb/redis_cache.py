"""Django's cache in Redis, which goes on while Redis is away.

What is in it are counts of attempts; a second factor must not be open to guessing, nor a
page fail, because Redis does not answer.
"""

import logging
from collections.abc import Callable
from typing import Any

from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import ConnectionError as NotReached
from redis.exceptions import TimeoutError as NotAnswered

logger = logging.getLogger(__name__)


class FallbackRedisCache(RedisCache):
    """Each process counts for itself while Redis cannot be reached."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._own = LocMemCache("redis-is-away", {})

    def add(self, *args: Any, **kwargs: Any) -> bool:
        return bool(self._try(super().add, self._own.add, *args, **kwargs))

    def get(self, *args: Any, **kwargs: Any) -> Any:
        return self._try(super().get, self._own.get, *args, **kwargs)

    def set(self, *args: Any, **kwargs: Any) -> None:
        self._try(super().set, self._own.set, *args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> bool:
        return bool(self._try(super().delete, self._own.delete, *args, **kwargs))

    def _try(
        self, shared: Callable[..., Any], own: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        try:
            return shared(*args, **kwargs)
        except (NotReached, NotAnswered):
            logger.warning("redis_away", exc_info=True)
            return own(*args, **kwargs)
