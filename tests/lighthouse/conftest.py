"""The server of the browser tests, without their browser."""

from tests.e2e.conftest import evil, make_server, prepared, provider, server, starts  # noqa: F401
