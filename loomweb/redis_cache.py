"""Django's Redis cache with a fallback while Redis is unavailable.

The cache holds counts of attempts. If Redis does not respond, pages must still work, and
guessing a second factor must still be limited.
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
    """A Redis cache that uses the memory of the process while Redis cannot be reached."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__([server], params)  # a string would be split at "," and ";"
        self._own = _OwnCache("redis-is-away", {})


class _OwnCache(LocMemCache):
    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Increment a count. A count that was started in Redis starts again here."""
        self.add(key, 0, version=version)
        return super().incr(key, delta, version)


def _in_redis_or_own(name: str) -> Callable[..., Any]:
    in_redis = getattr(RedisCache, name)

    def method(self: FallbackRedisCache, *args: Any, **kwargs: Any) -> Any:
        try:
            return in_redis(self, *args, **kwargs)
        except (NotReached, NotAnswered):
            logger.warning("redis_away", exc_info=True)
            return getattr(self._own, name)(*args, **kwargs)

    return method


# Methods that access Redis. The other methods of a cache call these.
for _name in (
    *("add", "get", "set", "touch", "delete", "has_key", "incr", "clear"),
    *("get_many", "set_many", "delete_many"),
):
    setattr(FallbackRedisCache, _name, _in_redis_or_own(_name))
