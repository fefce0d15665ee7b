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
        super().__init__([server], params)  # a text would be taken apart at "," and ";"
        self._own = _OwnCache("redis-is-away", {})


class _OwnCache(LocMemCache):
    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """A count that was begun in Redis begins anew here."""
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


# Those that ask Redis; the other methods of a cache are made of these.
for _name in (
    *("add", "get", "set", "touch", "delete", "has_key", "incr", "clear"),
    *("get_many", "set_many", "delete_many"),
):
    setattr(FallbackRedisCache, _name, _in_redis_or_own(_name))
