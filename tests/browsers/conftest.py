"""The fixtures of the browser tests, for tests in browsers that are not part of the suite."""

from tests.e2e.conftest import (  # noqa: F401
    browser_type_launch_args,
    evil,
    make_server,
    open_chat,
    open_context,
    prepared,
    provider,
    server,
    signed_in_state,
    starts,
    wire,
)
