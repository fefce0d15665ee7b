from collections.abc import Iterator

import pytest

from tests.runtime.conftest import garden, options, runtime, start_runtime
from tests.web.conftest import owner, runtime_ends

from .push_service import PushService, open_push_service

__all__ = ["garden", "options", "owner", "runtime", "runtime_ends", "start_runtime"]


@pytest.fixture
def push_service() -> Iterator[PushService]:
    with open_push_service() as opened:
        yield opened
        assert opened.problems == []
