"""The common part of all providers that reach a model server over HTTP through an SDK.

The SDK makes the connection, signs in and reports refusals. The bytes of the stream are read here.
So every block is kept exactly as it was sent, with keys and types that the SDK does not know yet,
and each delta costs a fraction of the CPU time.

The SDK is imported for the first call, in a thread, because the import takes a second and more.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from conversations.domain.errors import ProviderError
from conversations.domain.stream import ModelInfo, ModelRequest, StreamItem
from conversations.domain.text import dump_json, load_json

from .answer_reader import AnswerReader, StreamTranslator
from .config import NO_KEY
from .model_limits import can_chat
from .provider_errors import (
    error_from_document,
    error_from_status,
    error_from_transport,
    is_disconnect,
    make_error,
)

if TYPE_CHECKING:
    import httpx2

READ_TIMEOUT_SECONDS = 90.0  # Within an answer; the Messages API sends pings much more often
CONNECT_TIMEOUT_SECONDS = 5.0
LIST_TIMEOUT_SECONDS = 20.0
DRAIN_TIMEOUT_SECONDS = 0.25  # For the rest of a stream whose answer is complete
CONNECTION_LIMITS: dict[str, Any] = {
    "max_connections": 1_000,
    "max_keepalive_connections": 100,
    # Longer than most tools take, so that a run's next call can use the same connection
    "keepalive_expiry": 60.0,
}
NO_LIST_STATUSES = frozenset({404, 405, 501})
OTHER_CONTENT_TYPES = ("text/html", "application/json", "application/problem+json")
MAX_DOCUMENT_BYTES = 16_000_000  # Limit for an answer that comes as one document


class SdkProvider:
    """Answers model calls at ``base_url``.

    Only ``api_key`` is used to sign in, and no key of the environment or profile of the person who
    runs the process. ``timeout`` is the longest silence in seconds. If an iterator of
    :meth:`stream` is left early, close it (with :func:`contextlib.aclosing`), which ends the
    request.
    """

    is_demo = False
    path: str

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str | None = None,
        timeout: float = READ_TIMEOUT_SECONDS,
        fallback_models: Sequence[ModelInfo] = (),
    ) -> None:
        self._api_key = api_key.strip()
        self._secret = "" if self._api_key == NO_KEY else self._api_key  # Masked in errors
        self._base_url = base_url or ""
        self._timeout = timeout
        self._fallback_models = list(fallback_models)
        self._client: Any = None
        self._has_answered = False
        self._opening = asyncio.Lock()

    # Methods that each kind of provider implements

    def import_sdk(self) -> ModuleType:
        """Return the SDK, with those of its modules that are otherwise imported on first use."""
        raise NotImplementedError

    def make_client(self) -> Any:
        """Return the client of the SDK. Runs in a thread."""
        raise NotImplementedError

    def make_body(self, request: ModelRequest) -> dict[str, Any]:
        raise NotImplementedError

    def write_body(self, request: ModelRequest) -> str:
        return dump_json(self.make_body(request))

    def make_translator(self, request: ModelRequest) -> StreamTranslator | None:
        return None

    async def fetch_models(self, client: Any) -> list[ModelInfo]:
        raise NotImplementedError

    def adapt_to_refusal(self, request: ModelRequest, error: ProviderError) -> bool:
        """Return whether the request can be sent again in another form after this refusal."""
        return False

    # Methods that are the same for all kinds

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamItem]:
        """See :meth:`conversations.domain.stream.Provider.stream`."""
        response = await self._send(request)
        translator = self.make_translator(request)
        reader = AnswerReader(headers=response.headers, secret=self._secret, translator=translator)
        async with aclosing(response):
            if response.headers.get("content-type", "").lower().startswith(OTHER_CONTENT_TYPES):
                for item in await self._read_document(response, reader):
                    yield item
                return
            async with aclosing(self._read_chunks(response)) as chunks:
                async for chunk in chunks:
                    for item in reader.read(chunk):
                        yield item
                    reader.raise_failure()
                    if reader.has_ended:
                        break
                for item in reader.end():
                    yield item
                reader.require_end()
                # The rest of the stream is read, so that the connection can be used again.
                with suppress(ProviderError, TimeoutError):
                    async with asyncio.timeout(DRAIN_TIMEOUT_SECONDS):
                        async for _ in chunks:
                            pass

    async def list_models(self) -> list[ModelInfo]:
        """Return the server's models that can chat or are configured, in the server's order.

        Return the fallback models if the server has no list of models, or an empty one."""
        sdk_client = await self._open_client()
        import httpx2

        models: list[ModelInfo] | None = None
        try:
            models = await self.fetch_models(sdk_client)
        except (self.import_sdk().APIError, httpx2.HTTPError) as error:
            failure = self._translate(error)
            if failure.http_status not in NO_LIST_STATUSES:
                raise failure from error
        except ValueError:
            pass  # the answer is not a list of models
        if models is None and not self._fallback_models:
            raise make_error("no_list")
        configured = {model.id for model in self._fallback_models}
        models = [model for model in models or () if can_chat(model) or model.id in configured]
        return models or list(self._fallback_models)

    async def warm_up(self) -> None:
        with suppress(ProviderError):  # a missing key is reported when a model is called
            await self._open_client()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _send(self, request: ModelRequest) -> "httpx2.Response":
        client = await self._open_client()
        import httpx2

        sdk = self.import_sdk()
        is_retried = False
        while True:
            # Passed as text, because the SDK would copy the body piece by piece to serialise it.
            body = self.write_body(request).encode()
            try:
                answer = await client.post(
                    self.path,
                    content=body,
                    cast_to=httpx2.Response,
                    options={"headers": {"Content-Type": "application/json"}},
                    stream=True,
                    stream_cls=sdk.AsyncStream[Any],
                )
            except (sdk.APIError, httpx2.HTTPError) as error:
                failure = self._translate(error)
                # If the server has closed an idle connection meanwhile, as llama.cpp does after
                # each stream, this is only noticed when the connection is used.
                is_stale = self._has_answered and not is_retried and is_disconnect(error)
                # Another request that was refused meanwhile may have adapted the body already.
                has_learnt = self.adapt_to_refusal(request, failure) or (
                    failure.code == "invalid_request" and self.write_body(request).encode() != body
                )
                if not is_stale and not has_learnt:
                    raise failure from error
                is_retried = True
            else:
                self._has_answered = True
                return cast("httpx2.Response", answer)

    async def _read_chunks(self, response: "httpx2.Response") -> AsyncGenerator[bytes]:
        import httpx2

        try:
            async with aclosing(response.aiter_bytes()) as chunks:
                async for chunk in chunks:
                    yield chunk
        except httpx2.HTTPError as error:
            raise self._translate(error) from error

    async def _read_document(
        self, response: "httpx2.Response", reader: AnswerReader
    ) -> list[StreamItem]:
        body = b""
        async with aclosing(self._read_chunks(response)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > MAX_DOCUMENT_BYTES:
                    break
        with suppress(ValueError):
            document = load_json(body)
            if isinstance(document, dict) and not document.get("error"):
                items = reader.read_document(document)
                if reader.has_ended:
                    return items
        raise error_from_document(body, headers=response.headers, secret=self._secret)

    async def _open_client(self) -> Any:
        if not self._api_key:
            raise make_error("no_key")
        if not (self._api_key.isascii() and self._api_key.isprintable()):
            raise make_error("bad_key")
        async with self._opening:
            if self._client is None:
                # In a thread, because importing and reading certificates would block all other
                # streams.
                self._client = await asyncio.to_thread(self._make_client)
        return self._client

    def _make_client(self) -> Any:
        self.import_sdk()
        import httpx2

        try:
            return self.make_client()
        except httpx2.InvalidURL as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> ProviderError:
        if isinstance(error, self.import_sdk().APIStatusError):
            failed = cast("Any", error)
            return error_from_status(
                status=failed.status_code,
                body=failed.body,
                headers=failed.response.headers,
                secret=self._secret,
            )
        return error_from_transport(error)


def make_http_options(timeout: float) -> tuple[Any, Any]:
    """Return the timeouts and limits of an SDK's HTTP client."""
    import httpx2

    return (
        httpx2.Timeout(timeout, connect=CONNECT_TIMEOUT_SECONDS),
        httpx2.Limits(**CONNECTION_LIMITS),
    )
