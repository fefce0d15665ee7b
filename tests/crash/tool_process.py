"""A process with a runtime and the sample tools, which is started as a module and killed."""

import asyncio
import os
from dataclasses import replace

import django


async def work() -> None:
    from conversations.runtime.options import read_options
    from conversations.runtime.service import Runtime
    from tests.runtime.sample_tools import sample_tools

    with sample_tools():
        # With these intervals a process that is gone is noticed within about a second.
        quick = {"heartbeat": 0.1, "watch_interval": 0.1, "stale_after": 1.0}
        runtime = Runtime(replace(read_options(supervise=True), **quick))
        await runtime.start()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "loomweb.settings"
    django.setup()
    asyncio.run(work())
