"""The ``wire`` fixture: a fresh local server for each test."""

from collections.abc import Iterator
from functools import cache

import httpcore2
import pytest

from tests.wire.server import WireThread


@pytest.fixture(scope="session")
def certificates() -> Iterator[None]:
    """Read the machine's certificates once, because each client needs 0.05 seconds for them."""
    with pytest.MonkeyPatch.context() as patch:
        read = cache(httpcore2.default_ssl_context)
        patch.setattr(httpcore2, "default_ssl_context", read)
        yield


@pytest.fixture
def wire(certificates: None) -> Iterator[WireThread]:
    """Yield a running server with ``url``, ``key``, ``requests`` and ``enqueue``."""
    server = WireThread()
    server.start()
    yield server
    server.stop()
