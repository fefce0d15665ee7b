"""Waiting for the end of a run, whichever process carries it out."""

import asyncio

from conversations.archive.runs import read_run_state
from conversations.domain.runs import FINAL_STATES

from .database import wait_for_database
from .engine import Runtime

POLL_SECONDS = 0.15


async def wait_for_end(runtime: Runtime, *, session_pk: int, run_pk: int) -> str:
    """The run's last state. Where its process is gone, this one takes over."""
    wait_for_database(runtime.options.database_wait)
    while True:
        await runtime.wait_run_ended(session_pk)
        state = await runtime.readers.read(read_run_state, run_pk)
        if state in FINAL_STATES:
            return state
        await asyncio.sleep(POLL_SECONDS)
        await runtime.recover(session_pk=session_pk)
        runtime.kick(session_pk)
