"""Details that servers of local models give about their models, beside the common list.

llama.cpp and vLLM name the window in the list of models. Whether a model supports tools depends on
its template, which llama.cpp's ``/props`` describes. Ollama and LM Studio name the window on pages
of their own: Ollama's ``/api/ps`` (loaded models) and ``/api/show`` (a model's parameters), and LM
Studio's ``/api/v0/models``. Ollama's window is smaller than the model allows unless ``num_ctx`` is
set, and Ollama cuts longer prompts without an error.
"""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from conversations.domain.stream import PARALLEL_TOOLS, TOOLS, ModelInfo

from .model_limits import OLLAMA_OWNER, read_capabilities, read_entries, read_figure, read_models

if TYPE_CHECKING:
    import openai
    from openai._types import RequestOptions

DETAIL_TIMEOUT_SECONDS = 2.0  # Per page
MAX_DETAILED_MODELS = 100  # Per Ollama server; each needs a request of its own
MAX_DETAILS_AT_ONCE = 2
OLLAMA_WINDOW_TOKENS = 4_096  # If nothing else is set (Ollama's documentation, "Context length")

LLAMA_CPP_OWNER = "llamacpp"
LLAMA_CPP_CAPABILITIES = {
    "supports_tools": TOOLS,
    "supports_parallel_tool_calls": PARALLEL_TOOLS,
}


async def read_local_models(client: "openai.AsyncOpenAI") -> list[ModelInfo]:
    """Return the models of an OpenAI-compatible server.

    Raise the errors of the SDK, and ValueError for a list that cannot be read."""
    body = await _get(client, "/models")
    models, entries = read_models(body), read_entries(body)
    # llama.cpp lists capabilities under a second key.
    twins = body.get("models") if isinstance(body, dict) else None
    if isinstance(twins, list) and len(twins) == len(models):
        models = [
            replace(model, takes={**model.takes, **read_capabilities(twin)})
            for model, twin in zip(models, twins, strict=True)
            if isinstance(twin, dict)
        ]
    owners = {entry.get("owned_by") for entry in entries}
    if LLAMA_CPP_OWNER in owners:
        capabilities = await _ask_llama_cpp(client)
        return [replace(model, takes={**model.takes, **capabilities}) for model in models]
    if models and not any(model.is_limit_known for model in models):
        # The owner is taken from the model's name; it is "library" only for Ollama's own models.
        if OLLAMA_OWNER in owners or await _is_ollama(client):
            return await _ask_ollama(client, models)
        detailed = await _ask_lm_studio(client)
        return [detailed.get(model.id, model) for model in models]
    return models


async def _get(client: "openai.AsyncOpenAI", path: str, **options: Any) -> Any:
    return json.loads(await _read(client, path, **options))


async def _read(client: "openai.AsyncOpenAI", path: str, **options: Any) -> bytes:
    import httpx2

    request_options = cast("RequestOptions", options)
    answer = await client.get(path, cast_to=httpx2.Response, options=request_options)
    return await answer.aread()


def _root(client: "openai.AsyncOpenAI") -> str:
    address = urlsplit(str(client.base_url))
    return f"{address.scheme}://{address.netloc}"


async def _ask_llama_cpp(client: "openai.AsyncOpenAI") -> dict[str, bool]:
    import httpx2
    import openai

    capabilities: dict[str, bool] = {}
    with suppress(openai.APIError, httpx2.HTTPError, ValueError):
        props = await _get(client, f"{_root(client)}/props", timeout=DETAIL_TIMEOUT_SECONDS)
        caps = props.get("chat_template_caps") or {}
        for key, capability in LLAMA_CPP_CAPABILITIES.items():
            if isinstance(caps.get(key), bool):
                capabilities[capability] = caps[key]
    return capabilities


async def _ask_lm_studio(client: "openai.AsyncOpenAI") -> dict[str, ModelInfo]:
    import httpx2
    import openai

    with suppress(openai.APIError, httpx2.HTTPError, ValueError):
        body = await _get(client, f"{_root(client)}/api/v0/models", timeout=DETAIL_TIMEOUT_SECONDS)
        return {model.id: model for model in read_models(body)}
    return {}


async def _is_ollama(client: "openai.AsyncOpenAI") -> bool:
    import httpx2
    import openai

    with suppress(openai.APIError, httpx2.HTTPError):
        body = await _read(client, f"{_root(client)}/", timeout=DETAIL_TIMEOUT_SECONDS)
        return body.startswith(b"Ollama is running")
    return False


async def _ask_ollama(client: "openai.AsyncOpenAI", models: list[ModelInfo]) -> list[ModelInfo]:
    import httpx2
    import openai

    loaded: dict[str, int] = {}
    with suppress(openai.APIError, httpx2.HTTPError, ValueError):
        body = await _get(client, f"{_root(client)}/api/ps", timeout=DETAIL_TIMEOUT_SECONDS)
        for entry in read_entries(body):
            if window := read_figure(entry, ("context_length",)):
                loaded[str(entry.get("name"))] = window

    # With too many requests at once, some would time out while they wait for the others.
    semaphore = asyncio.Semaphore(MAX_DETAILS_AT_ONCE)

    async def detail(index: int, model: ModelInfo) -> ModelInfo:
        details: dict[str, Any] = {}
        with suppress(openai.APIError, httpx2.HTTPError, ValueError):
            if index < MAX_DETAILED_MODELS:
                async with semaphore:
                    answer = await client.post(
                        f"{_root(client)}/api/show",
                        body={"model": model.id},
                        cast_to=httpx2.Response,
                        options={"timeout": DETAIL_TIMEOUT_SECONDS},
                    )
                    details = json.loads(await answer.aread())
        window = loaded.get(model.id) or read_parameter(details, "num_ctx")
        return replace(
            model,
            max_input_tokens=window or min(OLLAMA_WINDOW_TOKENS, read_trained_window(details)),
            is_limit_known=window is not None,
            takes=read_capabilities(details | {"owned_by": OLLAMA_OWNER}),
        )

    return await asyncio.gather(*(detail(index, model) for index, model in enumerate(models)))


def read_parameter(details: dict[str, Any], name: str) -> int | None:
    """Return a number among a Modelfile's parameters, which ``/api/show`` gives one per line."""
    for line in str(details.get("parameters") or "").splitlines():
        parts = line.split()
        if parts[:1] == [name] and parts[-1].isdigit():
            return int(parts[-1])
    return None


def read_trained_window(details: dict[str, Any]) -> int:
    for key, value in (details.get("model_info") or {}).items():
        if str(key).endswith(".context_length") and isinstance(value, int):
            return value
    return OLLAMA_WINDOW_TOKENS
