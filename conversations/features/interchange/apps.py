from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from conversations import feature


class InterchangeConfig(feature.Feature):
    name = "conversations.features.interchange"
    verbose_name = "Import and export"

    def workers(self, runtime: Any) -> Iterable[Callable[[], Coroutine[Any, Any, None]]]:
        from .worker import ImportWorker

        return (ImportWorker(runtime).keep,)
