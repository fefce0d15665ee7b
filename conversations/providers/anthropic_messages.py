"""The provider for servers that speak the Messages API, through the ``anthropic`` SDK."""

import json
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from conversations.domain.stream import STRICT, ModelInfo, ModelRequest
from conversations.domain.text import dump_json

from .model_limits import read_models, read_next_page
from .sdk_client import (
    CONNECT_TIMEOUT_SECONDS,
    LIST_TIMEOUT_SECONDS,
    SdkProvider,
    make_http_options,
)

if TYPE_CHECKING:
    import anthropic

DEFAULT_BASE_URL = "https://api.anthropic.com"
MAX_MODEL_PAGES = 20


class AnthropicProvider(SdkProvider):
    """Answers model calls through the Messages API at ``base_url``."""

    path = "/v1/messages"

    def import_sdk(self) -> ModuleType:
        import anthropic
        import anthropic.resources.messages
        import anthropic.resources.models

        return anthropic

    def make_body(self, request: ModelRequest) -> dict[str, Any]:
        return make_body(request)

    def write_body(self, request: ModelRequest) -> str:
        body = make_body(request)
        del body["messages"]
        return f'{{"messages":{request.messages_json},{dump_json(body)[1:]}'

    def make_client(self) -> "anthropic.AsyncAnthropic":
        import anthropic

        timeout, limits = make_http_options(self._timeout)
        base_url = self._base_url or DEFAULT_BASE_URL
        return anthropic.AsyncAnthropic(
            api_key=self._api_key,
            base_url=base_url,
            max_retries=0,
            open_telemetry=False,
            default_headers=make_headers(base_url, self._api_key),
            timeout=timeout,
            # The SDK's own default client is not used, because if it is dropped unclosed, it closes
            # sockets by numbers that other sockets may have by then. aiohttp parses in C: measured
            # with 100 answers at once, the process needs a sixth less CPU.
            http_client=anthropic.DefaultAioHttpClient(timeout=timeout, limits=limits),
        )

    async def fetch_models(self, client: "anthropic.AsyncAnthropic") -> list[ModelInfo]:
        import anthropic
        import httpx2

        models: list[ModelInfo] = []
        after_id: str | None = None
        for _ in range(MAX_MODEL_PAGES):
            answer = await client.models.with_raw_response.list(
                limit=1000,
                after_id=after_id or anthropic.omit,
                timeout=httpx2.Timeout(LIST_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS),
            )
            page = json.loads(await answer.read())
            models += read_models(page)
            after_id = read_next_page(page)
            if after_id is None:
                break
        return models


def make_headers(base_url: str, api_key: str) -> dict[str, str]:
    """Return the headers that are sent beside those of the SDK.

    Since version 2 the SDK sends the key as ``Authorization``. Other servers may still read it from
    ``x-api-key``."""
    return {} if base_url.startswith(DEFAULT_BASE_URL) else {"x-api-key": api_key}


def make_body(request: ModelRequest) -> dict[str, Any]:
    """Return the request in the shape of ``POST /v1/messages``."""
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "messages": request.messages,
        "stream": True,
    }
    if request.system:
        body["system"] = request.system
    if request.tools:
        body["tools"] = request.tools
    return {**_without_strict(request.choices), **body}


def _without_strict(choices: Mapping[str, Any]) -> Mapping[str, Any]:
    config = choices.get("output_config", {})
    format = config.get("format")
    if not isinstance(format, dict) or STRICT not in format:
        return choices
    format_without_strict = {name: format[name] for name in format if name != STRICT}
    return {**choices, "output_config": config | {"format": format_without_strict}}
