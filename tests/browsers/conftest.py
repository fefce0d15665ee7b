"""What a browser shows beside the suite: the server and the browser of the browser tests."""

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
