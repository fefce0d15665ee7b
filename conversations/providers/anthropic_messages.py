"""Any server that speaks the Messages API, through the ``anthropic`` SDK.

The SDK makes the connection, signs in and reports refusals; the stream's bytes
are read here. So every block is kept exactly as it was sent, with keys and
types that the SDK does not know yet, at a fraction of the CPU for each delta.

The SDK is imported when the first call is made, in a thread, since importing it
takes a second and more; :func:`warm_up` does it beforehand.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, cast

from conversations.domain.errors import ProviderError
from conversations.domain.stream import ModelInfo, ModelRequest, StreamItem
from conversations.domain.text import dump_json
from conversations.providers.anthropic_errors import (
    error_from_document,
    error_from_event,
    error_from_status,
    error_from_transport,
    make_error,
)
from conversations.providers.message_assembly import MessageAssembly, StreamOutOfOrder
from conversations.providers.sse import DEFAULT_EVENT, SseParser

from .model_limits import read_models, read_next_page

if TYPE_CHECKING:
    import anthropic
    import httpx2

DEFAULT_BASE_URL = "https://api.anthropic.com"
READ_TIMEOUT = 90.0  # Seconds of silence within an answer; the API sends pings well before
CONNECT_TIMEOUT = 5.0
LIST_TIMEOUT = 20.0
DRAIN_TIMEOUT = 0.25  # Seconds to wait for the end of an answer that is complete already
CONNECTION_LIMITS: dict[str, Any] = {
    "max_connections": 1_000,
    "max_keepalive_connections": 100,
    # Longer than most tools take, so that a run's next call finds its connection.
    "keepalive_expiry": 60.0,
}
MAX_MODEL_PAGES = 20
NO_LIST_STATUSES = frozenset({404, 405, 501})
OTHER_CONTENT_TYPES = ("text/html", "application/json", "application/problem+json")
MAX_BODY_READ = 65_536


def warm_up() -> None:
    """Import the SDK, so that the first call need not wait for it."""
    import anthropic
    import anthropic.resources.messages
    import anthropic.resources.models  # noqa: F401


class AnthropicProvider:
    """Answers model calls through the Messages API at ``base_url``.

    Uses ``api_key`` and nothing else to sign in: no key of the environment, no
    profile of the person who runs the process. ``timeout`` is the longest silence
    in seconds. Close an iterator of :meth:`stream` that is left early (with
    :func:`contextlib.aclosing`): that ends the request.
    """

    is_demo = False

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str | None = None,
        timeout: float = READ_TIMEOUT,
        fallback_models: Sequence[ModelInfo] = (),
    ) -> None:
        self._api_key = api_key.strip()
        self._base_url = base_url or DEFAULT_BASE_URL
        self._timeout = timeout
        self._fallback_models = list(fallback_models)
        self._client: anthropic.AsyncAnthropic | None = None
        self._opening = asyncio.Lock()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamItem]:
        """See :meth:`conversations.domain.stream.Provider.stream`."""
        response = await self._send(request)
        reader = AnswerReader(headers=response.headers, secret=self._api_key)
        async with aclosing(response):
            if response.headers.get("content-type", "").lower().startswith(OTHER_CONTENT_TYPES):
                raise await self._read_document(response)
            async with aclosing(self._read_chunks(response)) as chunks:
                async for chunk in chunks:
                    for item in reader.read(chunk):
                        yield item
                    reader.raise_failure()
                    if reader.has_ended:
                        break
                reader.require_end()
                # What follows is read, so that the connection can be used again.
                with suppress(ProviderError, TimeoutError):
                    async with asyncio.timeout(DRAIN_TIMEOUT):
                        async for _ in chunks:
                            pass

    async def list_models(self) -> list[ModelInfo]:
        """The server's models, newest first, or the fallback where it has no list."""
        try:
            models = await self._fetch_models()
        except ProviderError as error:
            if error.http_status not in NO_LIST_STATUSES and error.code != "bad_response":
                raise
            models = []
        return models or list(self._fallback_models)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _send(self, request: ModelRequest) -> "httpx2.Response":
        client = await self._open_client()
        import anthropic
        import httpx2

        # As text, because the SDK copies what it writes down by itself, piece by piece.
        body = dump_json(make_body(request)).encode()
        try:
            answer = await client.post(
                "/v1/messages",
                content=body,
                cast_to=httpx2.Response,
                stream=True,
                stream_cls=anthropic.AsyncStream[Any],
            )
        except (anthropic.APIError, httpx2.HTTPError) as error:
            raise self._translate(error) from error
        return cast("httpx2.Response", answer)

    async def _read_chunks(self, response: "httpx2.Response") -> AsyncGenerator[bytes]:
        import httpx2

        try:
            async with aclosing(response.aiter_bytes()) as chunks:
                async for chunk in chunks:
                    yield chunk
        except httpx2.HTTPError as error:
            raise self._translate(error) from error

    async def _read_document(self, response: "httpx2.Response") -> ProviderError:
        body = b""
        async with aclosing(self._read_chunks(response)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > MAX_BODY_READ:
                    break
        return error_from_document(body, headers=response.headers, secret=self._api_key)

    async def _fetch_models(self) -> list[ModelInfo]:
        client = await self._open_client()
        import anthropic
        import httpx2

        models: list[ModelInfo] = []
        after: str | None = None
        try:
            for _ in range(MAX_MODEL_PAGES):
                answer = await client.models.with_raw_response.list(
                    limit=1000,
                    after_id=after or anthropic.omit,
                    timeout=httpx2.Timeout(LIST_TIMEOUT, connect=CONNECT_TIMEOUT),
                )
                page = json.loads(await answer.read())
                models += read_models(page)
                if (after := read_next_page(page)) is None:
                    break
        except (anthropic.APIError, httpx2.HTTPError) as error:
            raise self._translate(error) from error
        except ValueError as error:
            raise make_error("bad_response") from error
        return models

    async def _open_client(self) -> "anthropic.AsyncAnthropic":
        if not self._api_key:
            raise make_error("no_key")
        if not (self._api_key.isascii() and self._api_key.isprintable()):
            raise make_error("bad_key")
        async with self._opening:
            if self._client is None:
                # Importing and reading certificates would stop every other stream.
                self._client = await asyncio.to_thread(self._make_client)
        return self._client

    def _make_client(self) -> "anthropic.AsyncAnthropic":
        warm_up()
        import anthropic
        import httpx2

        timeout = httpx2.Timeout(self._timeout, connect=CONNECT_TIMEOUT)
        try:
            return anthropic.AsyncAnthropic(
                api_key=self._api_key,
                base_url=self._base_url,
                max_retries=0,
                open_telemetry=False,
                default_headers=make_headers(self._base_url, self._api_key),
                timeout=timeout,
                # Not the client that the SDK makes by itself: if that one is dropped
                # unclosed, it closes sockets by numbers that others may have by then.
                # aiohttp parses in C: measured with 100 answers at once, the process
                # needs a sixth less CPU.
                http_client=anthropic.DefaultAioHttpClient(
                    timeout=timeout, limits=httpx2.Limits(**CONNECTION_LIMITS)
                ),
            )
        except httpx2.InvalidURL as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> ProviderError:
        import anthropic

        if isinstance(error, anthropic.APIStatusError):
            return error_from_status(
                status=error.status_code,
                body=error.body,
                headers=error.response.headers,
                secret=self._api_key,
            )
        return error_from_transport(error)


class AnswerReader:
    """Turns the bytes of one answer into items, a chunk at a time.

    A chunk may hold good events before a bad one: :meth:`read` gives the items of
    the good ones and keeps the failure for :meth:`raise_failure`.
    """

    def __init__(self, *, headers: Mapping[str, str], secret: str) -> None:
        self._headers = headers
        self._secret = secret
        self._parser = SseParser()
        self._assembly = MessageAssembly()
        self._failure: ProviderError | None = None

    @property
    def has_ended(self) -> bool:
        return self._assembly.has_ended

    def read(self, chunk: bytes) -> list[StreamItem]:
        items: list[StreamItem] = []
        try:
            for sse in self._parser.feed(chunk):
                event = load_event(sse.data)
                if event is None:
                    continue
                kind = event.get("type") or (sse.name if sse.name != DEFAULT_EVENT else "")
                if kind == "error":
                    raise error_from_event(event, headers=self._headers, secret=self._secret)
                self._assembly.take(event, kind, items)
                if self._assembly.has_ended:
                    break
        except ProviderError as error:
            self._failure = error
        except (StreamOutOfOrder, KeyError, TypeError, ValueError, AttributeError) as error:
            self._failure = make_error("bad_response")
            self._failure.__cause__ = error
        return items

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def require_end(self) -> None:
        """Raise where the stream ended without saying that and why it did."""
        if not self._assembly.has_ended or self._assembly.stop_reason is None:
            raise make_error("incomplete_stream" if self._assembly.has_started else "bad_response")


def make_headers(base_url: str, api_key: str) -> dict[str, str]:
    """Headers beside those of the SDK, which sends the key as ``Authorization``
    since version 2: other servers may still read it only where it was before."""
    return {} if base_url.startswith(DEFAULT_BASE_URL) else {"x-api-key": api_key}


def make_body(request: ModelRequest) -> dict[str, Any]:
    """The request in the shape of ``POST /v1/messages``."""
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
    return {**request.choices, **body}


def load_event(data: str) -> dict[str, Any] | None:
    """The object in an event's data; None for nothing and for ``[DONE]``, with
    which servers of another protocol end theirs. Raises ValueError."""
    if not data or data == "[DONE]":
        return None
    event = json.loads(data)
    if not isinstance(event, dict):
        raise ValueError("an event that is no object")
    if "\\ud" in data.lower():
        # JSON can name halves of surrogate pairs, but no database and no socket takes them.
        text = json.dumps(event, ensure_ascii=False)
        return dict(json.loads(text.encode("utf-8", "replace")))
    return event
