"""Lookups of host names from people and models, in threads of their own."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult

MAX_LOOKUPS = 64  # At a time. The system may take long to give up on a name

# The event loop's default threads are few, and answers wait for them.
_threads = ThreadPoolExecutor(MAX_LOOKUPS, thread_name_prefix="names")

# The addresses are numeric, so aiohttp needs no further lookup
_FLAGS = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class Resolver(AbstractResolver):
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        kind, flags = socket.SOCK_STREAM, socket.AI_ADDRCONFIG
        look = partial(socket.getaddrinfo, host, port, family, kind, flags=flags)
        infos = await asyncio.get_running_loop().run_in_executor(_threads, look)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=address_family,
                proto=protocol,
                flags=_FLAGS,
            )
            for address_family, _, protocol, _, address in infos
        ]

    async def close(self) -> None:
        pass
