"""Finding servers of local models on this machine, on their usual ports.

The ports are from the programs' own documentation.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from .model_limits import read_entries, read_models

PORTS = {
    8080: "llama.cpp",
    11434: "Ollama",
    1234: "LM Studio",
    8000: "vLLM",
    1337: "Jan",
    4000: "LiteLLM",
    5001: "KoboldCpp",
    5000: "text-generation-webui",
}
OWNERS = {"llamacpp": "llama.cpp", "library": "Ollama", "vllm": "vLLM"}
PORT_TIMEOUT_SECONDS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundServer:
    """A server that was found.

    ``software`` is the name that the server gives, or else the usual software on its port."""

    port: int
    software: str
    models: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def name(self) -> str:
        """Return the name of a provider for this server."""
        return self.software.lower().replace(".", "-").replace(" ", "-")


async def find_local_servers(ports: Sequence[int]) -> list[FoundServer]:
    """Return the servers on these ports that answer with a list of models."""
    servers = await asyncio.gather(*map(_ask_port, ports))
    return [server for server in servers if server is not None]


async def _ask_port(port: int) -> FoundServer | None:
    import httpx2

    address = f"http://127.0.0.1:{port}/v1/models"
    try:
        async with httpx2.AsyncClient(timeout=PORT_TIMEOUT_SECONDS, trust_env=False) as client:
            answer = await client.get(address)
            answer.raise_for_status()
            body = answer.json()
            models = read_models(body)
    except (httpx2.HTTPError, ValueError):
        return None
    if not models:
        return None
    owner = str(read_entries(body)[0].get("owned_by") or "")
    software = OWNERS.get(owner, PORTS[port])
    return FoundServer(port=port, software=software, models=[model.id for model in models])
