"""Model calls that are not answers: for a summary, a title, or the prompt of a tool server.

The usage of each call is recorded, however the call ends.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic

from conversations.agent.window.window import request_digest
from conversations.archive.model_calls import append_call
from conversations.domain.errors import ProviderError
from conversations.domain.runs import STOPPED
from conversations.domain.stream import (
    BlockDelta,
    MessageCompleted,
    MessageStarted,
    ModelRequest,
    Usage,
)
from conversations.domain.text import dump_json, estimate_tokens
from conversations.models import ModelCall

from .execution import Execution, usage_so_far


def estimate_request(request: ModelRequest) -> int:
    """Return the estimated number of tokens in a request."""
    return estimate_tokens(dump_json([request.system, request.messages]))


@dataclass(slots=True)
class SideCall:
    """A model call that is not an answer.

    ``estimated`` is the number of tokens in the request. ``texts`` are the texts that the manifest
    names by digest. ``reported`` is the provider's usage at the beginning, ``pieces`` the text
    written so far and ``message`` the whole answer.
    """

    execution: Execution
    request: ModelRequest
    manifest: str
    estimated: int
    texts: Mapping[str, str] = field(default_factory=dict)
    began: float = field(default_factory=monotonic)
    reported: Usage | None = None
    answered_as: str = ""
    pieces: list[str] = field(default_factory=list)
    message: MessageCompleted | None = None

    async def ask[T](self, read: Callable[[MessageCompleted], T]) -> T:
        """Send the request and return ``read(answer)``. Both may raise ProviderError."""
        try:
            result = read(await self._stream())
        except asyncio.CancelledError:
            if self.reported is not None:  # the provider counts its tokens
                self._save(STOPPED)
            raise
        except ProviderError as error:
            await self._save(error.code)
            raise
        await self._save()
        return result

    async def _stream(self) -> MessageCompleted:
        async with aclosing(self.execution.context.models.stream(self.request)) as items:
            async for item in items:
                if isinstance(item, BlockDelta):
                    self.pieces.append(item.text)
                elif isinstance(item, MessageStarted):
                    self.reported, self.answered_as = item.usage, item.answered_as
                elif isinstance(item, MessageCompleted):
                    self.message = item
        assert self.message is not None  # a stream ends with a complete message or raises
        return self.message

    def _save(self, error_code: str = "") -> asyncio.Future[None]:
        # The write is completed even if the run is stopped.
        record, claimed = self._record(error_code), self.execution.claimed
        writing = self.execution.writer.write(append_call, claimed, call=record, texts=self.texts)
        return asyncio.shield(self.execution.track(asyncio.create_task(writing)))

    def _record(self, error_code: str) -> ModelCall:
        texts = ["".join(self.pieces)]
        return self.execution.record(
            self.message,
            model=self.request.model,
            usage=usage_so_far(self.reported, estimated=self.estimated, texts=texts),
            answered_as=self.answered_as,
            manifest=self.manifest,
            request_digest=request_digest(self.request),
            error_code=error_code,
            duration_ms=int((monotonic() - self.began) * 1000),
        )
