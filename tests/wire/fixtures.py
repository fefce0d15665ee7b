"""The ``wire`` fixture: a fresh local server for each test."""

from collections.abc import Iterator

import pytest

from tests.wire.server import WireThread


@pytest.fixture
def wire() -> Iterator[WireThread]:
    """A running server with ``url``, ``key``, ``requests`` and ``enqueue``."""
    server = WireThread()
    server.start()
    yield server
    server.stop()
